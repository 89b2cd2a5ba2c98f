"""The calls that Shoal makes of AWS, and the IAM policy that allows them. Pure.

CloudFormation makes, and removes, what is in the template with the caller's rights, so
the policy has these actions too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from shoal.clusters.aws.file import AwsFile

END_ROLE = "shoal-end"
"""Name of the role that deletes stacks; one in an account."""


@final
@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of AWS that a command may make.

    Args:
        service: Service, as boto3 calls it.
        operation: Its operation.
        why: Why it is called, for people.
        actions: IAM actions that it takes; default SERVICE:OPERATION.
        only: Field of the file, or condition, without which it is not made.
    """

    service: str
    operation: str
    why: str
    actions: tuple[str, ...] = ()
    only: str = ""

    @property
    def name(self) -> str:
        """Returns the name of the call, as botocore's events have it."""
        return f"{self.service}:{self.operation}"

    @property
    def allowed_by(self) -> tuple[str, ...]:
        """Returns the IAM actions that allow it."""
        return self.actions or (self.name,)


def _call(name: str, why: str, *actions: str, only: str = "") -> Call:
    service, _, operation = name.partition(":")
    return Call(
        service=service, operation=operation, why=why, actions=actions, only=only
    )


ASKED = (
    _call("sts:GetCallerIdentity", "who the credentials are of"),
    _call("ec2:DescribeRegions", "the region is enabled"),
    _call("cloudformation:DescribeStacks", "the name is free, or whose it is"),
    _call("ec2:DescribeInstanceTypeOfferings", "zones that offer the types"),
    _call("ec2:DescribeInstanceTypes", "vCPUs of the types"),
    _call("service-quotas:GetServiceQuota", "vCPUs that the account may have",
          "servicequotas:GetServiceQuota"),
    _call("ssm:GetParameter", "the newest image", only="image"),
    _call("ec2:DescribeImages", "the image, its disk and its architecture"),
    _call("ec2:DescribeKeyPairs", "the key pair exists", only="key"),
    _call("ec2:DescribeVpcs", "the VPC", only="vpc"),
    _call("ec2:DescribeVpcAttribute", "the VPC has DNS", only="vpc"),
    _call("ec2:DescribeSubnets", "the subnets are of the VPC", only="vpc"),
    _call("ec2:DescribeRouteTables", "the subnets have a way out", only="vpc"),
    _call("efs:DescribeMountTargets", "the file system has a target",
          "elasticfilesystem:DescribeMountTargets", only="fs"),
    _call("efs:DescribeMountTargetSecurityGroups", "the file system lets members in",
          "elasticfilesystem:DescribeMountTargetSecurityGroups", only="fs"),
    _call("s3:HeadBucket", "the bucket is of this account", "s3:ListBucket"),
    _call("pricing:GetProducts", "list prices of today"),
    _call("ec2:DescribeSpotPriceHistory", "spot prices of today"),
    _call("iam:GetRole", "the role of the end exists", only="end"),
    _call("ec2:CreateSecurityGroup", "a dry run: it is allowed"),
    _call("ec2:CreateLaunchTemplate", "a dry run: it is allowed"),
    _call("ec2:CreateVpc", "a dry run: it is allowed", only="new network"),
    _call("ec2:CreateInternetGateway", "a dry run: it is allowed", only="new network"),
    _call("ec2:AllocateAddress", "a dry run: it is allowed", only="new network"),
    _call("ec2:RunInstances", "a dry run: it is allowed"),
)  # fmt: skip
"""Calls before anything is made."""

