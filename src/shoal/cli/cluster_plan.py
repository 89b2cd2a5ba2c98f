"""`shoal cluster init`, `cost`, `policy` and `template`: before anything is made."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.group import FAILURE
from shoal.cli.steps import Steps
from shoal.cli.tables import AsJson, show_json, show_table
from shoal.clusters.aws.asked_prices import asked_prices
from shoal.clusters.aws.calls import Calls
from shoal.clusters.aws.cost import cost_of, require_budget
from shoal.clusters.aws.file import ME, AwsFile
from shoal.clusters.aws.init_file import first_file
from shoal.clusters.aws.parameters import end_of
from shoal.clusters.aws.policy import policy_of
from shoal.clusters.aws.preview import closing_of, cost_details, cost_section
from shoal.clusters.aws.prices import listed_prices
from shoal.clusters.aws.region import completed
from shoal.clusters.aws.searching import search
from shoal.clusters.aws.template import template
from shoal.clusters.cluster_state import ClusterStore
from shoal.clusters.doctor import GIB
from shoal.clusters.host_setup import ENVIRONMENTS, HostReport
from shoal.clusters.hosts_file import HostsFile
from shoal.clusters.lifecycle import Examination
from shoal.clusters.provider import Preview
from shoal.clusters.providers import parse_cluster_file, read_cluster_file
from shoal.errors import ConfigError, ShoalError
from shoal.terminal import say

AwsPath = Annotated[
    Path, typer.Argument(metavar="FILE", help="File with `provider: aws`.")
]
Limit = Annotated[str, typer.Option(help="A number, or none.")]


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")],
    kind: Annotated[
        str | None,
        typer.Option("--type", help="Instance type of the workers; default: ask."),
    ] = None,
    count: Annotated[int, typer.Option(help="Number of workers.")] = 1,
    region: Annotated[str, typer.Option(help="Region.")] = "us-east-1",
    ssh_from: Annotated[
        str, typer.Option(help="Addresses that may use SSH; me is yours.")
    ] = ME,
    max_hours: Limit = "24",
    budget_dollars: Limit = "100",
) -> None:
    """Writes a first file for a cluster on AWS, with comments; never over another."""
    if kind is None:
        if not sys.stdin.isatty():
            raise ConfigError(
                "the instance type of the workers is missing. Expected --type, as "
                "there is no terminal to ask at. Add it, such as --type g5.2xlarge."
            )
        kind = str(typer.prompt("Instance type of the workers", "g5.2xlarge"))
        count = int(typer.prompt("Number of workers", count))
    text = first_file(
        file.stem, region, kind, count,
        ssh_from=ssh_from, limits=(max_hours, budget_dollars),
    )  # fmt: skip
    parse_cluster_file(text, file)
    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written: {error.strerror}. Expected a file that does "
            "not exist, in a folder that does. Name another one."
        ) from error
    say(f"{file} is written. Next: shoal cluster cost {file}")


def show_cost(
    file: AwsPath,
    as_json: AsJson = False,
    asks: Annotated[
        bool,
        typer.Option("--ask", help="Ask AWS for prices of today, spot prices too."),
    ] = False,
) -> None:
    """Prints what a cluster costs: an hour, a day, until its end, and each part.

    Prices are list prices from a dated table of this package. If a price is not in
    it, a budget is refused. Needs no account and no network. With --ask it asks AWS
    for today's prices first, as `up` does.
    """
    spec = read_aws(file)
    prices = listed_prices(spec.region or "")
    if asks:
        with closing(Calls(str(spec.region), spec.profile)) as calls:
            types = (spec.master.type, spec.workers.type)
            prices = asked_prices(calls, types)
    cost = cost_of(spec, prices)
    if as_json:
        show_json(cost_details(cost))
    else:
        section = cost_section(cost)
        say(section.title)
        show_table(section.rows, columns=section.columns)
        for line in closing_of(spec, cost, end_of(cost.hours, datetime.now(UTC))):
            say(line)
    require_budget(spec, cost)


def show_policy(
    file: AwsPath,
    partition: Annotated[str, typer.Option(help="aws, aws-cn or aws-us-gov.")] = "aws",
) -> None:
    """Prints the IAM policy that `up` and `down` of a file need, as JSON."""
    say(json.dumps(policy_of(read_aws(file), partition=partition), indent=2))


def show_template(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="File with SSH sources and tags."),
    ] = None,
) -> None:
    """Prints the template of CloudFormation that `up` sends."""
    if file is None:
        say(template(), end="")
        return
    spec = read_aws(file)
    say(template([s for s in spec.access.ssh_from if s != ME], spec.tags), end="")


def read_aws(file: Path) -> AwsFile:
    """Returns the fields of a file with `provider: aws`, its region found.

    Raises:
        ConfigError: The file is invalid, or of another provider.
    """
    asked = read_cluster_file(file)
    if not isinstance(asked.spec, AwsFile):
        raise ConfigError(
            f"{file} is of the provider {asked.provider.name!r}. Expected `provider: "
            "aws`: other machines have no price here. Name another file."
        )
    return completed(asked.spec)


def show_hosts(hosts: HostsFile, found: Examination, *, as_json: bool) -> None:
    """Prints what the user's own hosts have, and what `up` would do there."""
    if as_json:
        least = hosts.min_workers
        show_json({"name": hosts.name, "min_workers": least, **asdict(found)})
        return
    reports, total = found.reports, len(hosts.hosts)
    if reports:
        say(f"Environment of the hosts: {_environment(hosts, found)}")
        _show_reports(reports)
    for address, why in found.failed.items():
        say(f"not {address}: {why}", err=True)
    if len(reports) < hosts.min_workers:
        say(
            f"`up` would fail: {len(reports)} of {total} hosts can be nodes. Expected "
            f"at least min_workers={hosts.min_workers}. Repair the others.",
            err=True,
        )
        return
    missing = sum(not one.is_ready for one in reports)
    first = f"install the environment on {missing}, then " if missing else ""
    say(
        f"`up` would {first}start Ray on {len(reports)} of {total} hosts, the head on "
        f"{reports[0].address}. Nothing was changed."
    )


