"""Members, fewer workers than asked, ways in, checks and errors: all pure."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.clusters.aws import checks
from shoal.clusters.aws.calls import error_of
from shoal.clusters.aws.choices import image_names, my_address
from shoal.clusters.aws.keys import key_of
from shoal.clusters.aws.members import Member, aliases_of, members_of
from shoal.clusters.aws.node_findings import end_finding, findings_of
from shoal.clusters.aws.provider import Aws
from shoal.clusters.aws.ways import known_hosts_of, ssh_command, ssh_config
from shoal.clusters.aws.ways_in import hosts_of, names_in, refreshed
from shoal.clusters.cluster_state import ClusterState, NodeState
from shoal.errors import CredentialsError, PlanError, ProvisionError
from tests.clusters.aws_files import spec

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDRKzmL5O3qSBhwsBFbmVbqUWE6SkzRxfUVUxUuHRpzx"


def instance(number: int, role: str = "worker", **more: Any) -> dict[str, Any]:
    return {
        "InstanceId": f"i-{number:08x}", "PrivateIpAddress": f"10.0.0.{number}",
        "State": {"Name": "running"}, "LaunchTime": f"2026-01-0{number}",
        "Tags": [{"Key": "shoal:role", "Value": role}], **more,
    }  # fmt: skip


def said(number: int, role: str = "worker", **more: Any) -> bytes:
    told = {
        "state": "ready", "instance": f"i-{number:08x}", "address": f"10.0.0.{number}",
        "role": role, "keys": [KEY], **more,
    }  # fmt: skip
    return json.dumps(told).encode()


def member(number: int, role: str = "worker", **more: Any) -> Member:
    told = {number: said(number, role, **more)} if more.pop("heard", True) else {}
    objects = {f"i-{n:08x}": text for n, text in told.items()}
    return members_of([instance(number, role)], objects)[0][0]


def test_members_are_what_ec2_says_the_master_first() -> None:
    gone = instance(3, State={"Name": "terminated"})
    found, wrong = members_of(
        [
            instance(2),
            gone,
            instance(1),
            instance(4, "master", PublicIpAddress="54.1.1.1"),
        ],
        {"i-00000001": said(1), "i-00000004": said(4, "master"), "i-00000003": said(3)},
    )
    assert [one.private for one in found] == ["10.0.0.4", "10.0.0.1", "10.0.0.2"]
    assert [one.is_ready for one in found] == [True, True, False]
    assert (found[0].public, found[2].boot, wrong) == ("54.1.1.1", "unheard", [])
    told = said(3, state="failed", reason="no disk")
    assert members_of([gone], {"i-00000003": told}) == (
        [], ["the worker i-00000003 could not boot, and has left: no disk"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{", "is broken"),
        (b"[]", "is broken"),
        (said(1, state="root"), "is broken"),
        (said(1, address="10.0.0.66"), "says it is i-00000001 10.0.0.66 worker"),
        (said(1, "master"), "10.0.0.1 master, and EC2 says i-00000001 10.0.0.1 worker"),
    ],
)
def test_a_broken_or_forged_object_is_ignored_and_named(
    content: bytes, told: str
) -> None:
    [found], [wrong] = members_of([instance(1)], {"i-00000001": content})
    assert (found.is_ready, found.keys) == (False, ())
    assert told in wrong


def test_a_name_never_stands_for_two_machines() -> None:
    found, _ = members_of([instance(1, "master"), instance(2), instance(3)], {})
    names = aliases_of("prod", found, {})
    assert list(names.values()) == ["prod-master", "prod-worker1", "prod-worker2"]
    later, _ = members_of([instance(5, "master"), instance(3), instance(4)], {})
    again = aliases_of("prod", later, names)
    assert again["i-00000003"] == "prod-worker2"
    assert again["i-00000004"] == "prod-worker3"
    assert again["i-00000005"] == "prod-master-00000005"


MASTER = member(9, "master")


def test_workers_are_reached_through_the_master_and_keys_are_known() -> None:
    found = [MASTER, member(1)]
    names = aliases_of("prod", found, {})
    path = Path("/home/ann/a b/prod.known_hosts")
    text = ssh_config(found, names, user="ec2-user", key="/k", known_hosts=path)
    assert text.count("StrictHostKeyChecking yes") == 2
    assert text.count("ProxyJump prod-master") == 1
    assert f'UserKnownHostsFile "{path}"' in text
    assert known_hosts_of(found) == f"i-00000009 {KEY}\ni-00000001 {KEY}\n"
    assert "BatchMode=yes" in ssh_command(Path("prod.ssh"))
    text = ssh_config(
        found, names, user="ubuntu", key="", known_hosts=path,
        session=("aws", "--region", "eu-west-1"),
    )  # fmt: skip
    assert "ProxyJump" not in text
    assert "aws --region eu-west-1 ssm start-session --target %h" in text


def test_a_forged_host_key_writes_no_second_line() -> None:
    evil = member(1, keys=["ssh-ed25519 AAAA\n* ssh-ed25519 BBBB", "@cert-authority x"])
    assert known_hosts_of([evil]) == ""


# --------------------------------------------------------------- what is known now


def known(*members: Member, folder: Path) -> ClusterState:
    """A cluster as its `up` has left it."""
    asked = spec(region="us-east-1")
    names = aliases_of("prod", members, {})
    facts = {"names": names, "login": "ec2-user", "bucket": "b", "stack": "shoal-prod"}
    hosts = hosts_of(asked, facts, members, folder)
    nodes = tuple(
        NodeState(number=n, address=names[one.instance], private=one.private)
        for n, one in enumerate(members)
    )
    state = ClusterState.new("aws", asked, "jax")
    update = {"facts": facts, "hosts": hosts, "nodes": nodes, "port": 6379}
    return state.model_copy(update=update)


def test_a_machine_with_another_address_is_found_again(tmp_path: Path) -> None:
    state = known(MASTER, member(1), member(2), folder=tmp_path)
    moved = replace(MASTER, public="54.9.9.9")
    now = refreshed(state, [moved, member(1), member(2)], tmp_path)
    assert now.nodes == state.nodes
    assert "HostName 54.9.9.9" in (tmp_path / "prod.ssh").read_text()


def test_a_replaced_worker_is_named_anew_and_the_lost_one_is_no_node(
    tmp_path: Path,
) -> None:
    state = known(MASTER, member(1), member(2), folder=tmp_path)
    now = refreshed(state, [MASTER, member(2), member(3)], tmp_path)
    assert [node.address for node in now.nodes] == ["prod-master", "prod-worker2"]
    assert now.hosts is not None
    assert [host.address for host in now.hosts.hosts] == [
        "prod-master", "prod-worker2", "prod-worker3",
    ]  # fmt: skip
    assert "Host prod-worker3" in (tmp_path / "prod.ssh").read_text()
    assert refreshed(now, [MASTER, member(2), member(3)], tmp_path) == now


def test_a_lost_master_stays_the_head_until_up_makes_another(tmp_path: Path) -> None:
    state = known(MASTER, member(1), folder=tmp_path)
    other = member(8, "master")
    now = refreshed(state, [other, member(1)], tmp_path)
    assert now.head == state.head
    now.way_to(now.head)  # it can be named, though not reached
    assert "Host prod-master\n" not in (tmp_path / "prod.ssh").read_text()
    assert "Host prod-master-00000008\n" in (tmp_path / "prod.ssh").read_text()


def test_a_cluster_without_machines_says_so(tmp_path: Path) -> None:
    state = known(MASTER, member(1), folder=tmp_path)
    now = refreshed(state, [], tmp_path)
    assert now.nodes == state.nodes
    assert "AWS has no machine of it any more" in Aws().notes(now)[0]
    back = refreshed(now, [MASTER, member(1)], tmp_path)
    assert "no machine" not in " ".join(Aws().notes(back))


@given(
    st.lists(
        st.tuples(
            st.sets(st.integers(1, 7)), st.sampled_from([None, 8, 9]), st.booleans()
        ),
        max_size=6,
    )
)
@settings(max_examples=60, deadline=None)
def test_whatever_machines_come_and_go(
    steps: list[tuple[set[int], int | None, bool]],
) -> None:
    """A name is of one machine for ever, and every node can be addressed."""
    with tempfile.TemporaryDirectory() as name:
        state = known(MASTER, member(1), member(2), folder=Path(name))
        whose: dict[str, str] = {}
        for workers, master, is_heard in steps:
            masters = [] if master is None else [member(master, "master")]
            found = [*masters, *(member(n, heard=is_heard) for n in sorted(workers))]
            state = refreshed(state, found, Path(name))
            assert state.nodes[0].address == "prod-master"
            for instance, alias in names_in(state.facts).items():
                assert whose.setdefault(alias, instance) == instance
            for node in state.nodes:
                state.way_to(node)
            assert ClusterState.model_validate_json(state.model_dump_json()) == state


# ------------------------------------------------------------------------ health


def test_what_is_wrong_with_a_machine_is_told_with_what_to_do() -> None:
    well = {"shoal-lists": "active", "shoal-agent": "active", "mount": "yes"}
    found = findings_of("prod", member(1), "ok", well)
    assert [(one.name, one.found, one.state) for one in found] == [
        ("boot", "ready", "good"), ("EC2", "ok", "good"),
        ("service", "active", "good"), ("mount", "mounted", "good"),
    ]  # fmt: skip
    failed = member(1, state="failed", reason="no Python")
    bad = {**well, "shoal-agent": "failed", "mount": "no"}
    found = findings_of("prod", failed, "impaired", bad)
    assert [one.found for one in found] == [
        "no Python", "impaired", "shoal-agent is failed", "not mounted",
    ]  # fmt: skip
    assert all(one.state == "wrong" and one.fix for one in found)
    assert [one.name for one in findings_of("prod", member(1), "", None)] == ["boot"]
    late = end_finding("2026-01-02T03:00:00", datetime(2026, 1, 2, 4, tzinfo=UTC))
    assert (late.state, late.found) == ("wrong", "since 2026-01-02T03:00:00 UTC")
    assert end_finding("", datetime.now(UTC)).found == "never"


# ------------------------------------------------------------------------ checks


def test_a_zone_that_offers_all_types_is_taken() -> None:
    offered = {"m5.large": ["a", "b", "c"], "g5.xlarge": ["c", "b"]}
    assert checks.common_zone(offered, "auto", "eu-west-1") == "b"
    assert checks.common_zone(offered, "c", "eu-west-1") == "c"
    with pytest.raises(PlanError, match=r"in zone a: m5\.large in a, b, c; g5\.xlarge"):
        checks.common_zone(offered, "a", "eu-west-1")
    with pytest.raises(PlanError, match="does not exist, or is not offered"):
        checks.common_zone({"x9.large": []}, "auto", "eu-west-1")
    with pytest.raises(PlanError, match="in one zone: a"):
        checks.common_zone({"a": ["x"], "b": ["y"]}, "auto", "eu-west-1")


def test_quotas_are_counted_in_vcpus_by_family() -> None:
    asked = spec()
    needed = checks.vcpus_needed(asked, {"m5.xlarge": 4, "g5.2xlarge": 8})
    assert needed == {"standard": 4, "g": 32}
    [fault] = checks.faults_of_quotas(needed, {"standard": 5.0, "g": 8.0}, "eu-west-1")
    assert "needs 32 vCPUs of the quota 'Running On-Demand G and VT" in fault
    assert "(L-DB2E81BA), and the account has 8 in eu-west-1" in fault
    assert checks.faults_of_quotas(needed, {}, "eu-west-1") == []


def test_an_image_must_fit() -> None:
    image = {
        "ImageId": "ami-1", "Name": "al2023", "Architecture": "arm64",
        "State": "deregistered", "RootDeviceName": "/dev/xvda",
        "BlockDeviceMappings": [
            {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 120}}
        ],
    }  # fmt: skip
    told = " ".join(checks.faults_of_image(spec(), image))
    for part in ("is deregistered", "is for arm64, and g5.2xlarge is x86_64",
                 "needs a disk of 120 GiB, and disk_gib is 100"):  # fmt: skip
        assert part in told


def test_images_are_found_by_more_than_one_name() -> None:
    names, pattern = image_names(spec())
    assert names[0].startswith("/aws/service/deeplearning/ami/x86_64/base-oss-nvidia")
    assert len(names) == 2
    assert "Amazon Linux 2023" in pattern
    names, _ = image_names(
        spec(workers={"type": "m6g.large"}, master={"type": "m6g.large"})
    )
    assert names[0].endswith("al2023-ami-kernel-default-arm64")
    assert image_names(spec(image="/my/image")) == (["/my/image"], "")


def network(**more: Any) -> Any:
    return spec(
        network={
            "vpc": "vpc-1", "public_subnet": "subnet-1", "private_subnet": "subnet-2",
            **more,
        }
    )  # fmt: skip


def test_an_existing_network_must_have_a_way_out_and_dns() -> None:
    subnets = [
        {"SubnetId": "subnet-1", "VpcId": "vpc-1", "AvailabilityZone": "a"},
        {"SubnetId": "subnet-2", "VpcId": "vpc-1", "AvailabilityZone": "b",
         "Ipv6Native": True},
    ]  # fmt: skip
    out = {"DestinationCidrBlock": "0.0.0.0/0", "GatewayId": "igw-1"}
    routes = [{"Associations": [{"SubnetId": "subnet-1"}], "Routes": [out]}]
    is_on = {"enableDnsSupport": True, "enableDnsHostnames": False}
    told = " ".join(checks.faults_of_network(network(), subnets, routes, is_on))
    for part in (
        "has enableDnsHostnames off", "subnet-2 has IPv6 only",
        "private subnet subnet-2 has no way out", "in different zones, a, b",
    ):  # fmt: skip
        assert part in told
    assert "public subnet subnet-1 has no way" not in told
    told = " ".join(checks.faults_of_network(network(), [], [], {}))
    assert "the public subnet subnet-1 is not in the VPC vpc-1" in told


def test_the_main_route_table_counts_where_a_subnet_has_none() -> None:
    nat = {"DestinationCidrBlock": "0.0.0.0/0", "NatGatewayId": "nat-1"}
    routes = [{"Associations": [{"Main": True}], "Routes": [nat]}]
    assert checks.has_way_out(routes, "subnet-2", to_gateway=False)
    assert not checks.has_way_out(routes, "subnet-2", to_gateway=True)


def test_an_existing_file_system_needs_a_target_in_the_zone() -> None:
    asked = spec(storage={"shared": "fs-1"})
    target = {"AvailabilityZoneName": "a", "VpcId": "vpc-1"}
    assert checks.faults_of_files(asked, [target], "a", "vpc-1") == []
    [fault] = checks.faults_of_files(asked, [target], "b", "vpc-1")
    assert "has no mount target in b, but in a" in fault
    [fault] = checks.faults_of_files(asked, [target], "a", "vpc-2")
    assert "is in another VPC than vpc-2" in fault
    [fault] = checks.faults_of_files(asked, [target], "a", None)
    assert "the network is to be made" in fault


def test_the_own_address_is_asked_for() -> None:
    assert my_address(lambda: "203.0.113.7\n") == "203.0.113.7/32"

    def silent() -> str:
        raise OSError("no route")

    with pytest.raises(PlanError, match="does not answer: no route"):
        my_address(silent)
    with pytest.raises(PlanError, match="address is unknown"):
        my_address(lambda: "<html>")


# ------------------------------------------------------------------- keys, errors


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_an_own_key_is_made_once(tmp_path: Path) -> None:
    first = key_of("auto", str(tmp_path))
    again = key_of("auto", str(tmp_path))
    assert first == again
    assert first.public is not None
    assert first.public.name.startswith("shoal-")
    assert Path(first.private).stat().st_mode & 0o777 == 0o600
    assert sorted(p.name for p in (tmp_path / "keys").iterdir()) == [
        "shoal",
        "shoal.pub",
    ]


def test_a_key_that_ec2_does_not_take_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pub"
    with pytest.raises(PlanError, match="is no public key"):
        key_of(str(path), str(tmp_path))
    path.write_text("ecdsa-sha2-nistp256 AAAA ann")
    with pytest.raises(PlanError, match="is a key of the kind ecdsa-sha2-nistp256"):
        key_of(str(path), str(tmp_path))
    path.write_text(f"{KEY} ann")
    found = key_of(str(path), str(tmp_path))
    assert found.private == ""


@pytest.mark.parametrize(
    ("code", "kind", "told"),
    [
        ("ExpiredToken", CredentialsError, "aws sso login --profile research"),
        ("AuthFailure", CredentialsError, "does not know the credentials"),
        ("InvalidSignatureException", CredentialsError, "this machine's clock"),
        ("AccessDenied", CredentialsError, "servicequotas:GetServiceQuota"),
        ("VcpuLimitExceeded", ProvisionError, "a higher quota"),
    ],
)
def test_errors_of_aws_are_errors_of_ours(
    code: str, kind: type[Exception], told: str
) -> None:
    error = error_of(
        "service-quotas:GetServiceQuota", code, "no", region="a", profile="research"
    )
    assert isinstance(error, kind)
    assert told in str(error)
