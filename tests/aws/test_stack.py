"""What CloudFormation does with the stack: signals, rollback, what stays, the end.

ministack carries out waits, rollbacks and deletions as AWS does; moto does not. A few
types are unknown to it; they are dropped from the template as data.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.clusters.aws import node_forming, stack
from shoal.clusters.aws.calls import Calls
from shoal.clusters.aws.following import Following
from shoal.clusters.aws.nodes import Place
from shoal.clusters.aws.parameters import Choices, parameters_of, tags_of
from shoal.clusters.aws.stack import Clock, Stack
from shoal.clusters.aws.template import template
from shoal.clusters.cluster_state import ClusterState, ClusterStore
from shoal.clusters.provider import Acquisition, Tell
from shoal.errors import ClusterError, ProvisionError
from tests.aws.conftest import OUTSIDE
from tests.aws.test_template import TOOLS
from tests.clusters.aws_files import spec

pytestmark = [pytest.mark.aws, pytest.mark.slow, pytest.mark.process]

LACKING = {
    "AWS::EC2::EIP", "AWS::EC2::NatGateway", "AWS::EC2::SecurityGroupIngress",
    "AWS::EC2::SecurityGroupEgress", "AWS::EC2::PlacementGroup",
}  # fmt: skip
ID = "0123abcd"


class LongForms(yaml.SafeLoader):
    """Reads !Ref and its like as JSON has them."""


def _long(loader: Any, tag: str, node: Any) -> Any:
    if isinstance(node, yaml.ScalarNode):
        value = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        value = loader.construct_mapping(node, deep=True)
    if tag == "GetAtt":
        return {"Fn::GetAtt": value.split(".", 1)}
    return {tag if tag in ("Ref", "Condition") else f"Fn::{tag}": value}


LongForms.add_multi_constructor("!", _long)


def variant() -> str:
    """The template without the types that the stand-in lacks, and what needs them."""
    found = yaml.load(template(), LongForms)
    resources: dict[str, Any] = found["Resources"]
    for name in [n for n, one in resources.items() if one["Type"] in LACKING]:
        del resources[name]
    del resources["PrivateRoute"]
    for one in resources.values():
        if "DependsOn" in one:
            named = one["DependsOn"]
            listed = [named] if isinstance(named, str) else named
            one["DependsOn"] = [name for name in listed if name in resources]
    for name in ("Masters", "Workers"):
        after = resources[name]["Properties"]["Tags"][-1]["Value"]["Fn::Join"][1]
        del after[0]  # of the NAT gateway
    worker = resources["WorkerTemplate"]["Properties"]["LaunchTemplateData"]
    del worker["Placement"]
    return json.dumps(found)


@pytest.fixture(scope="module")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program = TOOLS / "stand-ins" / "bin" / "ministack"
    if not program.exists():
        pytest.skip("ministack is not installed; `make aws` does it")
    folder = tmp_path_factory.mktemp("ministack")
    port = _free_port()
    variables = {
        **os.environ, "GATEWAY_PORT": str(port), "BIND_HOST": "127.0.0.1",
        "MINISTACK_HOST": "127.0.0.1", "STATE_DIR": str(folder),
    }  # fmt: skip
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [str(program)], env=variables, stdout=log, stderr=log, cwd=folder
        )
    try:
        _wait_for(port, server)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()  # it would wait for its stacks, which wait for signals
        server.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    while server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
    raise AssertionError("ministack has ended")


@pytest.fixture
def calls(ministack: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    for name in OUTSIDE:
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_ENDPOINT_URL": ministack, "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(stack, "PAUSE_S", 0.1)
    found = Calls("us-east-1", None)
    yield found
    for one in _stacks(found):
        Stack(found, one).delete()
    found.close()


def _stacks(calls: Calls) -> list[str]:
    told = calls.ask("cloudformation", "DescribeStacks")["Stacks"]
    return [
        str(one["StackId"]) for one in told if one["StackStatus"] != "DELETE_COMPLETE"
    ]


def made(calls: Calls, wait_s: int = 60, end_at: str = "") -> Stack:
    """Asks for a stack."""
    asked = spec(name=f"t{os.urandom(3).hex()}")
    chosen = Choices(
        image="ami-0123456789abcdef0", login="ec2-user", root_device="/dev/xvda",
        zone="us-east-1a", bucket="shoal-bucket", key_name="ann",
        sources=("203.0.113.7/32",),
        end_role="arn:aws:iam::000000000000:role/shoal-end",
    )  # fmt: skip
    values = parameters_of(asked, chosen, id_of=ID, end_at=end_at)
    values |= {"WaitSeconds": str(wait_s), "UsesPlacement": "no"}
    found = Stack(calls, asked.stack)
    found.create(variant(), values, tags_of(asked, ID), keeps_failed=False)
    return found


def ended(found: Stack) -> str:
    """Follows a stack until its status lasts."""
    clock = Clock()
    while (state := found.state()) is not None:
        if not state.status.endswith("_IN_PROGRESS"):
            return state.status
        clock.sleep(0.1)
    return "gone"


def signal(calls: Calls, found: Stack, reason: str = "") -> None:
    """Signals as the master's agent does, to the address that its user data holds."""
    clock = Clock()
    while True:
        told = calls.ask(
            "cloudformation", "DescribeStackResources", StackName=found.name
        )["StackResources"]
        urls = [
            one["PhysicalResourceId"] for one in told
            if one["LogicalResourceId"] == "Booted" and one.get("PhysicalResourceId")
        ]  # fmt: skip
        waits = [one for one in told if one["LogicalResourceId"] == "Masters"]
        if urls and waits:
            break
        clock.sleep(0.1)
    node_forming.signal(urls[0], "i-1", is_up=not reason, why=reason)


