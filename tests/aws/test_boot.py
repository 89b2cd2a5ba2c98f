"""The template's own user data, run as root on a host with files of its own.

A mount namespace with overlays keeps /etc, /var and /root apart, a network namespace
has EC2's metadata at its address and the wait condition beside it; `aws s3 cp` copies
to a folder, and `mount.efs` binds one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.clusters.aws.joining import agent_text
from shoal.clusters.aws.members import lists_of, members_of
from shoal.clusters.aws.template import template
from tests.aws.test_template import Loader

pytestmark = [pytest.mark.aws, pytest.mark.slow, pytest.mark.process]

LEAVES = "--no-should-decrement-desired-capacity"
INSTANCE, ADDRESS = "i-0123456789abcdef0", "10.0.0.7"

SERVICE = '''
"""EC2's metadata, version 2, the address of a wait condition, and a proxy."""
import sys, threading
from http.server import BaseHTTPRequestHandler, HTTPServer

FACTS = {{"instance-id": {instance!r}, "local-ipv4": {address!r}}}


class Service(BaseHTTPRequestHandler):
    def do_PUT(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.startswith("http:"):  # through the proxy
            open({proxied!r}, "a").write(self.path + "\\n")
        if self.path.endswith("/wait"):
            assert not self.headers.get("Content-Type"), self.headers
            open({signals!r}, "ab").write(body + b"\\n")
        self.say("a token")

    def do_GET(self):
        if self.headers.get("X-aws-ec2-metadata-token") != "a token":
            return self.say("", 401)
        self.say(FACTS[self.path.rpartition("/")[2]])

    def say(self, text, status=200):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *words):
        pass


