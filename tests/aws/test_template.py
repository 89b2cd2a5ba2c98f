"""The template and its scripts: linters, and the properties that stand-ins lose."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.clusters.aws.template import template, user_data

pytestmark = [pytest.mark.aws, pytest.mark.slow]
SOURCES, TAGS = ["203.0.113.7/32", "2001:db8::/32"], {"team": "vision"}
TOOLS = Path(__file__).parents[2] / ".venv-aws"


class Loader(yaml.SafeLoader):
    """Reads the short forms of functions as {"!Ref": ...}."""


def _function(loader: Any, tag: str, node: Any) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return {f"!{tag}": loader.construct_scalar(node)}
    if isinstance(node, yaml.SequenceNode):
        return {f"!{tag}": loader.construct_sequence(node, deep=True)}
    return {f"!{tag}": loader.construct_mapping(node, deep=True)}


Loader.add_multi_constructor("!", _function)


@pytest.fixture(scope="module")
def resources() -> dict[str, Any]:
    found = yaml.load(template(SOURCES, TAGS), Loader)["Resources"]
    return {name: one.get("Properties", {}) | {"#": one} for name, one in found.items()}


def node_statements(bucket: str = "a-bucket") -> list[dict[str, Any]]:
    """The policy of the role of nodes, of a cluster prod in any of its lives."""
    resources = yaml.load(template(), Loader)["Resources"]
    [policy] = resources["NodeRole"]["Properties"]["Policies"]
    known = {"AWS::Partition": "aws", "Bucket": bucket, "ClusterName": "prod",
             "ClusterId": "*"}  # fmt: skip

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            if "!Sub" in value:
                return re.sub(
                    r"\$\{([\w:]+)\}", lambda m: known.get(m[1], "*"), value["!Sub"]
                )
            return {key: filled(one) for key, one in value.items()}
        return [filled(one) for one in value] if isinstance(value, list) else value

    return filled(policy["PolicyDocument"]["Statement"])


def run(*words: str | Path) -> str:
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_cfn_lint_finds_nothing(tmp_path: Path) -> None:
    for number, text in enumerate((template(), template(SOURCES, TAGS))):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        run(Path(sys.executable).with_name("cfn-lint"), path)


def test_checkov_finds_nothing(tmp_path: Path) -> None:
    checkov = TOOLS / "checkov" / "bin" / "checkov"
    if not checkov.exists():
        pytest.skip("checkov is not installed; `make aws` does it")
    path = tmp_path / "template.yaml"
    path.write_text(template(SOURCES, TAGS))
    run(checkov, "-f", path, "--framework", "cloudformation", "--compact", "--quiet",
        "--skip-download")  # fmt: skip


def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    shellcheck = TOOLS / "stand-ins" / "bin" / "shellcheck"
    found = str(shellcheck) if shellcheck.exists() else shutil.which("shellcheck")
    if found is None:
        pytest.skip("shellcheck is not installed; `make aws` does it")
    path = tmp_path / "user_data.sh"
    path.write_text(user_data())
    run(found, path)


def test_bash_reads_the_script(tmp_path: Path) -> None:
    path = tmp_path / "user_data.sh"
    path.write_text(user_data())
    run("bash", "-n", path)


# What moto and ministack drop or do not look at is asserted here.


def test_metadata_needs_a_token_and_reaches_containers(resources: Any) -> None:
    for name in ("MasterTemplate", "WorkerTemplate"):
        options = resources[name]["LaunchTemplateData"]["MetadataOptions"]
        assert options["HttpTokens"] == "required"
        assert options["HttpPutResponseHopLimit"] == 2


def test_disks_are_encrypted_and_leave_with_the_machine(resources: Any) -> None:
    for name in ("MasterTemplate", "WorkerTemplate"):
        [device] = resources[name]["LaunchTemplateData"]["BlockDeviceMappings"]
        assert device["Ebs"]["Encrypted"] is True
        assert device["Ebs"]["VolumeType"] == "gp3"
        assert device["Ebs"]["DeleteOnTermination"] is True
    assert resources["Files"]["Encrypted"] is True


def test_tags_are_there_at_creation(resources: Any) -> None:
    for name in ("MasterTemplate", "WorkerTemplate"):
        told = resources[name]["LaunchTemplateData"]["TagSpecifications"]
        kinds = {one["ResourceType"]: str(one["Tags"]) for one in told}
        assert set(kinds) == {"instance", "volume", "network-interface"}
        assert all("vision" in tags for tags in kinds.values())
        assert "vision" in str(resources[name]["TagSpecifications"])
        assert "shoal:id" in kinds["instance"]


def test_ssh_is_open_to_stated_addresses_of_the_master_only(resources: Any) -> None:
    opened = {
        name: one
        for name, one in resources.items()
        if one["#"]["Type"] == "AWS::EC2::SecurityGroupIngress"
    }
    from_outside = {
        n for n, one in opened.items() if "CidrIp" in one or "CidrIpv6" in one
    }
    assert from_outside == {"SshFrom1", "SshFrom2"}
    for name in from_outside:
        assert resources[name]["FromPort"] == resources[name]["ToPort"] == 22
        assert resources[name]["GroupId"] == {"!GetAtt": "Entrance.GroupId"}
    assert resources["SshFrom2"]["CidrIpv6"] == "2001:db8::/32"
    for name in ("Members", "Entrance"):
        assert "SecurityGroupIngress" not in resources[name]
    groups = {
        name: str(resources[name]["LaunchTemplateData"]["NetworkInterfaces"])
        for name in ("MasterTemplate", "WorkerTemplate")
    }
    assert "Entrance" in groups["MasterTemplate"]
    assert "Entrance" not in groups["WorkerTemplate"]


def test_workers_have_no_public_address(resources: Any) -> None:
    [interface] = resources["WorkerTemplate"]["LaunchTemplateData"]["NetworkInterfaces"]
    assert interface["AssociatePublicIpAddress"] is False
    [interface] = resources["MasterTemplate"]["LaunchTemplateData"]["NetworkInterfaces"]
    assert interface["AssociatePublicIpAddress"] == {"!If": ["IsPrivate", False, True]}
    assert "MapPublicIpOnLaunch" not in str(resources["Public"])


def test_the_network_has_dns_and_routes(resources: Any) -> None:
    assert resources["Network"]["EnableDnsSupport"] is True
    assert resources["Network"]["EnableDnsHostnames"] is True
    for name in ("PublicHasRoutes", "PrivateHasRoutes"):
        assert resources[name]["#"]["Type"].endswith("SubnetRouteTableAssociation")


def test_every_role_has_the_boundary_and_no_name(resources: Any) -> None:
    roles = [o for o in resources.values() if o["#"]["Type"] == "AWS::IAM::Role"]
    assert roles
    for one in roles:
        assert "HasBoundary" in str(one["PermissionsBoundary"])
        assert "RoleName" not in one
    for name in ("Masters", "Workers"):
        assert "AutoScalingGroupName" not in resources[name]


def test_a_node_may_read_and_write_its_own_prefix_only(resources: Any) -> None:
    [policy] = resources["NodeRole"]["Policies"]
    statements = {one["Sid"]: one for one in policy["PolicyDocument"]["Statement"]}
    for name, one in statements.items():
        assert "*" not in one["Action"]
        assert one["Resource"] != "*" or name == "Machines"  # they know no resources
    own = str(statements["OwnObjects"]["Resource"])
    assert "clusters/${ClusterName}/${ClusterId}/*" in own
    assert all(":Describe" in action for action in statements["Machines"]["Action"])
    assert statements["Token"] == {
        "Sid": "Token", "Effect": "Allow", "Action": "secretsmanager:GetSecretValue",
        "Resource": {"!Ref": "Token"},
    }  # fmt: skip


def test_a_node_may_change_the_size_of_its_own_groups_up_to_the_greatest(
    resources: Any,
) -> None:
    [policy] = resources["NodeRole"]["Policies"]
    [sizes] = [
        one for one in policy["PolicyDocument"]["Statement"] if one["Sid"] == "Sizes"
    ]
    assert "autoscaling:UpdateAutoScalingGroup" not in str(policy)  # MaxSize
    assert sizes["Resource"]["!Sub"].endswith("Name/${AWS::StackName}-*")
    of_cluster = {"aws:ResourceTag/shoal:id": {"!Ref": "ClusterId"}}
    assert sizes["Condition"] == {"StringEquals": of_cluster}
    for name in ("Masters", "Workers"):
        [tag] = [one for one in resources[name]["Tags"] if one["Key"] == "shoal:id"]
        assert tag["Value"] == {"!Ref": "ClusterId"}
        assert resources[name]["MinSize"] == "0"


def test_the_token_is_a_secret_that_the_stack_makes(resources: Any) -> None:
    asked = resources["Token"]["GenerateSecretString"]
    left = set("0123456789abcdefghijklmnopqrstuvwxyz") - set(asked["ExcludeCharacters"])
    assert left == set("0123456789abcdef")
    assert asked["ExcludeUppercase"] is asked["ExcludePunctuation"] is True
    assert asked["PasswordLength"] == 64
    assert "SecretString" not in resources["Token"]


def test_the_file_system_outlives_the_stack_but_no_rollback(resources: Any) -> None:
    assert resources["Files"]["#"]["DeletionPolicy"] == "RetainExceptOnCreate"
    assert resources["Files"]["#"]["UpdateReplacePolicy"] == "Retain"


def test_the_end_needs_nothing_of_ours(resources: Any) -> None:
    target = resources["End"]["Target"]
    assert target["Arn"]["!Sub"].endswith(
        ":scheduler:::aws-sdk:cloudformation:deleteStack"
    )
    told = json.loads(target["Input"]["!Sub"])
    assert told == {"StackName": "${AWS::StackId}", "RoleARN": "${EndRole}"}
    assert resources["End"]["ScheduleExpression"] == {"!Sub": "at(${EndAt})"}
    assert resources["End"]["ScheduleExpressionTimezone"] == "UTC"
    for name in ("MastersEnd", "WorkersEnd"):
        sizes = [
            resources[name][key] for key in ("MinSize", "MaxSize", "DesiredCapacity")
        ]
        assert sizes == [0, 0, 0]


def test_nothing_boots_before_its_network_is_whole_and_its_end_is_set(
    resources: Any,
) -> None:
    for name in ("Masters", "Workers"):
        assert resources[name]["#"]["DependsOn"] == "MembersTalk"
        after = str(resources[name]["Tags"][-1]["Value"])
        for part in ("Nat", "BucketEndpoint", "FilesTarget", "End"):
            assert f"{{'!Ref': '{part}'}}" in after
    assert resources["Nat"]["#"]["DependsOn"] == "PublicRoute"


def test_placement_and_efa_are_where_the_type_has_them(resources: Any) -> None:
    data = resources["WorkerTemplate"]["LaunchTemplateData"]
    assert data["Placement"]["!If"][0] == "Places"
    assert data["NetworkInterfaces"][0]["InterfaceType"] == {
        "!If": ["HasEfa", "efa", "interface"]
    }
    assert resources["Placement"]["Strategy"] == "cluster"


def test_the_wait_is_a_parameter(resources: Any) -> None:
    assert resources["MasterIsUp"]["Timeout"] == {"!Ref": "WaitSeconds"}


def test_there_is_no_secret_in_it() -> None:
    text = template(SOURCES, TAGS).lower()
    for word in ("secretstring:", "private key", "access_key_id="):
        assert word not in text.replace("generatesecretstring:", "")