def _nothing(name: str, step: str) -> None:
    pass


def files(calls: Calls) -> set[str]:
    told = calls.ask("efs", "DescribeFileSystems")["FileSystems"]
    return {str(one["FileSystemId"]) for one in told}


def test_the_master_signals_and_down_leaves_the_file_system(calls: Calls) -> None:
    found = made(calls)
    signal(calls, found)
    assert ended(found) == "CREATE_COMPLETE"
    news = found.news()
    assert ("Network", "is made") in news
    assert found.news() == []
    state = found.state()
    assert state is not None
    assert state.tags["shoal:id"] == ID
    secret = {"SecretId": f"{found.name}-{ID}"}
    # ministack makes it, and ignores what is to be left out of it.
    told = calls.ask("secretsmanager", "GetSecretValue", **secret)
    assert len(told["SecretString"]) == 64
    kept = state.outputs["FileSystem"]
    assert kept in files(calls)
    steps: list[tuple[str, str]] = []
    Stack(calls, state.id).delete(lambda name, step: steps.append((name, step)))
    assert found.state() is None
    assert kept in files(calls)
    with pytest.raises(ClusterError):
        calls.ask("secretsmanager", "GetSecretValue", **secret)
    Stack(calls, state.id).delete()  # again, with nothing to do


def test_a_reason_reaches_the_user_and_nothing_is_left(calls: Calls) -> None:
    before = files(calls)
    found = made(calls)
    reason = "Python 3.11 cannot be installed on this image"
    signal(calls, found, reason)
    assert ended(found) == "ROLLBACK_COMPLETE"
    assert any(reason in why for why in found.failures())
    assert files(calls) == before
    found.delete()
    assert found.state() is None


def test_a_master_that_says_nothing_ends_the_wait(calls: Calls) -> None:
    found = made(calls, wait_s=2)
    assert ended(found) == "ROLLBACK_COMPLETE"
    assert any("MasterIsUp" in why for why in found.failures())


