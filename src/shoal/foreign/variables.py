"""The environment variables of each process, for each framework. Pure.

One function a framework; `variables_of` joins them. Formats are those of the
frameworks' own documents: `TF_CONFIG` of tf.distribute, the variables that torchrun
sets, those of `keras.distribution.initialize`, JAX's coordinator, DMLC's roles, and
the names that deeplearning-cfn put on every node.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.foreign.job import JobProcess, ProcessGroup

DMLC_ROLES = {
    "chief": "worker", "worker": "worker", "ps": "server", "scheduler": "scheduler"
}  # fmt: skip

HOST_FILES = (
    "SHOAL_HOSTFILE", "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile", "HYDRA_HOST_FILE",
)  # fmt: skip
WORKERS_FILE = "DEEPLEARNING_WORKERS_PATH"
"""Variables that each node sets by itself, to the paths of files it writes."""


def variables_of(
    job: ProcessGroup, process: JobProcess, *, shared: str = "", for_jax: bool = False
) -> dict[str, str]:  # fmt: skip
    """Returns all variables of a process, except for the files of hosts.

    The node sets those when the process starts; `files_of` has their contents.

    Args:
        job: All processes of the job.
        process: One of them.
        shared: Folder that all nodes share, empty for none.
        for_jax: Whether to add variables of Slurm, by which
            `jax.distributed.initialize()` without arguments finds number and rank;
            other programs read them, too.
    """
    return {
        "SHOAL_PART": process.part,
        "SHOAL_INDEX": str(process.index),
        **tensorflow(job, process),
        **torch(job, process),
        **keras(job, process),
        **jax(job, process),
        **(slurm(job, process) if for_jax else {}),
        **dmlc(job, process),
        **deeplearning(job, process, shared),
        **devices(process),
        **process.node.variables,
    }


def tensorflow(job: ProcessGroup, process: JobProcess) -> dict[str, str]:
    """Returns `TF_CONFIG`: the same map everywhere, with this process's role.

    The evaluator is not part of the map: no process connects to it.
    """
    if process.part == "scheduler":
        return {}
    cluster: dict[str, list[str]] = {}
    for part in ("chief", "worker", "ps"):
        addresses = [each.address for each in job.doing(part)]
        if addresses:
            cluster[part] = addresses
    task: dict[str, Any] = {"type": process.part, "index": process.index}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


def torch(job: ProcessGroup, process: JobProcess) -> dict[str, str]:
    """Returns the variables that torchrun would set."""
    if process.rank is None:
        return {}
    here = len(job.trainers_on(process.node_rank))
    return {
        "MASTER_ADDR": job.nodes[0].address,
        "MASTER_PORT": str(job.meeting_port),
        "RANK": str(process.rank),
        "WORLD_SIZE": str(len(job.trainers)),
        "LOCAL_RANK": str(process.local_rank),
        "LOCAL_WORLD_SIZE": str(here),
        "NODE_RANK": str(process.node_rank),
        "GROUP_RANK": str(process.node_rank),
    }


def keras(job: ProcessGroup, process: JobProcess) -> dict[str, str]:
    """Returns the variables of `keras.distribution.initialize()`, coordinator first."""
    if process.rank is None:
        return {}
    first, *others = job.trainers
    addresses = [
        f"{first.node.address}:{job.coordinator_port}", *(p.address for p in others)
    ]  # fmt: skip
    return {
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": ",".join(addresses),
        "KERAS_DISTRIBUTION_NUM_PROCESSES": str(len(addresses)),
        "KERAS_DISTRIBUTION_PROCESS_ID": str(process.rank),
    }


def jax(job: ProcessGroup, process: JobProcess) -> dict[str, str]:
    """Returns JAX's coordinator, with number and rank for scripts that pass them on."""
    if process.rank is None:
        return {}
    return {
        "JAX_COORDINATOR_ADDRESS": f"{job.nodes[0].address}:{job.coordinator_port}",
        "JAX_NUM_PROCESSES": str(len(job.trainers)),
        "JAX_PROCESS_ID": str(process.rank),
    }


