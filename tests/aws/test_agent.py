"""Agents of nodes as processes on hosts of their own; moto at the bridge is AWS.

An `up` has started two of three hosts by SSH. The third one boots later, as a replaced
worker does, and joins by itself. In the place of the AWS command line is a program that
calls the same API.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import boto3
import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli.app import app
from shoal.clusters.aws.joining import agent_text, join_of
from shoal.clusters.bring_up import end, look
from shoal.clusters.cluster_state import ClusterState, ClusterStore, NodeState
from shoal.clusters.host_agent.processes import marked
from tests.aws import command_line
from tests.hosts import hosts_with_sshd, skip_or_fail
from tests.support.hosts import Hosts
from tests.support.sshd import Sshd, named

pytestmark = [
    pytest.mark.aws,
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("hosts"),
    pytest.mark.filterwarnings("default"),
]
BUCKET = "shoal-nodes"
LIMIT_S, PAUSE_S = 240.0, 0.2

AWS = """#!/bin/sh
exec {python} {program} "$@"
"""


@pytest.fixture(autouse=True)
def _loopback_only() -> None:
    """Hosts of these tests are at a bridge of this machine, without a way out."""


@dataclass
class Account:
    """AWS at the bridge: machines, and a bucket with the objects of one cluster."""

    endpoint: str
    id: str = ""
    clients: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def prefix(self) -> str:
        return f"clusters/lab/{self.id}"

    @property
    def variables(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint, "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }  # fmt: skip

    def client(self, service: str) -> Any:
        if service not in self.clients:
            self.clients[service] = boto3.client(
                service, region_name="us-east-1", endpoint_url=self.endpoint,
                aws_access_key_id="testing", aws_secret_access_key="testing",
            )  # fmt: skip
        return self.clients[service]

    def start_machine(self, subnet: str, address: str, role: str) -> str:
        """Starts an instance, and writes what its boot says; returns its id."""
        pairs = (("shoal:id", self.id), ("shoal:role", role))
        tags = [{"Key": key, "Value": value} for key, value in pairs]
        made = self.client("ec2").run_instances(
            ImageId="ami-12c6146b", MinCount=1, MaxCount=1, SubnetId=subnet,
            PrivateIpAddress=address,
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
        )["Instances"][0]  # fmt: skip
        assert made["PrivateIpAddress"] == address
        instance = str(made["InstanceId"])
        told = {
            "form": 1, "state": "ready", "reason": "", "instance": instance,
            "address": address, "role": role, "gpus": 0, "keys": [],
        }  # fmt: skip
        self.put(f"nodes/{instance}.json", told)
        return instance

    def put(self, name: str, value: Any) -> None:
        body = json.dumps(value).encode()
        key = f"{self.prefix}/{name}"
        self.client("s3").put_object(Bucket=BUCKET, Key=key, Body=body)

    def get(self, name: str) -> Any:
        s3 = self.client("s3")
        key = f"{self.prefix}/{name}"
        try:
            return json.loads(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())
        except s3.exceptions.NoSuchKey:
            return None


@dataclass
class Nodes:
    """Three hosts, of which an `up` knows two, and agents on them."""

    folder: Path
    hosts: Hosts
    server: Sshd
    account: Account
    stack: ExitStack

    def state(self) -> ClusterState:
        return ClusterStore(str(self.folder / "known")).get("lab")

    def start_agent(self, number: int, instance: str, role: str) -> None:
        """Starts an agent as systemd does, on a host and in its home."""
        told = {
            "id": self.account.id, "folder": f"s3://{BUCKET}/{self.account.prefix}",
            "instance": instance, "address": self.server.addresses[number],
            "role": role, "pause_s": "0.2", "secret": "shoal-lab", "keeps": False,
            "signal": "", "workers": 1, "least": 1, "settle_s": 300, "wait_s": 3300,
        }  # fmt: skip
        path = self.folder / f"agent-{number}.json"
        path.write_text(json.dumps(told))
        home, programs = self.server.homes[number], self.folder / "bin"
        variables = {
            **self.account.variables, "HOME": str(home),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(shoal.__file__).parents[1]),
        }  # fmt: skip
        words = [sys.executable, str(self.folder / "agent.py"), str(path)]
        with (self.folder / f"agent-{number}.log").open("wb") as log:
            agent = subprocess.Popen(
                [*named(self.hosts.names[number]), *words],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables,
            )  # fmt: skip
        self.stack.callback(agent.wait)
        self.stack.callback(agent.kill)

    def alive(self) -> set[str]:
        """Addresses of the nodes that Ray has."""
        state = self.state()
        found = look(state, state.head, asks_ray=True).get("nodes", [])
        return {one["address"] for one in found if one["is_alive"]}

    def wait_for(self, what: Callable[[], bool], words: str) -> float:
        """Waits until something is so; returns the seconds it took."""
        began = time.monotonic()
        while not what():
            if time.monotonic() - began > LIMIT_S:
                logs = [path.read_text() for path in self.folder.glob("agent-*.log")]
                pytest.fail(f"{words}\n" + "\n".join(logs))
            time.sleep(PAUSE_S)  # agents have the processor meanwhile
        return time.monotonic() - began


@pytest.fixture
def nodes(tmp_path: Path) -> Generator[Nodes]:
    if find_spec("ray") is None:
        skip_or_fail("Ray: pip install 'shoal[ray]'")
    for name in ("sshd", "shared", "moto", "bin"):
        (tmp_path / name).mkdir()
    variables = {"PYTHONPATH": str(Path(shoal.__file__).parents[1])}
    with (
        hosts_with_sshd(3, tmp_path / "sshd", variables) as (hosts, server),
        ExitStack() as stack,
    ):
        account = Account(_serve(stack, tmp_path / "moto", hosts.address))
        stack.callback(lambda: [one.close() for one in account.clients.values()])
        account.client("s3").create_bucket(Bucket=BUCKET)
        program = Path(command_line.__file__)
        text = AWS.format(python=sys.executable, program=program)
        (tmp_path / "bin" / "aws").write_text(text)
        (tmp_path / "bin" / "aws").chmod(0o755)
        (tmp_path / "agent.py").write_text(agent_text())
        yield Nodes(tmp_path, hosts, server, account, stack)


def _serve(stack: ExitStack, folder: Path, address: str) -> str:
    script = Path(__file__).with_name("moto_server.py")
    server = subprocess.Popen(
        [sys.executable, str(script), str(folder), address], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert server.stdout is not None
    stack.enter_context(server)
    stack.callback(server.kill)
    return server.stdout.readline().strip()


def test_a_replaced_worker_joins_by_itself(
    nodes: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third = nodes.server.addresses
    shown = CliRunner().invoke(app, _up(nodes, [first, second]), prog_name="shoal")
    assert shown.exit_code == 0, shown.output
    try:
        _check(nodes, first, second, third, capsys)
    finally:
        nodes.hosts.mend(1)
        state = nodes.state()
        mine = NodeState(number=2, address=third, private=third, python=sys.executable)
        hosts = [*(state.hosts.hosts if state.hosts else ()), {"address": third}]
        more = {**(state.hosts.model_dump() if state.hosts else {}), "hosts": hosts}
        kind = type(state.hosts)
        whole = state.model_copy(update={"hosts": kind.model_validate(more)})  # type: ignore[union-attr]
        nodes.stack.callback(CliRunner().invoke, app, ["cluster", "down", "lab"])
        end(whole, mine)


def _up(nodes: Nodes, addresses: list[str]) -> list[str]:
    os.environ["SHOAL_CLUSTERS"] = str(nodes.folder / "known")
    nodes.stack.callback(os.environ.pop, "SHOAL_CLUSTERS")
    path = nodes.folder / "hosts.yaml"
    path.write_text(
        f"name: lab\nuser: root\nssh: ssh -F {nodes.server.client}\n"
        f"object_store_mib: 80\nenvironment: {{python: {sys.executable}}}\n"
        f"min_workers: 2\nhosts: [{', '.join(addresses)}]\n"
    )
    return ["cluster", "up", str(path)]


def _check(
    nodes: Nodes,
    first: str,
    second: str,
    third: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    account = nodes.account
    account.id = nodes.state().id
    network = f"{first.rpartition('.')[0]}.0/24"
    vpc = account.client("ec2").create_vpc(CidrBlock=network)["Vpc"]["VpcId"]
    subnet = account.client("ec2").create_subnet(VpcId=vpc, CidrBlock=network)[
        "Subnet"
    ]["SubnetId"]
    master = account.start_machine(subnet, first, "master")
    lost = account.start_machine(subnet, second, "worker")
    # What `up` on AWS writes at its end.
    state = nodes.state().model_copy(
        update={"facts": {"names": {master: first, lost: second}}}
    )
    account.put("join.json", join_of(state, None))
    account.put("formed.json", {"state": "complete", "asked": 1, "came": 1, "why": ""})
    account.client("secretsmanager").create_secret(
        Name="shoal-lab", SecretString=state.token
    )
    nodes.start_agent(0, master, "master")
    nodes.start_agent(1, lost, "worker")

    def listed() -> list[str]:
        told = account.get("cluster.json")
        return [one["address"] for one in told["nodes"]] if told else []

    nodes.wait_for(lambda: listed() == [first, second], "the master lists both")
    # The worker is lost, and its group starts another one.
    account.client("ec2").terminate_instances(InstanceIds=[lost])
    nodes.hosts.cut(1)
    new = account.start_machine(subnet, third, "worker")
    nodes.start_agent(2, new, "worker")

    def joined() -> bool:
        told = account.get(f"joined/{new}.json")
        return bool(told) and told["state"] == "joined"

    took_s = nodes.wait_for(joined, "the new worker joins")
    assert listed() == [first, third]
    nodes.wait_for(lambda: third in nodes.alive(), "Ray has it")
    told = account.get(f"joined/{new}.json")
    assert (told["number"], told["head"]) == (2, state.address)
    with capsys.disabled():
        print(f"\na replaced worker joined {took_s:.1f} s after its boot")
    # Its Ray is killed, and its agent starts it again.
    mark = f"{state.id}-2"
    [raylet] = marked(f"SHOAL_NODE={mark}", f"/tmp/shoal-{mark}", "raylet")
    os.kill(raylet, signal.SIGKILL)

    def runs_again() -> bool:
        found = marked(f"SHOAL_NODE={mark}", f"/tmp/shoal-{mark}", "raylet")
        return bool(found) and raylet not in found

    nodes.wait_for(runs_again, "a lost Ray is started again")
    nodes.wait_for(lambda: third in nodes.alive(), "Ray has it again")
    # Agents do nothing more once an `up` begins.
    s3 = account.client("s3")
    s3.delete_object(Bucket=BUCKET, Key=f"{account.prefix}/join.json")
    log = nodes.folder / "agent-2.log"
    nodes.wait_for(
        lambda: "wait: no `up` has ended yet" in log.read_text(), "agents stop"
    )
