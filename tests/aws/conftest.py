"""AWS of the tests' own: moto over HTTP, in a process of its own, once a module."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from typer.testing import CliRunner, Result

from shoal.cli.app import app
from shoal.clusters.aws import node_calls, provider
from shoal.clusters.aws.node_agent import Agent
from shoal.clusters.aws.policy import policy_of
from shoal.clusters.aws.stack import Clock
from shoal.clusters.cluster_state import ClusterState, ClusterStore
from shoal.clusters.pins import pins_here
from tests.aws import command_line
from tests.aws.test_template import node_statements
from tests.clusters.aws_files import spec, write

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDRKzmL5O3qSBhwsBFbmVbqUWE6SkzRxfUVUxUuHRpzx"
OUTSIDE = (
    "AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE", "AWS_REGION", "AWS_DEFAULT_REGION",
)  # fmt: skip

LACKING = ("ec2:CreateVpc", "ec2:RunInstances")
"""What the user `bob` may not do, of what the policy of a caller allows."""

AGENT_S = 15.0
"""Seconds between two turns of an agent."""

SSH = '''#!{python}
"""In the place of ssh: answers as a host would whose Ray runs."""
import json, sys
host = next(word for word in sys.argv if word.startswith("prod-"))
if "systemctl" in sys.argv[-1]:
    mount = "no" if host == "prod-worker1" else "yes"
    sys.exit(print("shoal-lists active\\nshoal-agent active\\nmount", mount))
if "BOOT=" not in sys.argv[-1]:
    sys.exit(print(*sys.argv[1:]))
read = sys.stdin.buffer
read.read(int(read.readline()))
asked = json.loads(read.readline())
answers = json.loads(open({answers!r}).read())
print("SHOAL: " + json.dumps(answers[asked["verb"]]).replace("HOST", host))
'''


@pytest.fixture(autouse=True)
def _loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that reaches for anything but this machine fails."""
    connect = socket.socket.connect

    def checked(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and not str(address[0]).startswith("127."):
            raise AssertionError(f"a test reaches for {address}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", checked)


@dataclass
class Cloud:
    """moto, the credentials for it, and the command line."""

    folder: Path
    endpoint: str
    users: dict[str, dict[str, str]]
    agents: dict[str, Agent] = field(default_factory=dict[str, Agent])
    called: list[str] = field(default_factory=list[str])
    clients: dict[str, Any] = field(default_factory=dict[str, Any])
    failed: set[str] = field(default_factory=set[str])
    denied: list[str] = field(default_factory=list[str])
    boots: Callable[[Any], str] = lambda instance: "ready"
    slept: float = 0.0

    @property
    def credentials(self) -> dict[str, str]:
        return self.users["ann"]

    def write(self, name: str, value: Any) -> None:
        (self.folder / name).write_text(json.dumps(value))

    def client(self, service: str) -> Any:
        return self._client(service, self.credentials)

    def _client(self, service: str, credentials: dict[str, str]) -> Any:
        key = f"{service} {credentials['aws_access_key_id']}"
        if key not in self.clients:
            self.clients[key] = boto3.client(
                service, region_name="us-east-1", **credentials
            )
        return self.clients[key]

    def shoal(self, *words: str | Path, typed: str | None = None) -> Result:
        said = [str(word) for word in words]
        return CliRunner().invoke(app, said, input=typed, prog_name="shoal")

    def give_profile(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Moves the credentials from the environment to a profile."""
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", self.log_in(name))
        for key in self.credentials:
            monkeypatch.delenv(key.upper())

    def log_in(self, name: str, whose: str = "ann") -> str:
        """Writes credentials of a user to a profile; returns the file's path."""
        path = Path(os.environ["HOME"]) / "credentials"
        lines = [f"{key} = {value}" for key, value in self.users[whose].items()]
        path.write_text("\n".join([f"[{name}]", *lines, ""]))
        return str(path)

    def state(self) -> ClusterState:
        return ClusterStore(os.environ["SHOAL_CLUSTERS"]).get("prod")

    @property
    def names(self) -> list[str]:
        return ClusterStore(os.environ["SHOAL_CLUSTERS"]).names()

    def instances(self) -> list[Any]:
        found = self.client("ec2").describe_instances()["Reservations"]
        return [
            one for r in found for one in r["Instances"]
            if one["State"]["Name"] in ("running", "pending")
        ]  # fmt: skip

    def sleep(self, seconds: float) -> None:
        """In the place of time: nodes that have no object yet boot."""
        before, self.slept = self.slept, self.slept + seconds
        self.boot()
        if before and before // AGENT_S == self.slept // AGENT_S:
            return
        for one in self.instances():
            if {"Key": "shoal:role", "Value": "master"} in one["Tags"]:
                self.agent(one).turn()

    def agent(self, instance: Any) -> Agent:
        """The agent of the master, which has the role of nodes."""
        name, state = str(instance["InstanceId"]), self.state()
        if name not in self.agents:
            asked: Any = state.facts["file"]
            folder = f"s3://{state.facts['bucket']}/clusters/prod/{state.id}"
            told = {
                "id": state.id, "folder": folder, "instance": name,
                "address": instance["PrivateIpAddress"], "role": "master",
                "secret": f"shoal-prod-{state.id}", "signal": "", "keeps": False,
                "workers": asked["workers"]["count"], "least": asked["workers"]["min"],
                "settle_s": asked["settle_minutes"] * 60,
                "wait_s": asked["wait_minutes"] * 60,
            }  # fmt: skip
            begun_s = time.time() - self.slept
            self.agents[name] = Agent(told, lambda: begun_s + self.slept)
        return self.agents[name]

    def run_as_node(self, *words: str, content: bytes | None = None) -> bytes:
        """In the place of the AWS command line on a node."""
        try:
            return command_line.run(
                lambda service: self._client(service, self.users["node"]),
                list(words),
                content,
            )
        except ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchKey":
                self.denied.append(str(error))
            raise node_calls.Failure(str(error)) from error

    def boot(self) -> None:
        """Writes what nodes that have come say."""
        state = self.state()
        bucket = str(state.facts["bucket"])
        s3 = self._client("s3", self.users["node"])
        for one in self.instances():
            tags = {tag["Key"]: tag["Value"] for tag in one["Tags"]}
            told = {
                "form": 1, "state": self.boots(one), "reason": "", "gpus": 0,
                "instance": one["InstanceId"], "address": one["PrivateIpAddress"],
                "role": tags["shoal:role"], "keys": [KEY],
            }  # fmt: skip
            if told["state"] == "failed":
                told["reason"] = "the file system cannot be mounted"
            if told["state"] != "unheard":
                key = f"clusters/prod/{state.id}/nodes/{one['InstanceId']}.json"
                s3.put_object(Bucket=bucket, Key=key, Body=json.dumps(told))
            if told["state"] == "failed":  # it leaves, as user data does
                self.failed.add(one["InstanceId"])
                self.run_as_node(
                    "autoscaling", "terminate-instance-in-auto-scaling-group",
                    "--instance-id", one["InstanceId"],
                    "--should-decrement-desired-capacity" if len(self.failed) >= 3
                    else "--no-should-decrement-desired-capacity",
                )  # fmt: skip


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """moto's address, and the folder that it reads."""
    folder = tmp_path_factory.mktemp("moto")
    script = Path(__file__).with_name("moto_server.py")
    variables = {
        **os.environ,
        "INITIAL_NO_AUTH_ACTION_COUNT": "10",
        "MOTO_IAM_LOAD_MANAGED_POLICIES": "true",
    }
    with subprocess.Popen(
        [sys.executable, str(script), str(folder)], env=variables, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        assert server.stdin is not None
        yield server.stdout.readline().strip(), folder
        server.stdin.close()


@pytest.fixture(scope="module")
def users(endpoint: tuple[str, Path]) -> dict[str, dict[str, str]]:
    """Users with exactly the policies of callers and nodes; moto checks them."""
    dummy = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    iam = boto3.client(
        "iam", endpoint_url=endpoint[0], region_name="us-east-1", **dummy
    )
    of_caller = policy_of(spec())["Statement"]
    for one in of_caller:
        if one["Sid"] == "Bucket":
            one["Action"].append("s3:HeadBucket")  # moto's name; AWS's is ListBucket
    weaker = [dict(one) for one in of_caller]
    for one in weaker:
        if one["Sid"] == "Make":
            one["Action"] = [name for name in one["Action"] if name not in LACKING]
    found = {
        "node": _put_user(iam, "node", node_statements("shoal-*")),
        "ann": _put_user(iam, "ann", of_caller),
        "bob": _put_user(iam, "bob", weaker),
    }
    found["ann again"] = _key(iam, "ann")
    iam.close()
    return found


def _put_user(iam: Any, name: str, statements: list[Any]) -> dict[str, str]:
    """Makes a user who may do what a policy says; moto checks that."""
    iam.create_user(UserName=name)
    for one in statements:
        one.pop("Condition", None)  # moto knows the resources of S3's calls alone
        if "s3:" not in str(one["Action"]):
            one["Resource"] = "*"
    policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
    iam.put_user_policy(UserName=name, PolicyName="shoal", PolicyDocument=policy)
    return _key(iam, name)


def _key(iam: Any, name: str) -> dict[str, str]:
    """Makes another access key of a user."""
    made = iam.create_access_key(UserName=name)["AccessKey"]
    return {
        "aws_access_key_id": made["AccessKeyId"],
        "aws_secret_access_key": made["SecretAccessKey"],
    }


@pytest.fixture
def cloud(
    endpoint: tuple[str, Path],
    users: dict[str, dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Cloud]:
    """A cloud without a cluster of ours, as the command line sees it."""
    for name in OUTSIDE:
        monkeypatch.delenv(name, raising=False)
    users = dict(users)  # a test changes them
    for name, value in users["ann"].items():
        monkeypatch.setenv(name.upper(), value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint[0])
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("SHOAL_CLUSTERS", str(tmp_path / "known"))
    monkeypatch.setenv("HOME", str(tmp_path))
    _put_ssh(tmp_path, monkeypatch)
    found = Cloud(endpoint[1], endpoint[0], users)
    for name in ("capacity", "activities", "prices", "closed", "expired"):
        (found.folder / name).unlink(missing_ok=True)
    _record_calls(found.called, monkeypatch)
    clock = Clock(now=lambda: found.slept, sleep=found.sleep)
    monkeypatch.setattr(provider, "Clock", lambda: clock)
    monkeypatch.setattr(node_calls, "aws", found.run_as_node)
    yield found
    assert found.denied == []
    _remove_stacks(found)
    for client in found.clients.values():
        client.close()


def _put_ssh(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a program in the place of ssh on the PATH."""
    backend = os.environ.get("KERAS_BACKEND", "jax")
    pins = pins_here(backend)
    facts = {
        "is_ready": True, "version": pins.python, "packages": dict(pins.packages),
        "code": pins.code, "python": sys.executable, "path": "/bin", "gpus": [],
        "address": "HOST",
    }  # fmt: skip
    answers: Mapping[str, Any] = {
        "facts": facts, "start": {"port": 6379, "is_new": True}, "stop": {"ended": 3},
        "look": {"is_alive": True, "processes": 3, "nodes": []},
        "submit": {}, "jobs": {"jobs": []},
    }  # fmt: skip
    programs = folder / "bin"
    programs.mkdir()
    (folder / "answers.json").write_text(json.dumps(answers))
    path = programs / "ssh"
    said = str(folder / "answers.json")
    path.write_text(SSH.format(python=sys.executable, answers=said))
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    (folder / ".ssh").mkdir(mode=0o700)
    (folder / ".ssh" / "ann.pub").write_text(f"{KEY} ann\n")
    (folder / ".ssh" / "ann").write_text("private\n")


def _record_calls(called: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes every call that is made through a session of boto3."""
    begin = boto3.session.Session.__init__

    def recorded(self: Any, *words: Any, **named: Any) -> None:
        begin(self, *words, **named)

        def note(model: Any, **rest: Any) -> None:
            if named or words:  # those of the test name nothing
                called.append(f"{model.service_model.service_name}:{model.name}")

        self.events.register("before-call", note)

    monkeypatch.setattr(boto3.session.Session, "__init__", recorded)


def _remove_stacks(cloud: Cloud) -> None:
    """moto cannot delete a stack with a network: its machines are ended here."""
    groups = cloud.client("autoscaling")
    with suppress(ClientError):  # a test that failed has left it
        cloud.client("cloudformation").delete_stack(StackName="shoal-prod")
    for one in groups.describe_auto_scaling_groups()["AutoScalingGroups"]:
        groups.delete_auto_scaling_group(
            AutoScalingGroupName=one["AutoScalingGroupName"], ForceDelete=True
        )


@pytest.fixture
def file(cloud: Cloud, tmp_path: Path) -> Path:
    """A file for a cluster of a master and two workers."""
    return write(
        tmp_path,
        workers={"type": "m5.large", "count": 2, "min": 1, "disk_gib": 20},
        access={"key": str(tmp_path / ".ssh" / "ann.pub")},
        environment={"python": sys.executable},
        wait_minutes=5,
        settle_minutes=1,
    )