def _environment(hosts: HostsFile, found: Examination) -> str:
    if found.environment is None:
        return f"{hosts.environment.python}, as it is"
    count = len(found.requirements)
    return f"~/{ENVIRONMENTS}/{found.environment}, {count} packages and Shoal"


def _show_reports(reports: Sequence[HostReport]) -> None:
    rows = [
        (one.address, one.private, one.python,
         "ready" if one.is_ready else "missing", one.cores, one.gpus,
         f"{one.memory / GIB:.1f}", f"{one.disk / GIB:.1f}")
        for one in reports
    ]  # fmt: skip
    columns = (
        "host", "private", "Python", "environment", "cores", "GPUs",
        "GiB memory", "GiB disk",
    )  # fmt: skip
    show_table(rows, columns=columns)


def show_preview(preview: Preview | None, *, as_json: bool) -> None:
    """Prints what `up` would make."""
    if preview is None:
        say("This provider does not tell what it would make.")
        return
    if as_json:
        show_json(preview.details)
        return
    for section in preview.sections:
        say(section.title)
        show_table(section.rows, columns=section.columns)
    for line in preview.closing:
        say(line)


def confirm(preview: Preview, steps: Steps, *, agrees: bool) -> None:
    """Shows what is going to be made and paid for, and asks whether to go on.

    Args:
        preview: What `up` is going to make.
        steps: Progress, which pauses meanwhile.
        agrees: Whether the caller agrees already.

    Raises:
        ConfigError: The answer is no, or there is nobody to ask.
    """
    with steps.paused():
        for line in preview.closing:
            say(line, err=True)
        if agrees:
            return
        if not sys.stdin.isatty():
            raise ConfigError(
                "the price is not confirmed, and there is no terminal to ask. Expected "
                "--yes. Add it; nothing was made."
            )
        if not typer.confirm("Go on?", err=True):
            raise ConfigError(
                "the price was not confirmed. Expected yes. Nothing was made."
            )


def show_stacks(profile: str | None, known: ClusterStore, *, as_json: bool) -> None:
    """Prints the stacks of Shoal in all regions of an account."""
    found, failed = search(profile)
    here: set[str] = set()
    for name in known.names():
        with suppress(ShoalError):  # a damaged file says nothing
            here.add(known.get(name).id)
    if as_json:
        show_json([{**asdict(one), "is_known": one.id in here} for one in found])
    elif found:
        rows = [
            (one.name, one.region, one.status, one.end or "-",
             "yes" if one.id in here else "no")
            for one in found
        ]  # fmt: skip
        columns = ("name", "region", "stack", "ends", "known here")
        show_table(rows, columns=columns)
    else:
        say("No cluster in any region that answered.")
    for region, why in failed.items():
        say(f"not {region}: {why}", err=True)
    if failed:
        raise typer.Exit(FAILURE)