proxy = HTTPServer(("127.0.0.1", 3128), Service)
threading.Thread(target=proxy.serve_forever, daemon=True).start()
server = HTTPServer(("169.254.169.254", 80), Service)
print("ready", flush=True)
server.serve_forever()
'''

AWS = """#!/bin/bash
# aws s3 cp [--quiet] FROM TO, with a folder in the place of S3
[ -z "$AWS_ACCESS_KEY_ID$AWS_PROFILE" ] || exit 3
if [ "$1" = autoscaling ]; then echo "$@" >>{folder}/left; exit; fi
[ ! -e {folder}/s3-is-closed ] || exit 1
kind=$2
case "$1 $2" in "s3 cp" | "s3 sync") ;; *) exit 2 ;; esac
shift 2; [ "$1" != --quiet ] || shift
from=${{1/s3:\\/\\//{slashed}\\/s3\\/}} to=${{2/s3:\\/\\//{slashed}\\/s3\\/}}
if [ "$kind" = sync ]; then exec cp "$from"/*.json "$to"; fi
case $to in */s3/*) mkdir -p "$(dirname "$to")" ;; esac
if [ "$from" = - ]; then cat >"$to"; else cp "$from" "$to"; fi
"""

RUN = """
set -e
ip link set lo up
ip addr add 169.254.169.254/32 dev lo
mkdir -p {folder}/over
mount -t tmpfs tmpfs {folder}/over  # an overlay cannot have its upper part on another
for part in etc var root opt usr/sbin; do
    over={folder}/over/$part
    mkdir -p $over/upper $over/work
    dirs=lowerdir=/$part,upperdir=$over/upper,workdir=$over/work
    mount -t overlay overlay -o $dirs /$part
done
helper=/usr/sbin/mount.{mounted_by}
printf '#!/bin/bash\\nexec mount --bind {folder}/shared "$2"\\n' >$helper
chmod 755 $helper
rm -f /etc/ssh/ssh_host_*_key.pub
printf 'ssh-ed25519 AAAAkey host\\n' >/etc/ssh/ssh_host_ed25519_key.pub
: >/etc/fstab
{python} {folder}/service.py >{folder}/service &
service=$!
while ! grep -q ready {folder}/service; do :; done
status=0
bash {folder}/user-data || status=$?
cp /etc/fstab /etc/profile.d/shoal.sh /etc/environment {folder}/ 2>/dev/null || true
cp /var/log/shoal-boot.log {folder}/boot.log
mountpoint -q {folder}/efs && touch {folder}/is-mounted
if [ -e {folder}/cluster.json ]; then
    python3 /opt/shoal/write-lists.py {folder}/cluster.json
    cp /etc/hosts /opt/shoal/workers {folder}/
    BASH_ENV=/etc/profile.d/shoal.sh bash -c 'env' | grep -E 'DEEP|EFS' >{folder}/env
fi
cp /etc/systemd/system/shoal-*.service {folder}/ 2>/dev/null || true
cp /opt/shoal/agent.json {folder}/ 2>/dev/null || true
kill $service
exit $status
"""


def user_data_of(role: str, values: dict[str, str]) -> str:
    """The user data of a role, as CloudFormation would fill it."""
    whole = yaml.load(template(), Loader)
    found = whole["Resources"][f"{role}Template"]
    told = found["Properties"]["LaunchTemplateData"]["UserData"]
    parts: list[Any] = told["Fn::Base64"]["Fn::Join"][1]
    assert parts.pop() == {"!FindInMap": ["Boot", "Script", "Text"]}
    parts.append(whole["Mappings"]["Boot"]["Script"]["Text"])
    chosen = [part["!If"][1] if "!If" in part else part for part in parts]
    return "".join(
        re.sub(r"\$\{([\w:]+)\}", lambda name: values[name[1]], part["!Sub"])
        if isinstance(part, dict)
        else part
        for part in chosen
    )


@dataclass
class Booted:
    """What a boot has left."""

    folder: Path
    status: int
    log: str

    def object(self, name: str) -> bytes:
        return (self.folder / "s3/bucket/clusters/prod/0123abcd" / name).read_bytes()

    @property
    def left(self) -> str:
        """How it has left its group."""
        path = self.folder / "left"
        return path.read_text().strip().rpartition(" ")[2] if path.exists() else ""

    @property
    def signals(self) -> list[dict[str, str]]:
        path = self.folder / "signals"
        if not path.exists():
            return []
        return [json.loads(one) for one in path.read_text().split("\n") if one]


@pytest.fixture
def boot(tmp_path: Path) -> Callable[..., Booted]:
    """Boots a node once."""
    if os.geteuid() != 0:
        pytest.skip("needs root, for namespaces")

    def run(role: str = "Master", system: str = "al2023", **changed: str) -> Booted:
        values = {
            "ClusterName": "prod", "ClusterId": "0123abcd", "AWS::Region": "us-east-1",
            "Bucket": "bucket", "Proxy": "", "LoginUser": "root", "SetupDigest": "",
            "Python": f"{sys.version_info.major}.{sys.version_info.minor}",
            "Mount": str(tmp_path / "efs"), "FileSystem": "new", "Files": "fs-0123",
            "Runs": "s3://bucket/runs", "AgentDigest": "",
            "Booted": "http://169.254.169.254/wait", "WorkerCount": "4",
            "LeastWorkers": "1", "SettleSeconds": "300", "WaitSeconds": "3300",
            "KeepsFailed": "no", **changed,
        }  # fmt: skip
        _write_programs(tmp_path, system)
        (tmp_path / "user-data").write_text(user_data_of(role, values))
        words = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]
        script = RUN.format(
            folder=tmp_path, python=sys.executable,
            mounted_by="efs" if system == "al2023" else "nfs4",
        )  # fmt: skip
        path = f"{tmp_path}/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        done = subprocess.run(
            [*words, "bash", "-c", script], capture_output=True, text=True, check=False,
            env={"PATH": path, "AWS_PROFILE": "left by the image", "HOME": "/root"},
        )  # fmt: skip
        log = tmp_path / "boot.log"
        assert log.exists(), done.stderr
        return Booted(tmp_path, done.returncode, log.read_text())

    return run


def _write_programs(folder: Path, system: str) -> None:
    """Writes what an image has, and packages that install nothing but are noted."""
    programs = folder / "bin"
    programs.mkdir()
    slashed = str(folder).replace("/", "\\/")
    aws = AWS.format(folder=folder, slashed=slashed)
    note = (
        f'#!/bin/bash\necho "${{0##*/}} $@, proxy $https_proxy" >>{folder}/installed\n'
    )
    written = {"systemctl": "#!/bin/bash\n"}
    if system == "al2023":
        written |= {"aws": aws, "dnf": note}
    else:  # Ubuntu's images lack the AWS command line
        (folder / "aws-of-snap").write_text(aws)
        installed = f"install -m 755 {folder}/aws-of-snap {programs}/aws\n"
        written |= {"snap": note + installed, "apt-get": note}
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for name in ("python3", f"python{version}"):
        (programs / name).symlink_to(sys.executable)
    for name, text in written.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (folder / "shared").mkdir()
    told = {
        "instance": INSTANCE,
        "address": ADDRESS,
        "signals": str(folder / "signals"),
        "proxied": str(folder / "proxied"),
    }
    (folder / "service.py").write_text(SERVICE.format(**told))


def _shell(profile: str, folder: Path, **variables: str) -> dict[str, str]:
    """Returns the variables of a shell that has read the profile."""
    done = subprocess.run(
        ["bash", "-c", f"{profile}\nenv"], capture_output=True, text=True, check=True,
        env={"PATH": os.environ["PATH"], "HOME": str(folder / "home"), **variables},
    )  # fmt: skip
    lines = (line.partition("=") for line in done.stdout.splitlines())
    return {name: value for name, _, value in lines}


def test_a_master_boots_and_signals(
    boot: Callable[..., Booted], tmp_path: Path
) -> None:
    found = boot()
    assert found.status == 0, found.log
    content = found.object(f"nodes/{INSTANCE}.json")
    told = {
        "InstanceId": INSTANCE, "PrivateIpAddress": ADDRESS,
        "State": {"Name": "running"},
        "Tags": [{"Key": "shoal:role", "Value": "master"}],
    }  # fmt: skip
    [member], wrong = members_of([told], {INSTANCE: content})
    assert (member.is_ready, wrong) == (True, [])
    assert member.keys == ("ssh-ed25519 AAAAkey",)
    [signal] = found.signals
    assert (signal["Status"], signal["UniqueId"]) == ("SUCCESS", INSTANCE)
    assert (found.folder / "is-mounted").exists()
    assert f"fs-0123:/ {found.folder}/efs efs tls,_netdev" in (
        (found.folder / "fstab").read_text()
    )
    profile = (found.folder / "shoal.sh").read_text()
    assert f"export EFS_MOUNT='{found.folder}/efs'" in profile
    assert _shell(profile, tmp_path)["SHOAL_RUNS"] == "s3://bucket/runs"
    node = tmp_path / "home" / ".shoal" / "nodes" / "0123abcd-0"
    node.mkdir(parents=True)
    (node / "profile.sh").write_text("export RAY_ADDRESS=10.0.0.1:6379\n")
    told = _shell(profile, tmp_path, SHOAL_RUNS="/own")
    assert (told["RAY_ADDRESS"], told["SHOAL_RUNS"]) == ("10.0.0.1:6379", "/own")
    assert b"ready" in found.object(f"logs/{INSTANCE}/boot.log")


def test_a_worker_does_not_signal(boot: Callable[..., Booted]) -> None:
    found = boot("Worker")
    assert found.status == 0, found.log
    assert json.loads(found.object(f"nodes/{INSTANCE}.json"))["role"] == "worker"
    assert not (found.folder / "signals").exists()


def test_a_setup_script_runs_and_its_log_is_kept(
    boot: Callable[..., Booted], tmp_path: Path
) -> None:
    script = b"#!/bin/bash\necho set up as $(id -un)\n"
    digest = hashlib.sha256(script).hexdigest()
    path = tmp_path / f"s3/bucket/clusters/prod/0123abcd/setup-{digest}"
    path.parent.mkdir(parents=True)
    path.write_bytes(script)
    found = boot(SetupDigest=digest)
    assert found.status == 0, found.log
    assert found.object(f"logs/{INSTANCE}/setup.log") == b"set up as root\n"


def test_a_setup_script_that_was_changed_does_not_run(
    boot: Callable[..., Booted], tmp_path: Path
) -> None:
    path = tmp_path / f"s3/bucket/clusters/prod/0123abcd/setup-{'0' * 64}"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/bash\ntouch {tmp_path}/evil\n")
    found = boot(SetupDigest="0" * 64)
    assert found.status == 1
    assert not (tmp_path / "evil").exists()
    told = json.loads(found.object(f"nodes/{INSTANCE}.json"))
    assert told["state"] == "failed"
    assert told["reason"] == "the setup script failed; see its log"
    assert (found.left, found.signals) == (LEAVES, [])
    assert b"Leaves its group; failed so: 1" in (
        found.object(f"logs/{INSTANCE}/boot.log")
    )


@pytest.mark.parametrize("others", [1, 2])
def test_the_third_node_with_the_same_reason_ends_the_tries(
    boot: Callable[..., Booted], tmp_path: Path, others: int
) -> None:
    reason = "the setup script failed; see its log"
    nodes = tmp_path / "s3/bucket/clusters/prod/0123abcd/nodes"
    nodes.mkdir(parents=True)
    told = {"state": "failed", "reason": reason, "role": "master"}
    for number in range(others):
        (nodes / f"i-{number}.json").write_text(json.dumps(told))
    (nodes / "i-8.json").write_text("{")
    (nodes / "i-9.json").write_text(json.dumps({**told, "role": "worker"}))
    found = boot(SetupDigest="0" * 64)
    if others == 1:
        assert (found.left, found.signals) == (LEAVES, [])
        return
    assert found.left == "--should-decrement-desired-capacity"
    [signal] = found.signals
    assert (signal["Status"], signal["Reason"]) == ("FAILURE", reason)


def test_a_node_that_fails_is_kept_on_request(boot: Callable[..., Booted]) -> None:
    found = boot(SetupDigest="0" * 64, KeepsFailed="yes")
    assert found.left == ""
    [signal] = found.signals
    assert signal["Status"] == "FAILURE"


def test_a_bucket_that_cannot_be_reached_is_told(
    boot: Callable[..., Booted], tmp_path: Path
) -> None:
    (tmp_path / "s3-is-closed").touch()
    found = boot()
    assert found.status == 1
    [signal] = found.signals
    assert signal["Reason"] == "the bucket bucket cannot be written to"
    assert found.left == ""  # nobody could count it


def test_python_is_installed_where_it_is_not(boot: Callable[..., Booted]) -> None:
    found = boot(Python="3.99")
    installed = (found.folder / "installed").read_text()
    assert "dnf install -y python3.99 python3.99-pip" in installed
    assert found.status == 0, found.log  # this dnf installs nothing, and says so


def test_ubuntu_boots_with_its_own_packages(boot: Callable[..., Booted]) -> None:
    found = boot(system="ubuntu", Python="3.99")
    assert found.status == 0, found.log
    lines = (found.folder / "installed").read_text().splitlines()
    assert [line.partition(",")[0] for line in lines] == [
        "snap install aws-cli --classic",
        "apt-get update -qq",
        "apt-get install -y -qq python3.99 python3.99-venv",
        "apt-get install -y -qq nfs-common",
    ]
    assert (found.folder / "is-mounted").exists()
    [line] = (found.folder / "fstab").read_text().splitlines()
    assert line.startswith("fs-0123.efs.us-east-1.amazonaws.com:/ ")
    assert " nfs4 nfsvers=4.1," in line
    assert [one["Status"] for one in found.signals] == ["SUCCESS"]


@pytest.mark.parametrize("system", ["al2023", "ubuntu"])
def test_what_leaves_the_network_goes_through_a_proxy(
    boot: Callable[..., Booted], tmp_path: Path, system: str
) -> None:
    """Metadata is asked without it; the wait condition has no other way."""
    proxy, wait = "http://127.0.0.1:3128", "http://cloudformation.invalid/wait"
    found = boot(system=system, Proxy=proxy, Booted=wait, Python="3.99")
    assert found.status == 0, found.log
    assert (found.folder / "proxied").read_text().splitlines() == [wait]
    assert [one["Status"] for one in found.signals] == ["SUCCESS"]
    lines = (found.folder / "installed").read_text().splitlines()
    assert lines
    assert all(line.endswith(f", proxy {proxy}") for line in lines)
    told = _shell((found.folder / "shoal.sh").read_text(), tmp_path)
    assert (told["http_proxy"], told["https_proxy"]) == (proxy, proxy)
    assert told["no_proxy"].split(",")[0] == "169.254.169.254"
    of_services = (found.folder / "environment").read_text().splitlines()
    assert f"https_proxy={proxy}" in of_services
    assert f"no_proxy={told['no_proxy']}" in of_services
    unit = (found.folder / "shoal-lists.service").read_text()
    assert "EnvironmentFile=-/etc/environment" in unit


def test_lists_follow_the_object_of_the_cluster(
    boot: Callable[..., Booted], tmp_path: Path
) -> None:
    found, _ = members_of(
        [
            {
                "InstanceId": f"i-{number}", "PrivateIpAddress": f"10.0.0.{number}",
                "State": {"Name": "running"}, "LaunchTime": str(number),
                "Tags": [{"Key": "shoal:role", "Value": role}],
            }
            for number, role in ((1, "worker"), (2, "master"), (3, "worker"))
        ],
        {},
    )  # fmt: skip
    (tmp_path / "cluster.json").write_text(json.dumps(lists_of(found)))
    booted = boot()
    assert booted.status == 0, booted.log
    assert (tmp_path / "workers").read_text() == "10.0.0.2\n10.0.0.1\n10.0.0.3\n"
    hosts = (tmp_path / "hosts").read_text()
    assert hosts.endswith(
        "# shoal\n10.0.0.2 deeplearning-master\n10.0.0.1 deeplearning-worker1\n"
        "10.0.0.3 deeplearning-worker2\n"
    )
    assert "localhost" in hosts
    assert f" {os.uname().nodename}\n" in hosts.replace("\t", " ")
    told = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().split())
    assert told == {
        "DEEPLEARNING_WORKERS_PATH": "/opt/shoal/workers",
        "DEEPLEARNING_WORKERS_COUNT": "3", "DEEPLEARNING_WORKER_GPU_COUNT": "0",
        "EFS_MOUNT": f"{tmp_path}/efs",
    }  # fmt: skip
    check_unit(tmp_path / "shoal-lists.service")


def check_unit(path: Path) -> None:
    """systemd finds no fault in a unit; its program is not on this machine."""
    assert path.exists()
    if shutil.which("systemd-analyze") is None:
        return
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = [one for one in verified.stderr.splitlines() if path.stem in one]
    assert [one for one in lines if "not executable" not in one] == []


def test_the_agent_is_installed_as_it_was_sent(
    boot: Callable[..., Booted], tmp_path: Path
) -> None:
    content = agent_text().encode()
    digest = hashlib.sha256(content).hexdigest()
    path = tmp_path / f"s3/bucket/clusters/prod/0123abcd/agent-{digest}"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    found = boot("Worker", AgentDigest=digest)
    assert found.status == 0, found.log
    assert json.loads((tmp_path / "agent.json").read_text()) == {
        "id": "0123abcd", "folder": "s3://bucket/clusters/prod/0123abcd",
        "instance": INSTANCE, "address": ADDRESS, "role": "worker",
        "secret": "shoal-prod-0123abcd", "signal": "", "keeps": False,
        "workers": 4, "least": 1, "settle_s": 300, "wait_s": 3300,
    }  # fmt: skip
    unit = (tmp_path / "shoal-agent.service").read_text()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"ExecStart=/usr/bin/env python{version} /opt/shoal/agent.py" in unit
    assert "User=root" in unit
    assert "AWS_DEFAULT_REGION=us-east-1" in unit
    check_unit(tmp_path / "shoal-agent.service")


def test_an_agent_that_was_changed_is_not_started(
    boot: Callable[..., Booted], tmp_path: Path
) -> None:
    path = tmp_path / f"s3/bucket/clusters/prod/0123abcd/agent-{'0' * 64}"
    path.parent.mkdir(parents=True)
    path.write_text("evil")
    found = boot(AgentDigest="0" * 64)
    assert found.status == 1
    assert not (tmp_path / "shoal-agent.service").exists()
    told = json.loads(found.object(f"nodes/{INSTANCE}.json"))
    assert told["reason"] == "the agent of the node cannot be started"