def slurm(job: ProcessGroup, process: JobProcess) -> dict[str, str]:
    """Returns Slurm's variables, from which JAX reads number and rank."""
    if process.rank is None:
        return {}
    return {
        "SLURM_JOB_ID": str(job.coordinator_port),
        "SLURM_STEP_NODELIST": job.nodes[0].address,
        "SLURM_NTASKS": str(len(job.trainers)),
        "SLURM_PROCID": str(process.rank),
        "SLURM_LOCALID": str(process.local_rank),
    }


def dmlc(job: ProcessGroup, process: JobProcess) -> dict[str, str]:
    """Returns the roles of MXNet, and of other programs on DMLC's parameter server."""
    role = DMLC_ROLES.get(process.part)
    if role is None:
        return {}
    found = {
        "DMLC_ROLE": role,
        "DMLC_PS_ROOT_URI": job.nodes[0].address,
        "DMLC_PS_ROOT_PORT": str(job.root_port),
        "DMLC_NUM_SERVER": str(len(job.doing("ps"))),
        "DMLC_NUM_WORKER": str(len(job.trainers)),
        "DMLC_NODE_HOST": process.node.address,
    }
    if process.rank is not None:
        found |= {
            "DMLC_WORKER_ID": str(process.rank), "DMLC_TASK_ID": str(process.rank)
        }  # fmt: skip
    elif role == "server":
        found["DMLC_SERVER_ID"] = str(process.index)
    return found


def deeplearning(job: ProcessGroup, process: JobProcess, shared: str) -> dict[str, str]:
    """Returns the variables of a deeplearning-cfn cluster."""
    found = {
        "DEEPLEARNING_WORKERS_COUNT": str(len(job.nodes)),
        "DEEPLEARNING_WORKER_GPU_COUNT": str(len(process.node.gpus)),
    }
    if shared:
        found["EFS_MOUNT"] = shared
    return found


def once(
    job: ProcessGroup, process: JobProcess, shared: str, ssh: Sequence[str]
) -> dict[str, str]:
    """Returns the variables of a program that starts all others, as `mpirun` does.

    Open MPI starts the program on the first node's `PATH`: it passes that variable, and
    those of the node, to all hosts.

    Args:
        job: All processes of the job.
        process: The first process.
        shared: Folder that all nodes share, empty for none.
        ssh: The command that reaches hosts.
    """
    agent = " ".join(ssh)
    handed_on = sorted({"PATH", *process.node.variables})
    return {
        **deeplearning(job, process, shared),
        "OMPI_MCA_plm_rsh_agent": agent,
        "OMPI_MCA_mca_base_env_list": ";".join(handed_on),
        "PRTE_MCA_plm_ssh_agent": agent,
        **process.node.variables,
    }


def devices(process: JobProcess) -> dict[str, str]:
    """Returns the GPUs that a process may see; nothing on nodes without GPUs."""
    if process.gpus is None:
        return {}
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(process.gpus) if process.gpus else "-1",
    }


def workers_file(job: ProcessGroup) -> str:
    """Returns one address a line, the first node's first, for deeplearning-cfn."""
    return "".join(f"{node.address}\n" for node in job.nodes)


def files_of(job: ProcessGroup) -> dict[str, str]:
    """Returns the contents of the files that variables refer to, by their names."""
    files = dict.fromkeys(HOST_FILES, hostfile(job))
    return {**files, WORKERS_FILE: workers_file(job)}


def hostfile(job: ProcessGroup) -> str:
    """Returns one node a line with its slots, as `mpirun --hostfile` reads it."""
    return "".join(
        f"{node.address} slots={len(job.trainers_on(rank))}\n"
        for rank, node in enumerate(job.nodes)
    )


def assignments(variables: Mapping[str, str]) -> list[str]:
    """Returns `NAME=value` of each variable, sorted, for `env`."""
    return [f"{name}={value}" for name, value in sorted(variables.items())]
