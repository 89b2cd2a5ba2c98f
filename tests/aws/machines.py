"""Machines in the place of EC2's: each instance that moto has becomes a host.

A host is a set of namespaces: network (at one bridge), files (overlays), processes and
name. It has EC2's metadata, runs the instance's own user data as root, and ends with
its first process. A loop looks for instances without a host, as a replaced one is.
"""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3

from tests.aws import command_line

LOOK_S = 0.3

METADATA = '''
"""EC2's metadata, version 2, with a role, and the address of a wait condition."""
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FACTS = {{
    "instance-id": {instance!r}, "local-ipv4": {address!r},
    "security-credentials/": "node",
    "security-credentials/node": json.dumps({{
        "Code": "Success", "Type": "AWS-HMAC", "AccessKeyId": "node",
        "SecretAccessKey": "node", "Token": "node",
        "Expiration": "2099-01-01T00:00:00Z", "LastUpdated": "2026-01-01T00:00:00Z",
    }}),
}}


class Service(BaseHTTPRequestHandler):
    def do_PUT(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/wait":
            open({signals!r}, "ab").write(body + b"\\n")
        self.say("a token")

    def do_GET(self):
        if self.headers.get("X-aws-ec2-metadata-token") != "a token":
            return self.say("", 401)
        found = [text for name, text in FACTS.items() if self.path.endswith("/" + name)]
        self.say(*(found[:1] or ["", 404]))

    def say(self, text, status=200):
        self.send_response(status)
        self.send_header("X-aws-ec2-metadata-token-ttl-seconds", "300")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *words):
        pass


server = ThreadingHTTPServer(("169.254.169.254", 80), Service)
print("ready", flush=True)
server.serve_forever()
'''

SYSTEMCTL = '''#!{python}
"""In the place of systemd: starts ExecStart of a unit again and again."""
import os, pathlib, pwd, shlex, signal, subprocess, sys, time

words = sys.argv[1:]
name = words[-1].removesuffix(".service")
place = pathlib.Path("/var/run-" + name)
if words[0] == "is-active":
    print("active" if place.exists() else "inactive")
elif words[0] == "reload":
    os.kill(int(pathlib.Path("/var/sshd.pid").read_text()), signal.SIGHUP)
elif words[:2] == ["enable", "--now"]:
    text = pathlib.Path("/etc/systemd/system", name + ".service").read_text()
    lines = [line.partition("=") for line in text.splitlines()]
    told = {{key: value for key, _, value in lines if key}}
    user = pwd.getpwnam(told.get("User", "root"))
    pairs = pathlib.Path("/etc/environment").read_text().split()
    pairs += shlex.split(told.get("Environment", ""))
    variables = dict(pair.partition("=")[::2] for pair in pairs)
    variables |= {{"PATH": os.environ["PATH"], "HOME": user.pw_dir}}
    place.touch()
    if os.fork() == 0:
        os.setsid()
        with open("{folder}/" + name + ".log", "ab") as log:
            for number in (0, 1, 2):
                os.dup2(log.fileno(), number)
        while True:
            subprocess.run(shlex.split(told["ExecStart"]), env=variables, check=False)
            time.sleep(1)
'''

BOOT = """
set -eu
cd {folder}
ip link set lo up
ip addr add 169.254.169.254/32 dev lo
for public in {public}; do ip addr add $public/32 dev lo; done
mount -t tmpfs tmpfs {folder}/over  # an overlay cannot have its upper part on another
for part in etc var root opt home usr/sbin usr/local; do
    mkdir -p over/$part/upper over/$part/work
    dirs=lowerdir=/$part,upperdir={folder}/over/$part/upper
    mount -t overlay overlay -o $dirs,workdir={folder}/over/$part/work /$part
done
mount -t tmpfs tmpfs /dev/shm
hostname ip-{name}
cp {folder}/bin/* /usr/local/bin/
ln -sf {interpreter} /usr/local/bin/python{version}
printf '#!/bin/bash\\nexec mount --bind {shared} "$2"\\n' >/usr/sbin/mount.efs
chmod 755 /usr/sbin/mount.efs
: >/etc/fstab
echo AWS_ENDPOINT_URL={endpoint} >/etc/environment
rm -f /etc/ssh/ssh_host_* /etc/profile.d/*
ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
# The login user of the image; it is root, as the Python of the tests is root's.
useradd --non-unique --uid 0 --gid 0 --create-home --shell /bin/bash \
    --password '*' ec2-user
install -d -m 700 /home/ec2-user/.ssh
cp {folder}/key.pub /home/ec2-user/.ssh/authorized_keys
cp /etc/environment /home/ec2-user/.ssh/environment  # PAM, which is off, reads it
cat >sshd_config <<CONFIG
Include /etc/ssh/sshd_config.d/*.conf
HostKey /etc/ssh/ssh_host_ed25519_key
PidFile /var/sshd.pid
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
PermitUserEnvironment yes
CONFIG
install -d -m 755 /run/sshd
{python} {folder}/metadata.py >{folder}/metadata &
while ! grep -q ready {folder}/metadata; do :; done
/usr/sbin/sshd -D -e -f {folder}/sshd_config 2>{folder}/sshd.log &
bash {folder}/user-data || true
cp /var/log/shoal-boot.log {folder}/ || true
wait
"""

