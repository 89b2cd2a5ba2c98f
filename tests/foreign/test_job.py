"""Laws of how processes are spread over nodes, and what each is told."""

from __future__ import annotations

import json
from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import given

from shoal.errors import ConfigError, PlanError
from shoal.foreign.job import Node, ProcessGroup, Shape
from shoal.foreign.variables import hostfile, variables_of, workers_file


@st.composite
def jobs(draw: st.DrawFn) -> ProcessGroup:
    nodes = [
        Node(
            name=f"host{number}",
            address=f"10.0.0.{number + 1}",
            slots=draw(st.integers(1, 3)),
            gpus=tuple(map(str, range(draw(st.integers(0, 4))))),
            ports=range(20000, 20100),
        )
        for number in range(draw(st.integers(1, 4)))
    ]
    shape = Shape(
        per_node=draw(st.none() | st.integers(1, 4)),
        ps=draw(st.integers(0, 5)),
        has_chief=draw(st.booleans()),
        has_evaluator=draw(st.booleans()),
        has_scheduler=draw(st.booleans()),
    )
    return ProcessGroup.of(nodes, shape)


@given(jobs())
def test_ranks_and_indexes_are_unique_without_gaps(
    job: ProcessGroup,
) -> None:
    assert [each.rank for each in job.trainers] == list(range(len(job.trainers)))
    for part in ("chief", "worker", "ps"):
        found = job.doing(part)
        assert [each.index for each in found] == list(range(len(found)))
    names = Counter(each.name for each in job.processes)
    places = Counter(each.address for each in job.processes)
    assert max(names.values()) == max(places.values()) == 1
    common = {job.meeting_port, job.coordinator_port, job.root_port}
    on_first = {each.port for each in job.processes if each.node_rank == 0}
    assert len(common) == 3
    assert not common & on_first


@given(jobs())
def test_each_process_trains_on_gpus_of_its_own_where_there_are_enough(
    job: ProcessGroup,
) -> None:
    for rank, node in enumerate(job.nodes):
        shares = [each.gpus for each in job.trainers_on(rank)]
        if not node.gpus:
            assert set(shares) == {None}
            continue
        used = Counter(gpu for share in shares for gpu in share or ())
        if len(shares) <= len(node.gpus):
            assert set(used) == set(node.gpus)
            assert set(used.values()) == {1}
        assert max(used.values()) - min(used.values()) <= 1
        others = [p for p in job.processes if p.node_rank == rank and not p.trains]
        assert all(p.gpus == () for p in others)


@given(jobs())
def test_tf_config_is_one_map_with_each_process_once(job: ProcessGroup) -> None:
    maps = set[str]()
    tasks = list[tuple[str, int]]()
    for process in job.processes:
        told = variables_of(job, process)
        if process.part == "scheduler":
            assert "TF_CONFIG" not in told
            continue
        config = json.loads(told["TF_CONFIG"])
        maps.add(json.dumps(config["cluster"], sort_keys=True))
        task = config["task"]["type"], config["task"]["index"]
        tasks.append(task)
        own = config["cluster"].get(task[0])
        if process.part == "evaluator":
            assert own is None
        else:
            assert own[task[1]] == process.address
    assert len(maps) == 1
    assert len(set(tasks)) == len(tasks)


@given(jobs(), st.booleans())
def test_all_processes_get_the_same_address_and_world_size(
    job: ProcessGroup, for_jax: bool
) -> None:
    count = str(len(job.trainers))
    told = [variables_of(job, each, for_jax=for_jax) for each in job.trainers]
    for key in ("MASTER_ADDR", "MASTER_PORT", "JAX_COORDINATOR_ADDRESS"):
        assert len({each[key] for each in told}) == 1
    ranks = [str(rank) for rank in range(len(told))]
    for key in ("RANK", "KERAS_DISTRIBUTION_PROCESS_ID", "JAX_PROCESS_ID"):
        assert [each[key] for each in told] == ranks
    for key in ("WORLD_SIZE", "KERAS_DISTRIBUTION_NUM_PROCESSES", "DMLC_NUM_WORKER"):
        assert {each[key] for each in told} == {count}
    assert all(("SLURM_PROCID" in each) == for_jax for each in told)
    first = told[0]["KERAS_DISTRIBUTION_JOB_ADDRESSES"].split(",")[0]
    assert first == told[0]["JAX_COORDINATOR_ADDRESS"]
    for process in job.processes:
        if not process.trains:
            assert "RANK" not in variables_of(job, process)
    slots = [int(line.split("slots=")[1]) for line in hostfile(job).splitlines()]
    assert sum(slots) == len(job.trainers)
    assert workers_file(job).split() == [node.address for node in job.nodes]


def test_roles_of_dmlc() -> None:
    shape = Shape(per_node=2, ps=2, has_scheduler=True)
    job = ProcessGroup.of([Node(name="a", address="10.0.0.1")], shape)
    told = {each.name: variables_of(job, each) for each in job.processes}
    roles = Counter(each["DMLC_ROLE"] for each in told.values())
    assert roles == {"worker": 2, "server": 2, "scheduler": 1}
    assert told["ps-1"]["DMLC_SERVER_ID"] == "1"
    assert {each["DMLC_PS_ROOT_PORT"] for each in told.values()} == {str(job.root_port)}


def test_names_that_were_on_every_node_of_a_cluster() -> None:
    node = Node(name="a", address="10.0.0.1", gpus=("0", "1"))
    job = ProcessGroup.of([node], Shape(ps=1))
    told = variables_of(job, job.processes[0], shared="/efs")
    assert told["DEEPLEARNING_WORKERS_COUNT"] == "1"
    assert told["DEEPLEARNING_WORKER_GPU_COUNT"] == "2"
    assert told["EFS_MOUNT"] == "/efs"
    assert told["CUDA_VISIBLE_DEVICES"] == "0"
    assert variables_of(job, job.doing("ps")[0])["CUDA_VISIBLE_DEVICES"] == "-1"


def test_shapes_that_do_not_fit_the_nodes_are_refused() -> None:
    with pytest.raises(PlanError, match="there is no node"):
        ProcessGroup.of([], Shape())
    with pytest.raises(ConfigError, match="--ps is -1"):
        ProcessGroup.of([Node(name="a", address="a")], Shape(ps=-1))
    with pytest.raises(PlanError, match="node a has no port left"):
        ProcessGroup.of([Node(name="a", address="a", ports=[1, 2, 3])], Shape())