def following(
    calls: Calls, found: Stack, folder: Path, clock: Clock, tell: Tell = _nothing
) -> Following:
    """What `up` does once the stack is asked for."""
    asked = spec(name=found.name.removeprefix("shoal-"))
    state = ClusterState.new("aws", asked, "jax").model_copy(update={"id": ID})
    acquisition = Acquisition(state, ClusterStore(str(folder)), tell)
    bucket = f"shoal-{found.name}"
    calls.ask("s3", "CreateBucket", Bucket=bucket)
    place = Place(id=ID, name=asked.name, account="000000000000", bucket=bucket)
    return Following(asked, acquisition, calls, place, Stack(calls, found.name), clock)


def test_a_stack_that_somebody_deletes_ends_the_wait_of_up(
    calls: Calls, tmp_path: Path
) -> None:
    found, clock = made(calls), Clock()

    def sleep(seconds: float) -> None:
        calls.ask("cloudformation", "DeleteStack", StackName=found.name)
        clock.sleep(seconds)

    wait = following(calls, found, tmp_path, Clock(sleep=sleep))
    with pytest.raises(ProvisionError, match=r"(was deleted|DELETE_)") as refused:
        wait.run()
    assert f"the stack {found.name} " in str(refused.value)
    assert ended(found) == "gone"


@pytest.mark.parametrize(
    ("said", "is_final"),
    [
        ("You have requested more vCPU capacity than your current vCPU limit", True),
        ("We currently do not have sufficient m5.xlarge capacity", False),
    ],
)
def test_a_master_that_is_not_launched_is_told_before_the_wait_is_over(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    said: str, is_final: bool,
) -> None:  # fmt: skip
    """The stand-in launches all machines: the test tells the group's activities."""
    ask, slept = Calls.ask, list[float]()

    def answered(self: Calls, service: str, operation: str, **request: Any) -> Any:
        if operation != "DescribeScalingActivities":
            return ask(self, service, operation, **request)
        assert "Masters" in request["AutoScalingGroupName"]
        return {"Activities": [{"StatusCode": "Failed", "StatusMessage": said}]}

    monkeypatch.setattr(Calls, "ask", answered)
    found, clock, told = made(calls), Clock(), list[tuple[str, str]]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if ("Masters", f"is not launched: {said}") in told:
            raise KeyboardInterrupt
        clock.sleep(seconds)

    wait = following(
        calls, found, tmp_path, Clock(sleep=sleep),
        lambda name, step: told.append((name, step)),
    )  # fmt: skip
    if is_final:
        with pytest.raises(ProvisionError, match="launches no master") as refused:
            wait.run()
        assert said in str(refused.value)
    else:  # it may come: `up` waits, and says why it is not there
        with pytest.raises(KeyboardInterrupt):
            wait.run()
    Stack(calls, found.name).delete()


def test_the_end_is_a_schedule_that_deletes_the_stack(calls: Calls) -> None:
    """The stand-in keeps schedules, and does not carry them out: the test does."""
    found = made(calls, end_at="2099-01-02T03:04:05")
    signal(calls, found)
    assert ended(found) == "CREATE_COMPLETE"
    state = found.state()
    assert state is not None
    names = calls.ask("scheduler", "ListSchedules")["Schedules"]
    told = [calls.ask("scheduler", "GetSchedule", Name=one["Name"]) for one in names]
    [end] = [one for one in told if state.id in one["Target"]["Input"]]
    assert end["ScheduleExpression"] == "at(2099-01-02T03:04:05)"
    service, operation = re.findall(r"aws-sdk:(\w+):(\w+)$", end["Target"]["Arn"])[0]
    assert (service, operation) == ("cloudformation", "deleteStack")
    arguments = json.loads(end["Target"]["Input"])
    assert arguments["RoleARN"] == end["Target"]["RoleArn"]
    calls.ask(service, "DeleteStack", StackName=arguments["StackName"])
    assert ended(found) == "gone"