MADE = (
    _call("ec2:ImportKeyPair", "the own public key", only="key"),
    _call("s3:CreateBucket", "the bucket, once", only="bucket"),
    _call("s3:PutPublicAccessBlock", "nobody else reads it",
          "s3:PutBucketPublicAccessBlock", only="bucket"),
    _call("s3:PutBucketPolicy", "by TLS only", only="bucket"),
    _call("s3:PutBucketTagging", "its tags", only="bucket"),
    _call("iam:CreateRole", "the role of the end, once",
          "iam:CreateRole", "iam:TagRole", only="end"),
    _call("iam:PutRolePolicy", "what it may do", only="end"),
    _call("s3:PutObject", "the agent, the setup script, and what nodes follow"),
    _call("cloudformation:CreateStack", "the cluster"),
    _call("cloudformation:DescribeStackEvents", "resources as they change"),
    _call("autoscaling:DescribeScalingActivities", "why machines did not come"),
    _call("secretsmanager:GetSecretValue", "Ray's token, for the nodes that it starts"),
    _call("ec2:DescribeInstances", "addresses of the machines"),
    _call("ec2:DescribeInstanceStatus", "whether machines are well, for `health`"),
    _call("s3:ListObjectsV2", "states of the nodes", "s3:ListBucket"),
    _call("s3:GetObject", "states of the nodes"),
)  # fmt: skip
"""Calls of `up` from then on."""

ENDED = (
    _call("cloudformation:DeleteStack", "the end of the cluster"),
    _call("resourcegroupstaggingapi:GetResources", "whatever still has its tag",
          "tag:GetResources"),
    _call("efs:DescribeFileSystems", "the size of what stays",
          "elasticfilesystem:DescribeFileSystems"),
    _call("efs:DeleteFileSystem", "only with --delete-storage",
          "elasticfilesystem:DeleteFileSystem"),
    _call("s3:DeleteObjects", "no node joins while `up` works; with --delete-storage "
          "all of the cluster", "s3:DeleteObject"),
)  # fmt: skip
"""Calls of `down`, beside those of `up`."""

_NETWORK = (
    "ec2:AllocateAddress", "ec2:AssociateRouteTable", "ec2:AttachInternetGateway",
    "ec2:CreateInternetGateway", "ec2:CreateNatGateway", "ec2:CreateRoute",
    "ec2:CreateRouteTable", "ec2:CreateSubnet", "ec2:CreateVpc",
    "ec2:CreateVpcEndpoint", "ec2:DeleteInternetGateway", "ec2:DeleteNatGateway",
    "ec2:DeleteRoute", "ec2:DeleteRouteTable", "ec2:DeleteSubnet", "ec2:DeleteVpc",
    "ec2:DeleteVpcEndpoints", "ec2:DetachInternetGateway",
    "ec2:DisassociateRouteTable", "ec2:ModifySubnetAttribute",
    "ec2:ModifyVpcAttribute", "ec2:ReleaseAddress", "ec2:DescribeVpcAttribute",
)  # fmt: skip
_MACHINES = (
    "autoscaling:CreateAutoScalingGroup", "autoscaling:CreateOrUpdateTags",
    "autoscaling:DeleteAutoScalingGroup", "autoscaling:DeleteScheduledAction",
    "autoscaling:DeleteTags", "autoscaling:Describe*",
    "autoscaling:PutScheduledUpdateGroupAction", "autoscaling:UpdateAutoScalingGroup",
    "ec2:AuthorizeSecurityGroupEgress", "ec2:AuthorizeSecurityGroupIngress",
    "ec2:CreateLaunchTemplate", "ec2:CreatePlacementGroup", "ec2:CreateSecurityGroup",
    "ec2:CreateTags", "ec2:DeleteLaunchTemplate", "ec2:DeletePlacementGroup",
    "ec2:DeleteSecurityGroup", "ec2:DeleteTags", "ec2:Describe*",
    "ec2:RevokeSecurityGroupEgress", "ec2:RevokeSecurityGroupIngress",
    "ec2:RunInstances",
)  # fmt: skip
_FILES = (
    "elasticfilesystem:CreateFileSystem", "elasticfilesystem:CreateMountTarget",
    "elasticfilesystem:DeleteFileSystem", "elasticfilesystem:DeleteMountTarget",
    "elasticfilesystem:Describe*", "elasticfilesystem:TagResource",
)  # fmt: skip
_ROLES = (
    "iam:AddRoleToInstanceProfile", "iam:AttachRolePolicy", "iam:CreateInstanceProfile",
    "iam:CreateRole", "iam:DeleteInstanceProfile", "iam:DeleteRole",
    "iam:DeleteRolePolicy", "iam:DetachRolePolicy", "iam:GetInstanceProfile",
    "iam:GetRole", "iam:GetRolePolicy", "iam:PutRolePolicy",
    "iam:RemoveRoleFromInstanceProfile", "iam:TagRole", "iam:UntagRole",
)  # fmt: skip
_SCHEDULE = (
    "scheduler:CreateSchedule", "scheduler:DeleteSchedule", "scheduler:GetSchedule",
)  # fmt: skip
_SECRET = (
    "secretsmanager:CreateSecret", "secretsmanager:DeleteSecret",
    "secretsmanager:DescribeSecret", "secretsmanager:TagResource",
)  # fmt: skip
_PASSWORD = "secretsmanager:GetRandomPassword"  # it knows no resources

