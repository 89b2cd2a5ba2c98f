"""The life of a cluster on AWS through the command line, over HTTP, against moto.

The credentials may do what `shoal cluster policy` prints, and nothing else.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.clusters.aws import leftovers
from shoal.clusters.aws.policy import calls_of
from shoal.runs.store import create
from tests.aws.conftest import Cloud
from tests.clusters.aws_files import spec

pytestmark = [pytest.mark.aws, pytest.mark.slow, pytest.mark.process]


def test_up_gives_a_cluster_and_down_leaves_what_it_says(
    cloud: Cloud, file: Path, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    cloud.give_profile("research", monkeypatch)
    file.write_text(json.dumps({**json.loads(file.read_text()), "profile": "research"}))
    done = cloud.shoal("cluster", "up", file, "--yes")
    assert done.exit_code == 0, done.output
    assert "An hour costs" in done.output
    assert "prod: 3 of 3 hosts run, the head is prod-master" in done.output
    assert "it ends by itself at" in done.output
    assert "It took " in done.stderr
    state = cloud.state()
    assert [node.address for node in state.nodes] == [
        "prod-master", "prod-worker1", "prod-worker2",
    ]  # fmt: skip
    runs = f"s3://{state.facts['bucket']}/runs"
    assert state.runs == runs
    with create(runs, "higgs") as run:  # with the profile of the file
        assert run.id in cloud.shoal("runs", "--root", runs).output
    secret = cloud.client("secretsmanager").get_secret_value(
        SecretId=f"shoal-prod-{state.id}"
    )
    assert state.token == secret["SecretString"]
    assert re.fullmatch("[0-9a-f]{64}", state.token)
    join = cloud.client("s3").get_object(
        Bucket=str(state.facts["bucket"]), Key=f"clusters/prod/{state.id}/join.json"
    )
    assert state.token.encode() not in join["Body"].read()
    config = (Path(file).parent / "known" / "prod.ssh").read_text()
    assert config.count("ProxyJump prod-master") == 2
    assert config.count("StrictHostKeyChecking yes") == 3
    keys = (Path(file).parent / "known" / "prod.known_hosts").read_text()
    assert keys.count("ssh-ed25519") == 3

    resources = file.parent / "resources"
    told = cloud.shoal("cluster", "status", "prod", "--resource-file", resources)
    assert "prod-worker2" in told.output
    ids, addresses = (line.split() for line in resources.read_text().splitlines())
    known = {one["InstanceId"]: one["PrivateIpAddress"] for one in cloud.instances()}
    assert [known[one] for one in ids] == addresses
    assert len(addresses) == 3
    listed = json.loads(cloud.shoal("cluster", "list", "--json").stdout)
    assert (listed[0]["provider"], listed[0]["ends"][:2]) == ("aws", "20")
    capfd.readouterr()
    cloud.shoal("cluster", "ssh", "prod", "1", "--", "ls")
    assert capfd.readouterr().out.split()[-2:] == ["prod-worker1", "ls"]

    again = cloud.shoal("cluster", "up", file, "--yes")
    assert "3 of 3 hosts run" in again.output
    assert len(cloud.instances()) == 3

    ended = cloud.shoal("cluster", "down", "prod")
    assert ended.exit_code == 0, ended.output
    assert "higgs" in cloud.shoal("runs", "--root", runs).output
    assert "machines given back to the provider aws" in ended.output
    assert "The bucket shoal-123456789012-us-east-1 stays" in ended.output
    assert "The role shoal-end" in ended.output
    assert cloud.names == []
    assert cloud.instances() == []
    assert "not known here" in cloud.shoal("cluster", "down", "prod").output

    allowed = {call.name for call in calls_of(spec())}
    assert set(cloud.called) - allowed == set(), "a call that --dry-run does not tell"


def test_a_price_must_be_agreed_to(cloud: Cloud, file: Path) -> None:
    done = cloud.shoal("cluster", "up", file)
    assert done.exit_code == 2
    assert "the price is not confirmed" in done.output
    assert (cloud.names, cloud.instances()) == ([], [])
    assert "cloudformation:CreateStack" not in cloud.called


def test_prices_of_today_are_asked_and_the_table_is_behind_them(
    cloud: Cloud, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.write("prices", {"m5.xlarge": 7.0})  # m5.large is not told
    done = cloud.shoal("cluster", "up", file)
    assert "the price is not confirmed" in done.output
    assert "An hour costs 7." in done.output
    told = cloud.shoal("cluster", "cost", file, "--ask").output
    assert "from AWS; for m5.large list prices of 20" in told
    assert "7.00 $" in told
    assert "An hour costs 0." in cloud.shoal("cluster", "cost", file).output
    cloud.write("prices", {"m5.xlarge": 70.0, "m5.large": 70.0})
    done = cloud.shoal("cluster", "up", file, "--yes")
    assert done.exit_code == 2
    assert "does not pay for an hour" in done.output
    assert (cloud.names, cloud.instances()) == ([], [])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIANOBODY")
    told = cloud.shoal("cluster", "cost", file, "--ask", "--json").stdout
    assert json.loads(told)["parts"][0]["spot"] is None


CAPACITY = "We currently do not have sufficient m5.large capacity"


def test_fewer_workers_go_on_and_the_group_is_lowered(cloud: Cloud, file: Path) -> None:
    cloud.write("capacity", 2)
    cloud.write("activities", [CAPACITY])
    done = cloud.shoal("cluster", "up", file, "--yes")
    assert done.exit_code == 0, done.output
    assert f"1 of 2 workers came: {CAPACITY}" in done.output
    assert "2 of 2 hosts run" in done.output
    groups = cloud.client("autoscaling").describe_auto_scaling_groups()
    [workers] = [
        one for one in groups["AutoScalingGroups"]
        if "Workers" in one["AutoScalingGroupName"]
    ]  # fmt: skip
    assert workers["DesiredCapacity"] == 1
    assert 60 <= cloud.slept < 120  # it waited for more before
    told = cloud.shoal("cluster", "status", "prod").output
    assert f"1 of 2 workers came: {CAPACITY}" in told
    assert cloud.shoal("cluster", "down", "prod").exit_code == 0


def test_below_the_minimum_reasons_are_told_and_nothing_is_left(
    cloud: Cloud, file: Path
) -> None:
    cloud.write("capacity", 1)
    cloud.write("activities", [CAPACITY])
    done = cloud.shoal("cluster", "up", file, "--yes")
    assert done.exit_code == 1
    assert f"0 of 2 workers of the cluster prod are ready: {CAPACITY}" in done.output
    assert "Still running" not in done.output
    assert (cloud.names, cloud.instances()) == ([], [])


def test_a_failed_cluster_is_kept_on_request(cloud: Cloud, file: Path) -> None:
    cloud.write("capacity", 1)
    cloud.write("activities", ["You are not authorized to use this image"])
    done = cloud.shoal("cluster", "up", file, "--yes", "--keep-failed")
    assert done.exit_code == 1
    assert "Still running: the stack shoal-prod in us-east-1; it costs" in done.output
    assert (cloud.names, len(cloud.instances())) == (["prod"], 1)
    assert cloud.shoal("cluster", "down", "prod").exit_code == 0
    assert (cloud.names, cloud.instances()) == ([], [])


def test_ctrl_c_keeps_what_goes_on_and_the_same_command_follows_it(
    cloud: Cloud, file: Path
) -> None:
    def broken_off(instance: dict[str, object]) -> str:
        raise KeyboardInterrupt

    cloud.boots = broken_off
    done = cloud.shoal("cluster", "up", file, "--yes")
    assert done.exit_code == 130, done.output
    assert "Still running: the stack shoal-prod in us-east-1" in done.output
    assert "ends by itself at 20" in done.output
    assert "prod is half up" in done.output
    assert (cloud.names, len(cloud.instances())) == (["prod"], 3)
    cloud.boots = lambda instance: "ready"
    done = cloud.shoal("cluster", "up", file)  # nothing new is paid for
    assert done.exit_code == 0, done.output
    assert "3 of 3 hosts run" in done.output
    assert cloud.called.count("cloudformation:CreateStack") == 1
    assert cloud.shoal("cluster", "down", "prod").exit_code == 0


def test_a_failure_that_will_not_pass_ends_the_wait_at_once(
    cloud: Cloud, file: Path
) -> None:
    cloud.write("capacity", 1)
    quota = "You have requested more vCPU capacity than your current vCPU limit of 2"
    cloud.write("activities", [quota])
    done = cloud.shoal("cluster", "up", file, "--yes")
    assert quota in done.output
    assert cloud.slept < 120
    assert cloud.names == []


def test_a_node_that_cannot_boot_says_why_and_is_replaced(
    cloud: Cloud, file: Path
) -> None:
    first: list[str] = []

    def boots(instance: dict[str, object]) -> str:
        if {"Key": "shoal:role", "Value": "worker"} in instance["Tags"]:  # type: ignore[operator]
            first.append(str(instance["InstanceId"]))
        return "failed" if instance["InstanceId"] in first[:1] else "ready"

    cloud.boots = boots
    done = cloud.shoal("cluster", "up", file, "--yes")
    assert done.exit_code == 0, done.output
    why = "could not boot, and has left: the file system cannot be mounted"
    assert f"the worker {first[0]} {why}" in done.output
    assert "3 of 3 hosts run" in done.output
    left = [one["InstanceId"] for one in cloud.instances()]
    assert len(left) == 3
    assert first[0] not in left
    assert cloud.shoal("cluster", "down", "prod").exit_code == 0


def test_the_same_reason_three_times_is_permanent(cloud: Cloud, file: Path) -> None:
    cloud.boots = lambda instance: (
        "ready" if {"Key": "shoal:role", "Value": "master"} in instance["Tags"]
        else "failed"
    )  # fmt: skip
    done = cloud.shoal("cluster", "up", file, "--yes")
    assert done.exit_code == 1
    why = "the file system cannot be mounted"
    assert f"0 of 2 workers of the cluster prod are ready: {why}" in done.output
    assert cloud.slept < 60
    assert (cloud.names, cloud.instances()) == ([], [])


def test_another_file_is_refused_with_the_differences(cloud: Cloud, file: Path) -> None:
    assert cloud.shoal("cluster", "up", file, "--yes").exit_code == 0
    told = json.loads(file.read_text())
    told["workers"]["count"] = 3
    file.write_text(json.dumps(told))
    done = cloud.shoal("cluster", "up", file, "--yes")
    assert done.exit_code == 2
    assert "was made from a file with other values:\n  workers: " in done.output
    assert len(cloud.instances()) == 3
    assert cloud.shoal("cluster", "down", "prod").exit_code == 0


def test_a_name_that_another_machine_has_is_refused(
    cloud: Cloud, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cloud.shoal("cluster", "up", file, "--yes").exit_code == 0
    with monkeypatch.context() as patch:
        patch.setenv("SHOAL_CLUSTERS", str(file.parent / "other"))
        done = cloud.shoal("cluster", "up", file, "--yes")
        assert done.exit_code == 2
        assert "the stack shoal-prod in us-east-1 is not of this cluster" in done.output
        assert len(cloud.instances()) == 3
        done = cloud.shoal("cluster", "down", "prod", "--hosts", file)
        assert done.exit_code == 0, done.output
    assert cloud.instances() == []


def test_another_machine_gets_to_know_a_cluster_and_ends_it(
    cloud: Cloud, file: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert cloud.shoal("cluster", "up", file, "--yes").exit_code == 0
    here = cloud.state()
    [told] = [
        cloud.client("s3").get_object(Bucket=str(here.facts["bucket"]), Key=one["Key"])
        for one in cloud.client("s3").list_objects_v2(
            Bucket=str(here.facts["bucket"]), Prefix=f"clusters/prod/{here.id}/state"
        )["Contents"]
    ]
    published = told["Body"].read().decode()
    assert here.token not in published
    assert "prod.ssh" not in published  # nothing of the other machine
    monkeypatch.setenv("SHOAL_CLUSTERS", str(file.parent / "other"))
    words = ("cluster", "connect", "prod", "--region", "us-east-1")
    done = cloud.shoal(*words)
    assert done.exit_code == 0, done.output
    assert "prod is known here: 3 nodes, the head is prod-master" in done.output
    there = cloud.state()
    assert (there.nodes, there.port, there.id) == (here.nodes, here.port, here.id)
    assert there.token == ""  # the secret is read by `up` alone
    assert there.hosts is not None
    assert str(file.parent / "other" / "prod.ssh") in there.hosts.ssh
    capfd.readouterr()
    assert cloud.shoal("cluster", "ssh", "prod", "1", "--", "ls").exit_code == 0
    assert capfd.readouterr().out.split()[-2:] == ["prod-worker1", "ls"]
    assert "prod-worker2" in cloud.shoal("cluster", "status", "prod").output
    assert "3 of 3 hosts run" in cloud.shoal("cluster", "up", file).output
    assert cloud.state().token == here.token
    assert cloud.called.count("cloudformation:CreateStack") == 1
    assert cloud.shoal(*words).exit_code == 0  # again, to no effect
    assert cloud.state().token == here.token
    done = cloud.shoal("cluster", "down", "prod")
    assert done.exit_code == 0, done.output
    assert cloud.instances() == []
    done = cloud.shoal(*words)
    assert done.exit_code == 2
    assert "no cluster prod is up in us-east-1" in done.output


def test_a_cluster_that_has_told_nothing_can_be_ended_by_its_region(
    cloud: Cloud, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cloud.shoal("cluster", "up", file, "--yes").exit_code == 0
    state = cloud.state()
    cloud.client("s3").put_object(
        Bucket=str(state.facts["bucket"]), Key=f"clusters/prod/{state.id}/state.json",
        Body=b'{"hosts": {"ssh": "rm -rf /"}}',
    )  # fmt: skip
    monkeypatch.setenv("SHOAL_CLUSTERS", str(file.parent / "other"))
    done = cloud.shoal("cluster", "connect", "prod", "--region", "us-east-1")
    assert done.exit_code == 1
    assert "state.json is not what `up` has written" in done.output
    assert cloud.names == []
    done = cloud.shoal("cluster", "down", "prod", "--region", "us-east-1")
    assert done.exit_code == 0, done.output
    assert (cloud.instances(), cloud.names) == ([], [])


def test_up_that_does_not_wait_is_followed_later(cloud: Cloud, file: Path) -> None:
    done = cloud.shoal("cluster", "up", file, "--yes", "--detach")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("arn:aws:cloudformation:us-east-1:")
    assert len(done.stdout.splitlines()) == 1
    assert "it ends by itself at 20" in done.stderr
    assert f"Follow it: shoal cluster up {file}" in done.stderr
    assert (cloud.names, cloud.slept) == (["prod"], 0.0)
    assert len(cloud.instances()) == 3
    assert "prod" in cloud.shoal("cluster", "list").output
    done = cloud.shoal("cluster", "up", file)
    assert "3 of 3 hosts run" in done.output
    assert cloud.called.count("cloudformation:CreateStack") == 1
    assert cloud.shoal("cluster", "down", "prod").exit_code == 0


def test_a_replaced_worker_is_met_by_every_command(
    cloud: Cloud, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cloud.shoal("cluster", "up", file, "--yes").exit_code == 0
    names = cloud.state().facts["names"]
    assert isinstance(names, dict)
    [gone] = [one for one, name in names.items() if name == "prod-worker1"]
    cloud.run_as_node(
        "autoscaling", "terminate-instance-in-auto-scaling-group", "--instance-id",
        gone, "--no-should-decrement-desired-capacity",
    )  # fmt: skip
    assert len(cloud.instances()) == 3  # the group has started another
    cloud.sleep(1)  # which boots
    found = json.loads(cloud.shoal("cluster", "status", "prod", "--json").stdout)
    assert [(one["number"], one["address"]) for one in found] == [
        (0, "prod-master"), (2, "prod-worker2"), (None, "prod-worker3"),
    ]  # fmt: skip
    assert "takes it in" in found[2]["why"]
    config = (file.parent / "known" / "prod.ssh").read_text()
    assert "Host prod-worker3" in config
    assert "Host prod-worker1" not in config
    done = cloud.shoal("cluster", "up", file)
    assert "3 of 3 hosts run" in done.output
    with monkeypatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.delenv(name)
        done = cloud.shoal("cluster", "status", "prod", "--offline")
        assert done.exit_code == 0, done.output
        assert "prod-worker3" in done.output
        assert "prod" in cloud.shoal("cluster", "list").output
        done = cloud.shoal("cluster", "status", "prod")
        assert "prod is shown as it was last seen: there are no credentials" in (
            done.output
        )
        assert "prod-worker3" in done.output
    assert cloud.shoal("cluster", "down", "prod").exit_code == 0


def test_storage_is_removed_when_its_name_is_typed(
    cloud: Cloud, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # moto refuses the signature of every call of EFS: test_leftovers.py has that part.
    monkeypatch.setattr(leftovers, "_file_systems", lambda _calls, _name: ())
    assert cloud.shoal("cluster", "up", file, "--yes").exit_code == 0
    bucket, s3 = str(cloud.state().facts["bucket"]), cloud.client("s3")
    s3.put_object(Bucket=bucket, Key="runs/2026-a/events", Body=b"kept")
    words = ("cluster", "down", "prod", "--delete-storage")
    done = cloud.shoal(*words, typed="prdo\n")
    assert done.exit_code == 2
    assert "'prdo' was typed. Expected 'prod'" in done.output
    assert len(cloud.instances()) == 3
    done = cloud.shoal(*words, typed="prod\n")
    assert done.exit_code == 0, done.output
    assert f"objects of clusters/prod in the bucket {bucket} are removed" in done.output
    left = [one["Key"] for one in s3.list_objects_v2(Bucket=bucket)["Contents"]]
    assert "runs/2026-a/events" in left
    assert [key for key in left if not key.startswith("runs/")] == []
    done = cloud.shoal(*words, typed="prod\n")
    assert done.exit_code == 2
    assert "does not tell where its storage is" in done.output
    done = cloud.shoal(*words, "--region", "us-east-1", typed="prod\n")
    assert done.exit_code == 0, done.output
    assert f"0 objects of clusters/prod in the bucket {bucket}" in done.output


def test_health_tells_boot_mount_checks_services_and_the_end(
    cloud: Cloud, file: Path
) -> None:
    assert cloud.shoal("cluster", "up", file, "--yes").exit_code == 0
    done = cloud.shoal("cluster", "health", "prod", "--json")
    found = {
        node["address"]: {one["name"]: one["found"] for one in node["findings"]}
        for node in json.loads(done.stdout)
    }
    head, worker = found["prod-master"], found["prod-worker1"]
    assert (head["boot"], head["service"], head["mount"]) == (
        "ready", "active", "mounted",
    )  # fmt: skip
    assert head["EC2"] == "ok"
    assert head["ends"].startswith("in ")
    assert (worker["mount"], "ends" in worker) == ("not mounted", False)
    shown = cloud.shoal("cluster", "health", "prod").output
    assert "run `sudo mount -a` there" in shown
    assert cloud.shoal("cluster", "down", "prod").exit_code == 0
    allowed = {call.name for call in calls_of(spec())}
    assert set(cloud.called) - allowed == set()


def test_stacks_of_other_machines_are_listed(
    cloud: Cloud, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cloud.shoal("cluster", "up", file, "--yes").exit_code == 0
    words = ("cluster", "list", "--all-regions", "--json")
    [found] = json.loads(cloud.shoal(*words).stdout)
    assert (found["name"], found["region"]) == ("prod", "us-east-1")
    assert (found["end"][:2], found["is_known"]) == ("20", True)
    monkeypatch.setenv("SHOAL_CLUSTERS", str(file.parent / "other"))
    [found] = json.loads(cloud.shoal(*words).stdout)
    assert not found["is_known"]
    assert "us-east-1" in cloud.shoal(*words[:-1]).output
    cloud.write("closed", ["eu-west-1"])
    done = cloud.shoal(*words)
    assert (done.exit_code, json.loads(done.stdout)) == (1, [found])
    assert "cloudformation:DescribeStacks in eu-west-1" in done.stderr
    assert "explicit deny in a service control policy" in done.stderr
    cloud.write("closed", [])
    done = cloud.shoal("cluster", "down", "prod", "--hosts", file)
    assert done.exit_code == 0, done.output
    assert "No cluster in any region" in cloud.shoal(*words[:-1]).output


def test_logs_are_there_while_nodes_boot_and_after_down(
    cloud: Cloud, file: Path
) -> None:
    assert cloud.shoal("cluster", "up", file, "--yes").exit_code == 0
    state = cloud.state()
    names = state.facts["names"]
    assert isinstance(names, dict)
    for instance, alias in names.items():
        cloud.client("s3").put_object(
            Bucket=str(state.facts["bucket"]), Body=f"{alias} boots\nready\n".encode(),
            Key=f"clusters/prod/{state.id}/logs/{instance}/boot.log",
        )  # fmt: skip
    by_name = {alias: instance for instance, alias in names.items()}
    told = cloud.shoal("cluster", "logs", "prod").output
    for alias, instance in by_name.items():
        assert f"{instance} boot.log: {alias} boots" in told
    one = cloud.shoal("cluster", "logs", "prod", "1").output.splitlines()
    worker = by_name["prod-worker1"]
    assert one == [
        f"{worker} boot.log: prod-worker1 boots", f"{worker} boot.log: ready",
    ]  # fmt: skip
    lists = cloud.client("s3").get_object(
        Bucket=str(state.facts["bucket"]), Key=f"clusters/prod/{state.id}/cluster.json"
    )
    nodes = json.loads(lists["Body"].read())["nodes"]
    assert [node["instance"] for node in nodes] == [
        by_name[alias] for alias in ("prod-master", "prod-worker1", "prod-worker2")
    ]
    words = [sys.executable, "-m", "shoal", "cluster", "logs", "prod", "2", "-f"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        last = by_name["prod-worker2"]
        began = [following.stdout.readline() for _ in range(2)]
        assert began[0] == f"{last} boot.log: prod-worker2 boots\n"
        cloud.client("s3").put_object(
            Bucket=str(state.facts["bucket"]), Body=b"prod-worker2 boots\nready\nup\nh",
            Key=f"clusters/prod/{state.id}/logs/{last}/boot.log",
        )  # fmt: skip
        assert following.stdout.readline() == f"{last} boot.log: up\n"
        following.send_signal(signal.SIGINT)
        assert following.stdout.read() == ""
        assert following.wait() == 130
    assert cloud.shoal("cluster", "down", "prod").exit_code == 0
    done = cloud.shoal("cluster", "logs", "prod")
    assert (done.exit_code, "unknown cluster" in done.output) == (2, True)
    told = cloud.shoal("cluster", "logs", "prod", "--hosts", file).output
    assert f"{worker} boot.log: prod-worker1 boots" in told


def test_actions_that_are_denied_are_told_before_money(
    cloud: Cloud, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cloud.users["bob"].items():
        monkeypatch.setenv(name.upper(), value)
    done = cloud.shoal("cluster", "up", file, "--yes")
    assert done.exit_code == 1, done.output
    assert "may not call ec2:CreateVpc, ec2:RunInstances in us-east-1" in done.output
    assert "Expected a policy with ec2:CreateVpc, ec2:RunInstances" in done.output
    assert "`shoal cluster policy FILE`" in done.output
    made = {"cloudformation:CreateStack", "s3:CreateBucket", "iam:CreateRole"}
    assert made & set(cloud.called) == set()


def test_dry_runs_make_nothing(cloud: Cloud, file: Path) -> None:
    ec2 = cloud.client("ec2")
    before = len(ec2.describe_vpcs()["Vpcs"])
    assert "is not confirmed" in cloud.shoal("cluster", "up", file).output
    assert {"ec2:CreateVpc", "ec2:RunInstances"} < set(cloud.called)
    assert len(ec2.describe_vpcs()["Vpcs"]) == before
    assert ec2.describe_launch_templates()["LaunchTemplates"] == []
    assert cloud.instances() == []


def test_a_session_that_ends_while_up_waits_is_renewed_by_a_login(
    cloud: Cloud, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.give_profile("research", monkeypatch)
    file.write_text(json.dumps({**json.loads(file.read_text()), "profile": "research"}))
    ended = cloud.users["ann"]["aws_access_key_id"]
    turns: list[str] = []

    def boots(instance: dict[str, object]) -> str:
        turns.append(str(instance["InstanceId"]))
        if len(turns) == 3:  # in the middle of the wait
            cloud.users["ann"] = cloud.users["ann again"]
            cloud.log_in("research")
            cloud.write("expired", [ended])
        return "booting" if len(turns) <= 6 else "ready"

    cloud.boots = boots
    done = cloud.shoal("cluster", "up", file, "--yes")
    assert done.exit_code == 0, done.output
    assert "3 of 3 hosts run" in done.output
    assert cloud.shoal("cluster", "down", "prod").exit_code == 0


def test_a_session_that_ends_while_up_waits_keeps_the_cluster_known(
    cloud: Cloud, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.give_profile("research", monkeypatch)
    file.write_text(json.dumps({**json.loads(file.read_text()), "profile": "research"}))
    ended = cloud.users["ann"]

    def boots(instance: dict[str, object]) -> str:
        cloud.users["ann"] = cloud.users["ann again"]
        cloud.write("expired", [ended["aws_access_key_id"]])
        return "ready"

    cloud.boots = boots
    done = cloud.shoal("cluster", "up", file, "--yes")
    assert done.exit_code == 1, done.output
    assert "aws sso login --profile research" in done.output
    assert "Still running: the stack shoal-prod" in done.output
    assert "The same command follows it; `shoal cluster down prod` ends" in done.output
    assert "released" not in done.output
    assert cloud.names == ["prod"]
    cloud.log_in("research")
    done = cloud.shoal("cluster", "up", file)
    assert "3 of 3 hosts run" in done.output
    assert cloud.called.count("cloudformation:CreateStack") == 1
    assert cloud.shoal("cluster", "down", "prod").exit_code == 0


WRONG = [
    ({"workers": {"type": "zz9.large"}}, "zz9.large does not exist, or is not offered"),
    ({"workers": {"count": 40, "type": "m5.4xlarge"}}, "the quota 'Running On-Demand"),
    ({"access": {"key": "bob"}}, "the key pair 'bob' is not in us-east-1"),
    ({"access": {"ssh_from": ["0.0.0.0/0"]}}, "which is everybody"),
    ({"image": "ami-0123456789abcdef0"}, "the image ami-0123456789abcdef0 is not in"),
    ({"region": "ap-east-1"}, "does not exist, or is not enabled in the account"),
    ({"storage": {"bucket": "of-somebody-else"}}, "is not of the account 123456789012"),
    ({"storage": {"shared": "fs-0123"}}, "fs-0123 exists, and the network is to be"),
    (
        {"network": {"vpc": "vpc-1", "public_subnet": "subnet-1",
                     "private_subnet": "subnet-2"}},
        "is not in us-east-1",
    ),
    ({"workers": {"type": "m6g.large"}}, "processors of different kinds"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "said"), WRONG)
def test_what_cannot_work_is_told_before_money(
    cloud: Cloud, file: Path, changed: dict[str, dict[str, object]], said: str
) -> None:
    told = json.loads(file.read_text())
    for name, value in changed.items():
        told[name] = (
            {**told.get(name, {}), **value} if isinstance(value, dict) else value
        )
    told["limits"]["budget_dollars"] = "none"
    file.write_text(json.dumps(told))
    done = cloud.shoal("cluster", "up", file)
    assert done.exit_code != 0
    assert said in done.output
    assert "cloudformation:CreateStack" not in cloud.called


def test_a_bucket_of_another_region_is_told_before_money(
    cloud: Cloud, file: Path
) -> None:
    cloud.client("s3").create_bucket(
        Bucket="shoal-elsewhere",
        CreateBucketConfiguration={"LocationConstraint": "eu-west-1"},
    )
    told = json.loads(file.read_text())
    told["storage"] = {**told.get("storage", {}), "bucket": "shoal-elsewhere"}
    file.write_text(json.dumps(told))
    done = cloud.shoal("cluster", "up", file, "--yes")
    assert done.exit_code != 0
    said = "the bucket shoal-elsewhere is in eu-west-1, and the cluster in us-east-1"
    assert said in done.output
    assert "cloudformation:CreateStack" not in cloud.called


def test_wrong_credentials_are_told_as_such(
    cloud: Cloud, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIANOBODY")
    done = cloud.shoal("cluster", "up", file, "--yes")
    assert done.exit_code == 1
    assert "AWS does not know the credentials of the environment" in done.output
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    done = cloud.shoal("cluster", "up", file, "--yes")
    assert "there are no credentials" in done.output
