"""What is there before a stack: the bucket, and the role of its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from shoal.clusters.aws.calls import CallDenied, CallRefused, Calls
from shoal.clusters.aws.file import AwsFile
from shoal.clusters.aws.policy import END_ROLE, policy_of_end, trust_of_end
from shoal.errors import PlanError


@final
@dataclass(frozen=True, kw_only=True)
class Identity:
    """Whose the credentials are.

    Args:
        account: Id of the account.
        arn: ARN of the caller.
    """

    account: str
    arn: str

    @property
    def partition(self) -> str:
        """Returns the partition of AWS."""
        return self.arn.split(":")[1]


def bucket_name(spec: AwsFile, account: str) -> str:
    """Returns the name of a cluster's bucket."""
    if spec.storage.bucket != "auto":
        return spec.storage.bucket
    return auto_bucket(account, str(spec.region))


def auto_bucket(account: str, region: str) -> str:
    """Returns the name of the bucket that `bucket: auto` makes, one a region."""
    return f"shoal-{account}-{region}"


def has_bucket(spec: AwsFile, calls: Calls, account: str) -> bool:
    """Tells whether the bucket exists, in this account.

    Raises:
        PlanError: It belongs to another account, or the user's does not exist.
    """
    name = bucket_name(spec, account)
    try:
        found = calls.ask("s3", "HeadBucket", Bucket=name, ExpectedBucketOwner=account)
    except CallRefused as error:
        if error.code != "NoSuchBucket" or spec.storage.bucket != "auto":
            raise PlanError(
                f"the bucket {name} cannot be used: {error.said}. Expected one of this "
                "account that exists. Make it, or say `bucket: auto`."
            ) from error
        return False
    except CallDenied as error:
        raise PlanError(
            f"the bucket {name} is not of the account {account}, or closed to you: "
            f"{error}. Expected one of this account. Name another in `storage.bucket`."
        ) from error
    region = found.get("BucketRegion") or spec.region
    if region != spec.region:
        raise PlanError(
            f"the bucket {name} is in {region}, and the cluster in {spec.region}. "
            "Expected one region, as traffic between them costs. Name another bucket."
        )
    return True


def make_bucket(
    spec: AwsFile, calls: Calls, account: str, tags: Mapping[str, str]
) -> None:
    """Makes the bucket: private, by TLS only, with tags."""
    name = bucket_name(spec, account)
    place = {"LocationConstraint": spec.region}
    where: dict[str, Any] = {"CreateBucketConfiguration": place}
    if spec.region == "us-east-1":
        where = {}  # S3 refuses the name of its first region
    try:
        calls.ask("s3", "CreateBucket", Bucket=name, **where)
    except CallRefused as error:
        if error.code != "BucketAlreadyOwnedByYou":
            raise
    owned = {"Bucket": name, "ExpectedBucketOwner": account}
    calls.ask(
        "s3", "PutPublicAccessBlock", **owned,
        PublicAccessBlockConfiguration={
            "BlockPublicAcls": True, "IgnorePublicAcls": True,
            "BlockPublicPolicy": True, "RestrictPublicBuckets": True,
        },
    )  # fmt: skip
    if tags:
        listed = [{"Key": key, "Value": value} for key, value in tags.items()]
        calls.ask("s3", "PutBucketTagging", **owned, Tagging={"TagSet": listed})
    if calls.is_encrypted("s3"):  # else it would lock out its own maker
        calls.ask("s3", "PutBucketPolicy", **owned, Policy=json.dumps(tls_only(name)))


def tls_only(bucket: str, partition: str = "aws") -> dict[str, object]:
    """Returns the policy of a bucket that refuses plain HTTP."""
    arn = f"arn:{partition}:s3:::{bucket}"
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "TlsOnly",
                "Effect": "Deny",
                "Principal": "*",
                "Action": "s3:*",
                "Resource": [arn, f"{arn}/*"],
                "Condition": {"Bool": {"aws:SecureTransport": "false"}},
            }
        ],
    }


def end_role(spec: AwsFile, calls: Calls, who: Identity) -> str:
    """Returns the ARN of the role that deletes stacks; makes it once an account."""
    if spec.roles.end:
        return spec.roles.end
    arn = f"arn:{who.partition}:iam::{who.account}:role/{END_ROLE}"
    try:
        calls.ask("iam", "GetRole", RoleName=END_ROLE)
    except CallRefused as error:
        if error.code != "NoSuchEntity":
            raise
        boundary = spec.roles.permissions_boundary
        calls.ask(
            "iam", "CreateRole", RoleName=END_ROLE,
            Description="Deletes stacks of Shoal at their end. Free; one an account.",
            AssumeRolePolicyDocument=json.dumps(trust_of_end()),
            Tags=[{"Key": "shoal:purpose", "Value": "end"}],
            **({"PermissionsBoundary": boundary} if boundary else {}),
        )  # fmt: skip
    document = policy_of_end(who.account, partition=who.partition)
    calls.ask(
        "iam", "PutRolePolicy", RoleName=END_ROLE, PolicyName="end",
        PolicyDocument=json.dumps(document),
    )  # fmt: skip
    return arn