DELETES = tuple(
    action
    for action in (*_NETWORK, *_MACHINES, *_FILES, *_ROLES, *_SCHEDULE)
    if action.partition(":")[2].startswith(
        ("Delete", "Describe", "Detach", "Disassociate", "Get", "Release", "Remove",
         "Revoke")
    )
)  # fmt: skip
"""What the role of the end may do, beside lowering groups and ending machines."""


def is_made(call: Call, spec: AwsFile) -> bool:
    """Tells whether a call may be made for a file."""
    held = {
        "": True,
        "image": not spec.image.startswith("ami-"),
        "key": not spec.access.session_manager,
        "vpc": spec.network.vpc is not None,
        "new network": spec.network.vpc is None,
        "fs": spec.storage.shared.startswith("fs-"),
        "bucket": spec.storage.bucket == "auto",
        "end": spec.roles.end is None,
    }
    return held[call.only]


def calls_of(spec: AwsFile) -> list[Call]:
    """Returns the calls that `up` and `down` may make for a file, in order."""
    return [call for call in (*ASKED, *MADE, *ENDED) if is_made(call, spec)]


def policy_of(spec: AwsFile, *, partition: str = "aws") -> dict[str, Any]:
    """Returns the IAM policy that a caller needs for the cluster of a file.

    Args:
        spec: The file.
        partition: "aws", "aws-cn" or "aws-us-gov".
    """
    calls = calls_of(spec)
    bucket = "shoal-*" if spec.storage.bucket == "auto" else spec.storage.bucket
    arn = f"arn:{partition}"
    role = spec.roles.node
    passed = [f"{arn}:iam::*:role/{role or f'{spec.stack}-*'}"]
    passed.append(spec.roles.end or f"{arn}:iam::*:role/{END_ROLE}")
    made = [*_MACHINES]
    made += _NETWORK if spec.network.vpc is None else ()
    made += _FILES if spec.storage.shared == "efs" else ()
    made += _SCHEDULE
    return {
        "Version": "2012-10-17",
        "Statement": [
            _allow("Ask", _actions(calls, "Ask"), "*"),
            _allow(
                "Stack",
                _actions(calls, "Stack"),
                f"{arn}:cloudformation:*:*:stack/shoal-*/*",
            ),
            _allow(
                "Bucket",
                _actions(calls, "Bucket"),
                [f"{arn}:s3:::{bucket}", f"{arn}:s3:::{bucket}/*"],
            ),
            _allow(
                "Secret",
                sorted({*_SECRET, *_actions(calls, "Secret")}),
                f"{arn}:secretsmanager:*:*:secret:shoal-*",
            ),
            _allow("Password", [_PASSWORD], "*"),
            _allow("Make", sorted({*made, *_actions(calls, "Make")}), "*"),
            _allow(
                "Roles",
                sorted({*_ROLES, *_actions(calls, "Roles")}),
                [
                    f"{arn}:iam::*:role/shoal-*",
                    f"{arn}:iam::*:instance-profile/shoal-*",
                ],
            ),
            {
                "Sid": "Pass",
                "Effect": "Allow",
                "Action": "iam:PassRole",
                "Resource": passed,
                "Condition": {
                    "StringEquals": {
                        "iam:PassedToService": [
                            "cloudformation.amazonaws.com",
                            "ec2.amazonaws.com",
                            "scheduler.amazonaws.com",
                        ]
                    }
                },
            },
            {
                "Sid": "ServiceRoles",
                "Effect": "Allow",
                "Action": "iam:CreateServiceLinkedRole",
                "Resource": f"{arn}:iam::*:role/aws-service-role/*",
                "Condition": {
                    "StringEquals": {
                        "iam:AWSServiceName": [
                            "autoscaling.amazonaws.com",
                            "elasticfilesystem.amazonaws.com",
                        ]
                    }
                },
            },
        ],
    }