AWS = """#!/bin/sh
AWS_ENDPOINT_URL={endpoint} exec {python} {program} "$@"
"""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@dataclass
class Machine:
    """A host for an instance."""

    name: str
    folder: Path
    address: str
    public: str
    first: subprocess.Popen[bytes]

    def end(self) -> None:
        """Ends all its processes, and removes its cable."""
        self.first.kill()
        self.first.wait()
        for words in (("netns", "delete", self.name), ("link", "delete", self.name)):
            with suppress(subprocess.CalledProcessError):
                _ip(*words)


@dataclass
class Machines:
    """The bridge, and a host for each instance that runs.

    Args:
        folder: Folder of the test.
        shared: Folder in the place of the file system.
        key: Public key that the login user takes.
    """

    folder: Path
    shared: Path
    key: str
    endpoint: str = ""
    known: dict[str, Machine] = field(default_factory=dict[str, Machine])
    errors: list[BaseException] = field(default_factory=list[BaseException])

    def __post_init__(self) -> None:
        self._stack, self._ends = ExitStack(), threading.Event()
        self.bridge, self.net = f"sh{secrets.token_hex(3)}", secrets.randbelow(40) + 210
        self.address, self.cidr = f"10.{self.net}.0.1", f"10.{self.net}.0.0/16"
        _ip("link", "add", self.bridge, "type", "bridge")
        self._stack.callback(_ip, "link", "delete", self.bridge)
        _ip("address", "add", f"{self.address}/16", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")
        self._loop = threading.Thread(target=self._run, name="machines")

    def client(self, service: str) -> Any:
        return boto3.client(
            service, region_name="us-east-1", endpoint_url=self.endpoint,
            aws_access_key_id="ec2", aws_secret_access_key="ec2",
        )  # fmt: skip

    def start(self, endpoint: str) -> None:
        """Begins to look for instances."""
        self.endpoint = endpoint
        self._loop.start()

    def close(self) -> None:
        """Ends all hosts."""
        self._ends.set()
        if self._loop.is_alive():
            self._loop.join()
        for machine in self.known.values():
            machine.end()
        self._stack.close()

    def lose(self, instance: str) -> None:
        """A host dies; its group finds out, and starts another."""
        self.known[instance].end()
        self.client("autoscaling").terminate_instance_in_auto_scaling_group(
            InstanceId=instance, ShouldDecrementDesiredCapacity=False
        )

    def _run(self) -> None:
        ec2 = self.client("ec2")
        while not self._ends.wait(LOOK_S):
            try:
                running = {
                    one["InstanceId"]: one
                    for r in ec2.describe_instances()["Reservations"]
                    for one in r["Instances"]
                    if one["State"]["Name"] == "running"
                }
                for instance, machine in self.known.items():
                    if instance not in running and machine.first.poll() is None:
                        machine.end()
                for instance, told in running.items():
                    if instance not in self.known:
                        self.known[instance] = self._boot(ec2, told)
            except BaseException as error:
                self.errors.append(error)
                return

    def _boot(self, ec2: Any, told: Any) -> Machine:
        """Starts the host of an instance; its boot goes on by itself."""
        instance, address = told["InstanceId"], told["PrivateIpAddress"]
        name = f"s{len(self.known)}{self.bridge}"
        tags = {tag["Key"]: tag["Value"] for tag in told["Tags"]}
        is_master = tags["shoal:role"] == "master"
        public = str(told.get("PublicIpAddress") or "") if is_master else ""
        folder = self.folder / instance
        (folder / "bin").mkdir(parents=True)
        (folder / "over").mkdir()
        (folder / "key.pub").write_text(self.key)
        told = ec2.describe_instance_attribute(
            InstanceId=instance, Attribute="userData"
        )["UserData"]["Value"]
        text = base64.b64decode(told).decode()
        if not text.startswith("#!"):  # moto encodes what it was given
            text = base64.b64decode(text).decode()
        # moto leaves the wait condition unmade.
        text = text.replace("${Booted}", "http://169.254.169.254/wait")
        (folder / "user-data").write_text(text)
        interpreter = os.path.realpath(sys.executable)
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        facts = {
            "folder": folder, "python": sys.executable, "interpreter": interpreter,
            "version": version, "public": public, "endpoint": self.endpoint,
            "shared": self.shared, "instance": instance, "address": address,
            "name": address.replace(".", "-"),
            "signals": str(self.folder / "signals"),
            "program": command_line.__file__,
        }  # fmt: skip
        (folder / "metadata.py").write_text(METADATA.format(**facts))
        for program, source in (("systemctl", SYSTEMCTL), ("aws", AWS)):
            path = folder / "bin" / program
            path.write_text(source.format(**facts))
            path.chmod(0o755)
        (folder / "boot").write_text(BOOT.format(**facts))
        _ip("netns", "add", name)
        _ip("link", "add", name, "type", "veth", "peer", "eth0", "netns", name)
        _ip("link", "set", name, "master", self.bridge, "up")
        _ip("-n", name, "address", "add", f"{address}/16", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        if public:
            _ip("route", "add", f"{public}/32", "via", address)
        words = ["ip", "netns", "exec", name, "unshare", "--mount", "--uts", "--pid"]
        words += [
            "--fork",
            "--kill-child",
            "--mount-proc",
            "bash",
            str(folder / "boot"),
        ]
        with (folder / "log").open("wb") as log:
            first = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                     "AWS_PROFILE": "left by the image", "HOME": "/root"},
            )  # fmt: skip
        return Machine(name, folder, address, public, first)
