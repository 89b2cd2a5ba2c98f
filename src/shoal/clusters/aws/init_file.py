"""The text of a first file, with comments. Pure."""

from __future__ import annotations

import json

TEXT = """\
# A cluster of Shoal on AWS. `shoal cluster cost FILE` tells its price,
# `shoal cluster up FILE --dry-run` what would be made; neither needs an account.
provider: aws
name: {name}                 # the stack is shoal-NAME
region: {region}
# profile: research          # of the AWS configuration; else the environment's
master: {{type: {master}, disk_gib: 100, trains: true}}
workers: {{type: {type}, count: {count}, min: {min}, disk_gib: 150}}   # min 0: none
image: al2023                # al2023, ubuntu-24.04, ami-..., or an SSM parameter
access:
  ssh_from: [{ssh_from}]     # "me" is the address of this machine, asked for
  key: auto                  # an EC2 key pair, a public key file, or auto
  # session_manager: true    # in place of both: no port, no key
network: {{cidr: 10.0.0.0/16, zone: auto}}   # or vpc, public_subnet, private_subnet
storage:
  bucket: auto               # one an account and region, or a bucket of yours
  shared: efs                # efs, fs-..., or none
  mount: /efs
limits:                      # the end, set when it is made; `none` is a value
  max_hours: {max_hours}
  budget_dollars: {budget}
# tags: {{team: vision}}
# roles: {{node: NAME, end: ARN, permissions_boundary: ARN}}   # if you may make none
# setup: ./setup.sh          # run on each node at the end of its boot
# environment: {{packages: ["jax[cuda12]==0.10.2"]}}
wait_minutes: 55
"""


def first_file(
    name: str,
    region: str,
    kind: str,
    count: int,
    *,
    ssh_from: str = "me",
    limits: tuple[str, str] = ("24", "100"),
) -> str:
    """Returns the text of a file.

    Args:
        name: Name of the cluster.
        region: Region.
        kind: Instance type of the workers.
        count: Number of workers.
        ssh_from: Range of addresses that may use SSH.
        limits: max_hours and budget_dollars; "none" is a value.
    """
    hours, budget = limits
    return TEXT.format(
        name=name, region=region, master="m5.xlarge", type=kind, count=count, min=1,
        ssh_from=json.dumps(ssh_from), max_hours=hours, budget=budget,
    )  # fmt: skip