def _allow(sid: str, actions: list[str], resource: str | list[str]) -> dict[str, Any]:
    return {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resource}


def _actions(calls: list[Call], sid: str) -> list[str]:
    """Returns the actions of calls that belong to a statement, sorted."""
    actions = {action for call in calls for action in call.allowed_by}
    return sorted(action for action in actions if _statement_of(action) == sid)


def _statement_of(action: str) -> str:
    service, _, operation = action.partition(":")
    if service == "cloudformation":  # stacks of all names are described by `list`
        return "Ask" if operation == "DescribeStacks" else "Stack"
    if service == "s3":
        return "Bucket"
    if service == "iam":
        return "Roles"
    if service == "secretsmanager":
        return "Secret"
    if service in ("autoscaling", "ec2", "elasticfilesystem"):
        return "Ask" if operation.startswith("Describe") else "Make"
    return "Ask"


def trust_of_end() -> dict[str, Any]:
    """Returns who may take the role of the end: the schedule, and CloudFormation."""
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {
                    "Service": [
                        "cloudformation.amazonaws.com",
                        "scheduler.amazonaws.com",
                    ]
                },
                "Action": "sts:AssumeRole",
            }
        ],
    }


def policy_of_end(account: str, *, partition: str = "aws") -> dict[str, Any]:
    """Returns what the role of the end may do: delete stacks of Shoal.

    Args:
        account: Id of the account.
        partition: "aws", "aws-cn" or "aws-us-gov".
    """
    arn = f"arn:{partition}"
    others = [
        action for action in DELETES
        if action.partition(":")[0] in ("autoscaling", "ec2", "elasticfilesystem")
    ]  # fmt: skip
    others += ["autoscaling:UpdateAutoScalingGroup", "ec2:TerminateInstances"]
    roles = [a for a in DELETES if a.startswith("iam:")]
    return {
        "Version": "2012-10-17",
        "Statement": [
            _allow(
                "Stack",
                ["cloudformation:DeleteStack", "cloudformation:DescribeStacks"],
                f"{arn}:cloudformation:*:{account}:stack/shoal-*/*",
            ),
            _allow("Pass", ["iam:PassRole"], f"{arn}:iam::{account}:role/{END_ROLE}"),
            _allow("Remove", sorted(others), "*"),
            _allow(
                "Roles",
                sorted(roles),
                [
                    f"{arn}:iam::{account}:role/shoal-*",
                    f"{arn}:iam::{account}:instance-profile/shoal-*",
                ],
            ),
            _allow(
                "Secret",
                ["secretsmanager:DeleteSecret", "secretsmanager:DescribeSecret"],
                f"{arn}:secretsmanager:*:{account}:secret:shoal-*",
            ),
            _allow(
                "Schedules",
                ["scheduler:DeleteSchedule", "scheduler:GetSchedule"],
                f"{arn}:scheduler:*:{account}:schedule/default/shoal-*",
            ),
        ],
    }
