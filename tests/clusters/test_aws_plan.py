"""A file for AWS: what it may say, what it would make, and what that costs."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from shoal.cli.app import app
from shoal.clusters.aws.asked_prices import hourly_price
from shoal.clusters.aws.cost import cost_of, require_budget
from shoal.clusters.aws.parameters import Choices, parameters_of
from shoal.clusters.aws.policy import calls_of, policy_of, policy_of_end
from shoal.clusters.aws.preview import preview_of, resources_of
from shoal.clusters.aws.prices import listed_prices
from shoal.clusters.aws.region import completed
from shoal.clusters.aws.template import MOST_BYTES, template, user_data
from shoal.clusters.providers import read_cluster_file
from shoal.errors import ConfigError, PlanError
from tests.clusters.aws_files import spec, write

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("SHOAL_CLUSTERS", str(tmp_path / "known"))


def shoal(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="shoal")


def product(*prices: str, unit: str = "Hrs") -> str:
    parts = {
        str(n): {"unit": unit, "pricePerUnit": {"USD": price}}
        for n, price in enumerate(prices)
    }
    return json.dumps({"terms": {"OnDemand": {"x": {"priceDimensions": parts}}}})


@pytest.mark.parametrize(
    ("products", "price"),
    [
        ([product("0.1920000000")], 0.192),
        ([product("0.192"), product("0.0000000000")], 0.192),
        ([product("0.192"), product("0.384")], None),  # which one, nobody knows
        ([product("5.0", unit="Quantity")], None),
        (["{", "[]", '{"terms": {}}'], None),
        ([], None),
    ],
)
def test_a_price_that_aws_tells(products: list[str], price: float | None) -> None:
    assert hourly_price(products) == price


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"workers": {"count": 0}}, "workers.count: Input should be greater than or eq"),
    ({"workers": {"min": 5}}, "workers: min is 5, and count is 4"),
    ({"workers": {"typ": "m5.large"}}, "did you mean 'type'?"),
    ({"worker": {}}, "worker: Extra inputs are not permitted; did you mean 'workers'?"),
    ({"access": {"ssh_from": ["everywhere"]}}, "'everywhere' is no range of addresses"),
    ({"access": {"ssh_from": []}}, "ssh_from is missing"),
    ({"access": {"session_manager": True}}, "leave ssh_from out"),
    ({"network": {"cidr": "8.8.0.0/16"}}, "expected private IPv4 addresses"),
    (
        {"network": {"vpc": "vpc-1"}},
        "vpc, public_subnet and private_subnet go together",
    ),
    ({"storage": {"shared": "none", "runs": "shared"}}, "runs is 'shared'"),
    (
        {"master": {"trains": False}, "workers": {"min": 0}},
        "master.trains is false, and workers.min is 0",
    ),
    ({"storage": {"shared": "nfs"}}, "storage.shared: String should match"),
    ({"limits": {"max_hours": 0}}, "limits.max_hours"),
    ({"limits": {}, "region": "mars"}, "region: String should match"),
    ({"tags": {"aws:x": "1"}}, "'aws:x' is reserved"),
    ({"tags": {"x": "y" * 257}}, "over 256 characters"),
    ({"name": "my_lab"}, "on AWS expected letters, digits and -"),
    ({"image": "windows"}, "image: String should match"),
]


@pytest.mark.parametrize(("changed", "said"), WRONG)
def test_a_wrong_file_is_refused(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_cluster_file(write(tmp_path, **changed))
    assert said in str(caught.value)
    assert "Expected the fields provider, name, region" in str(caught.value)


def test_limits_must_be_there(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text().replace("limits", "limit"))
    with pytest.raises(ConfigError, match="limits: Field required"):
        read_cluster_file(path)


def test_a_line_is_told(tmp_path: Path) -> None:
    path = tmp_path / "prod.yaml"
    assert shoal("cluster", "init", path, "--type", "m5.large").exit_code == 0
    path.write_text(path.read_text().replace("cidr:", "cider:"))
    done = shoal("cluster", "cost", path)
    assert done.exit_code == 2
    assert "network.cider" in done.output
    assert "did you mean 'cidr'?" in done.output
    assert "line 14, " in done.output


def test_the_region_is_found_where_it_is_said(tmp_path: Path) -> None:
    asked = spec(region=None)
    config = tmp_path / "config"
    config.write_text("[profile research]\nregion = eu-north-1\n")
    variables = {"AWS_CONFIG_FILE": str(config)}
    with pytest.raises(ConfigError, match="has no region"):
        completed(asked, variables)
    assert completed(asked, {**variables, "AWS_DEFAULT_REGION": "a"}).region == "a"
    assert completed(asked, {**variables, "AWS_PROFILE": "research"}).region == (
        "eu-north-1"
    )
    of_file = spec(region=None, profile="research")
    assert completed(of_file, {**variables, "AWS_REGION": "b"}).region == "eu-north-1"
    with pytest.raises(ConfigError, match="cannot be called 'my_lab'"):
        completed(asked.model_copy(update={"name": "my_lab"}), {})


def test_the_price_is_the_sum_of_its_parts() -> None:
    cost = cost_of(spec(), listed_prices("us-east-1"))
    told = {part.name: part.dollars for part in cost.parts}
    assert told["master m5.xlarge"] == 0.192
    assert told["workers g5.2xlarge"] == pytest.approx(4 * 1.212)
    assert told["disks, GiB"] == pytest.approx(700 * 0.08 / 730)
    assert told["NAT gateway"] == 0.045
    assert told["public addresses"] == 0.01
    assert cost.hour is not None
    assert cost.hour == pytest.approx(sum(p for p in told.values() if p))
    assert cost.hours == pytest.approx(100 / cost.hour)  # the budget ends before 24 h
    assert cost.total == pytest.approx(100)


@pytest.mark.parametrize(
    ("limits", "hours"),
    [
        ({"max_hours": 2, "budget_dollars": 100}, 2),
        ({"max_hours": 2, "budget_dollars": "none"}, 2),
        ({"max_hours": "none", "budget_dollars": "none"}, None),
    ],
)
def test_the_earlier_limit_is_the_end(
    limits: dict[str, Any], hours: float | None
) -> None:
    assert cost_of(spec(limits=limits), listed_prices("us-east-1")).hours == hours


def test_session_manager_and_an_own_network_cost_less() -> None:
    own = {"vpc": "vpc-1", "public_subnet": "subnet-1", "private_subnet": "subnet-2"}
    asked = spec(access={"session_manager": True, "ssh_from": []}, network=own)
    names = [part.name for part in cost_of(asked, listed_prices("us-east-1")).parts]
    assert names == [
        "master m5.xlarge", "workers g5.2xlarge", "disks, GiB", "secret of the token",
    ]  # fmt: skip


def test_a_budget_with_an_unknown_price_is_refused() -> None:
    asked = spec(workers={"type": "p5.48xlarge"})
    cost = cost_of(asked, listed_prices("us-east-1"))
    assert (cost.hour, cost.total, cost.hours) == (None, None, 24)
    with pytest.raises(PlanError, match=r"no price is known of workers p5\.48xl"):
        require_budget(asked, cost)
    free = spec(workers={"type": "p5.48xlarge"}, limits={"budget_dollars": "none"})
    require_budget(free, cost_of(free, listed_prices("us-east-1")))
    assert cost_of(free, listed_prices("sa-east-1")).hour is None


def test_a_budget_below_an_hour_is_refused() -> None:
    asked = spec(limits={"budget_dollars": 1})
    with pytest.raises(PlanError, match="does not pay for an hour"):
        require_budget(asked, cost_of(asked, listed_prices("us-east-1")))


def test_prices_have_a_date_and_a_page() -> None:
    import shoal.clusters.aws.prices as prices

    table = json.loads(Path(prices.__file__).with_name("prices.json").read_text())
    assert datetime.fromisoformat(table["date"])
    for place in table["prices"].values():
        assert set(place) == set(table["sources"])
    assert all(url.startswith("https://") for url in table["sources"].values())


def test_the_template_has_what_the_file_says() -> None:
    text = template(["203.0.113.7/32", "2001:db8::/32"], {"a team": 'a"b'})
    assert 'CidrIp: "203.0.113.7/32"' in text
    assert 'CidrIpv6: "2001:db8::/32"' in text
    assert text.count('{Key: "a team", Value: "a\\"b"}') >= 6
    assert not [line for line in text.splitlines() if line != line.rstrip()]
    assert "# user data" not in text
    assert text.count("umask 022") == 1
    assert "SshFrom" not in template()


def test_sizes_are_below_the_limits_of_aws() -> None:
    tags = {"k" * 20 + str(n): "v" * 40 for n in range(8)}
    sources = [f"203.0.113.{n}/32" for n in range(10)]
    assert len(template(sources, tags).encode()) < MOST_BYTES
    assert len(template().encode()) < 45_000
    lines = user_data().splitlines()
    sent = "\n".join(one for one in lines if not one.lstrip().startswith("# "))
    assert sent.splitlines()[-1] in template()
    assert len(sent.encode()) + 2_000 < 12_288  # with the longest values


def test_every_parameter_of_the_template_is_set() -> None:
    yaml = pytest.importorskip("yaml")

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("!", lambda loader, tag, node: node.tag)
    found = yaml.load(template(), Loader)
    values = parameters_of(spec(), Choices(), id_of="0" * 8, end_at="")
    assert set(values) == set(found["Parameters"])
    named = [name for name, _, _ in resources_of(template())]
    assert named == list(found["Resources"])
    conditions = {only for _, _, only in resources_of(template())} - {""}
    assert conditions <= set(found["Conditions"])


def test_the_policy_allows_every_call_and_has_no_star_action() -> None:
    for asked in (spec(), spec(storage={"bucket": "mine", "shared": "fs-1"})):
        statements = policy_of(asked)["Statement"]
        allowed = {action for one in statements for action in one["Action"]}
        for call in calls_of(asked):
            assert set(call.allowed_by) <= allowed, call
        assert not {a for a in allowed if a.endswith(":*") or a == "*"}
        assert len(json.dumps(policy_of(asked), separators=(",", ":"))) < 6_144
    assert "s3:CreateBucket" not in str(policy_of(spec(storage={"bucket": "mine"})))
    end = policy_of_end("123456789012")
    assert len(json.dumps(end, separators=(",", ":"))) < 10_240
    assert "Create" not in str([one["Action"] for one in end["Statement"]])


def test_a_dry_run_needs_no_account_and_no_network(tmp_path: Path) -> None:
    """Under 3 s, measured at 1.2 s on two cores; boto3 stays out."""
    path = write(tmp_path)
    code = (
        "import socket, sys\n"
        "def refused(*words): raise OSError('no network')\n"
        "socket.socket.connect = socket.getaddrinfo = refused\n"
        "from shoal.cli.app import app\n"
        f"app(['cluster', 'up', {str(path)!r}, '--dry-run', '--json'], "
        "standalone_mode=False)\n"
        "assert not {'boto3', 'botocore', 'keras', 'ray'} & set(sys.modules)\n"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["stack"] == "shoal-prod"
    assert told["parameters"]["WorkerCount"] == "4"
    assert told["parameters"]["UsesPlacement"] == "yes"
    assert told["cost"]["total"] == pytest.approx(100)
    assert told["cost"]["prices"].startswith("list prices of 20")
    assert told["calls"][0] == "sts:GetCallerIdentity"
    assert told["policy"]["Version"] == "2012-10-17"
    assert told["template"].startswith("# One cluster")
    assert not (tmp_path / "known").exists()


def test_a_dry_run_for_people(tmp_path: Path) -> None:
    done = shoal("cluster", "up", write(tmp_path), "--dry-run")
    assert done.exit_code == 0, done.output
    for part in (
        "Stack shoal-prod in us-east-1", "AWS::Scheduler::Schedule", "MakesNetwork",
        "cloudformation:CreateStack", "It ends by itself at",
        "SSH to the master is open to 203.0.113.7/32, and no other port",
    ):  # fmt: skip
        assert part in done.output


def test_a_preview_says_what_is_unknown_and_open() -> None:
    asked = spec(
        limits={"max_hours": "none", "budget_dollars": "none"},
        workers={"type": "p5.48xlarge"},
        access={"session_manager": True, "ssh_from": []},
    )
    closing = " ".join(preview_of(asked, NOW).closing)
    assert "No end is set" in closing
    assert "Unknown is the price of workers p5.48xlarge" in closing
    assert "No port is open" in closing
    assert preview_of(spec(), NOW).details["end"] == "2026-01-02T22:24:07"


def test_init_writes_a_file_that_is_valid_and_never_another(tmp_path: Path) -> None:
    path = tmp_path / "prod.yaml"
    words = ("cluster", "init", path, "--type", "g5.2xlarge", "--count", "4")
    assert shoal(*words, "--region", "us-west-2").exit_code == 0
    asked = read_cluster_file(path).spec
    assert (asked.name, asked.workers.count, asked.region) == ("prod", 4, "us-west-2")  # pyright: ignore[reportAttributeAccessIssue]
    done = shoal(*words)
    assert (done.exit_code, "cannot be written" in done.output) == (2, True)
    done = shoal("cluster", "init", tmp_path / "b.yaml", "--type", "nonsense")
    assert (done.exit_code, (tmp_path / "b.yaml").exists()) == (2, False)
    done = shoal("cluster", "init", tmp_path / "b.yaml")
    assert "Expected --type" in done.output


def test_cost_policy_and_template_as_commands(tmp_path: Path) -> None:
    path = write(tmp_path)
    told = json.loads(shoal("cluster", "cost", path, "--json").stdout)
    assert told["hour"] == pytest.approx(5.17, abs=0.1)
    assert "g5.2xlarge" in shoal("cluster", "cost", path).output
    assert json.loads(shoal("cluster", "policy", path).stdout)["Statement"]
    assert "203.0.113.7/32" in shoal("cluster", "template", path).stdout
    assert shoal("cluster", "template").stdout == template()
    hosts = tmp_path / "lab.json"
    hosts.write_text('{"hosts": ["a"]}')
    for verb in ("cost", "policy", "template"):
        done = shoal("cluster", verb, hosts)
        assert (done.exit_code, "Expected `provider: aws`" in done.output) == (2, True)
    path = write(tmp_path, workers={"type": "p5.48xlarge"})
    done = shoal("cluster", "cost", path)
    assert done.exit_code == 2
    assert "unknown" in done.output


def test_own_hosts_do_not_import_boto3() -> None:
    code = (
        "import sys, pathlib\n"
        "from shoal.clusters.providers import registry, parse_cluster_file\n"
        "parse_cluster_file('hosts: [a]', pathlib.Path('lab.yaml'))\n"
        "registry.load('aws')()\n"
        "assert 'boto3' not in sys.modules and 'botocore' not in sys.modules\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
