"""A provider of machines is a class and one line of metadata, tried with a toy one.

What its machines answer comes from a program in the place of ssh; `up`, `status` and
`down`, and what they keep, are real.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from shoal.cli.app import app
from shoal.clusters.cluster_state import ClusterState, ClusterStore
from shoal.clusters.lifecycle import ManagedCluster
from shoal.clusters.pins import pins_here
from shoal.clusters.providers import read_cluster_file, registry
from shoal.errors import ConfigError
from tests.contract.test_plugin import install, site

__all__ = ["site"]

pytestmark = pytest.mark.process
BACKEND = os.environ.get("KERAS_BACKEND", "jax")

TOY = '''
"""Machines of a toy provider: a file each, in a folder that the spec names."""
import os
import sys
from pathlib import Path
from typing import ClassVar

from shoal.clusters.hosts_file import HostsFile
from shoal.clusters.provider import Instance, Provider
from shoal.clusters.spec_file import ClusterSpec
from shoal.errors import ClusterError, ProvisionError


class Spec(ClusterSpec):
    folder: str
    count: int = 2
    runs: str | None = None
    head_trains: bool = True


class Toy(Provider[Spec]):
    name: ClassVar[str] = "toy"

    @property
    def spec(self):
        return Spec

    def acquire(self, spec, acquisition):
        folder = Path(spec.folder)
        acquisition.note(folder=spec.folder)
        for number in range(spec.count):
            acquisition.tell(f"toy-{number}", "is being made")
            (folder / f"toy-{number}").touch()
            if (folder / "acquire-fails").exists():
                raise ProvisionError("the toy box is empty")
            if (folder / "acquire-is-broken-off").exists():
                raise KeyboardInterrupt
            if (folder / "acquire-is-killed").exists():
                os.kill(os.getpid(), 9)
        return HostsFile(
            hosts=[f"toy-{number}" for number in range(spec.count)],
            runs=spec.runs,
            head_trains=spec.head_trains,
            ssh=f"{sys.executable} {folder}/ssh.py",
            environment={"python": sys.executable},
            min_workers=spec.count,
        )

    def refresh(self, state, folder):
        with (Path(state.spec["folder"]) / "refreshed").open("a") as log:
            log.write(state.name + "\\n")
        if (Path(state.spec["folder"]) / "nobody-answers").exists():
            raise ClusterError("the toy box does not answer")
        return state

    def instances(self, state):
        if (Path(state.spec["folder"]) / "nobody-answers").exists():
            raise ClusterError("the toy box does not answer")
        paths = sorted(Path(state.spec["folder"]).glob("toy-?"))
        return [
            Instance(id=f"i-{p.name}", address=p.name, is_running=True, state="running")
            for p in paths
        ]

    def release(self, state):
        folder = Path(state.facts.get("folder") or state.spec["folder"])
        with (folder / "released").open("a") as log:
            log.write(state.name + "\\n")
        if (folder / "release-fails").exists():
            raise ClusterError("the toy box is locked")
        for path in folder.glob("toy-?"):
            path.unlink()
'''
LINE = "toy = shoal_toy_box:Toy"

SSH = '''
"""In the place of ssh: answers as a host would whose Ray runs."""
import json
import sys
import time
from pathlib import Path

folder = Path(__file__).parent
if "BOOT=" not in sys.argv[-1]:
    sys.exit(print(*sys.argv[1:]))
host = next(word for word in sys.argv if word.startswith("toy-"))
if not (folder / host).exists() or (folder / "no-way").exists():
    sys.exit(255)
read = sys.stdin.buffer
read.read(int(read.readline()))
asked = json.loads(read.readline())
with (folder / "asked").open("a") as log:
    log.write(f"{host} {asked['verb']}\\n")
(folder / f"{host}-{asked['verb']}.json").write_text(json.dumps(asked))
if (folder / f"{asked['verb']}-hangs").exists():
    time.sleep(600)
answers = json.loads((folder / "answers").read_text())
if (folder / f"{asked['verb']}-fails").exists():
    answers[asked["verb"]] = {"refused": "it does not want to"}
print("SHOAL: " + json.dumps(answers[asked["verb"]]).replace("HOST", host))
'''


@dataclass
class Box:
    """A folder of machines, the file that asks for them, and the command line."""

    folder: Path
    known: Path
    variables: dict[str, str] = field(default_factory=dict[str, str])

    def shoal(self, *words: str) -> Result:
        return CliRunner().invoke(app, words, env=self.variables, prog_name="shoal")

    def up(self) -> subprocess.Popen[str]:
        """`shoal cluster up` as a process of its own, as from a terminal."""
        path = os.pathsep.join(sys.path)
        return subprocess.Popen(
            [sys.executable, "-m", "shoal", "cluster", "up", self.file],
            env={**os.environ, **self.variables, "PYTHONPATH": path},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip

    @property
    def file(self) -> str:
        return str(self.folder / "box.json")

    def write(self, **fields: Any) -> None:
        said = {"provider": "toy", "folder": str(self.folder), **fields}
        Path(self.file).write_text(json.dumps(said))

    def make(self, *names: str) -> None:
        for name in names:
            (self.folder / name).touch()

    def asked(self, host: str, verb: str) -> dict[str, Any]:
        return json.loads((self.folder / f"{host}-{verb}.json").read_text())

    @property
    def machines(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("toy-?"))

    @property
    def releases(self) -> int:
        path = self.folder / "released"
        return len(path.read_text().splitlines()) if path.exists() else 0

    @property
    def names(self) -> list[str]:
        return ClusterStore(str(self.known)).names()

    def state(self) -> ClusterState:
        return ClusterStore(str(self.known)).get("box")

    def nothing_is_left(self) -> bool:
        return (self.machines, self.names) == ([], [])


@pytest.fixture
def box(site: Path, tmp_path: Path) -> Box:
    """The toy provider is installed, and nothing is up."""
    install(site, "shoal_toy_box", LINE, TOY, group="shoal.providers")
    folder = tmp_path / "box"
    folder.mkdir()
    (folder / "ssh.py").write_text(SSH)
    pins = pins_here(BACKEND)
    facts = {
        "is_ready": True, "version": pins.python, "packages": dict(pins.packages),
        "code": pins.code, "python": sys.executable, "path": "/bin", "gpus": [],
        "address": "HOST",
    }  # fmt: skip
    nodes = [
        {"address": f"toy-{n}", "is_alive": True, "cpus": 2.0, "gpus": 0.0}
        for n in range(3)
    ]
    answers = {
        "facts": facts, "start": {"port": 6379, "is_new": True}, "stop": {"ended": 3},
        "look": {"is_alive": True, "processes": 3, "nodes": nodes},
        "submit": {}, "jobs": {"jobs": []},
    }  # fmt: skip
    (folder / "answers").write_text(json.dumps(answers))
    known = tmp_path / "known"
    found = Box(folder, known, {"SHOAL_CLUSTERS": str(known)})
    found.write()
    return found


def test_a_provider_is_found_by_its_name(box: Box) -> None:
    assert "toy" in registry.names()
    assert "shoal_toy_box" not in sys.modules
    asked = read_cluster_file(Path(box.file))
    assert (asked.provider.name, asked.spec.name) == ("toy", "box")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"provider": "toyy"}, "unknown provider 'toyy'. Did you mean 'toy'"),
        ({"provider": 7}, "provider is 7. Expected the name of a provider"),
        ({"count": "x"}, "count: Input should be a valid integer"),
        (
            {"hosts": ["a"]},
            "hosts: Extra inputs are not permitted. Expected the fields",
        ),
    ],
)
def test_a_wrong_file_is_refused(box: Box, fields: dict[str, Any], said: str) -> None:
    box.write(**fields)
    with pytest.raises(ConfigError) as caught:
        read_cluster_file(Path(box.file))
    assert said in str(caught.value)


def test_up_gives_a_cluster_of_hosts_and_down_gives_them_back_once(box: Box) -> None:
    done = box.shoal("cluster", "up", box.file)
    assert done.exit_code == 0, done.output
    assert "box: 2 of 2 hosts run, the head is toy-0, Ray at toy-0:6379" in done.output
    assert "toy-1 is being made" in done.output
    assert [node.address for node in box.state().nodes] == ["toy-0", "toy-1"]
    assert box.state().facts == {"folder": str(box.folder)}
    listed = json.loads(box.shoal("cluster", "list", "--json").stdout)
    assert (listed[0]["provider"], listed[0]["nodes"]) == ("toy", ["toy-0", "toy-1"])
    done = box.shoal("cluster", "down", "box")
    assert done.exit_code == 0, done.output
    assert "toy-0: 3 processes ended" in done.output
    assert "box: machines given back to the provider toy" in done.output
    assert box.nothing_is_left()
    assert "not known here" in box.shoal("cluster", "down", "box").output
    assert box.releases == 1


def test_commands_reach_its_hosts(box: Box, capfd: pytest.CaptureFixture[str]) -> None:
    assert box.shoal("cluster", "up", box.file).exit_code == 0
    box.make("toy-7")
    found = json.loads(box.shoal("cluster", "status", "box", "--json").stdout)
    told = [(one["number"], one["instance"], one["state"]) for one in found]
    assert told == [
        (0, "i-toy-0", "runs"), (1, "i-toy-1", "runs"), (None, "i-toy-7", "running"),
    ]  # fmt: skip
    assert "takes it in" in found[2]["why"]
    assert "toy-7" in box.shoal("cluster", "status", "box").stdout
    capfd.readouterr()
    assert box.shoal("cluster", "ssh", "box", "1", "--", "ls").exit_code == 0
    assert capfd.readouterr().out.split() == ["toy-1", "ls"]
    words = ("launch", "--cluster", "box", "--print", "--json", "--", "python", "t.py")
    launched = json.loads(box.shoal(*words).stdout)
    assert [process["node"] for process in launched] == ["toy-0", "toy-1"]
    script = box.folder / "train.py"
    script.touch()
    assert box.shoal("submit", str(script), "--cluster", "box").exit_code == 0
    assert "toy-0 submit" in (box.folder / "asked").read_text()


def test_every_command_refreshes_what_is_known(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert box.shoal("cluster", "up", box.file).exit_code == 0
    script = box.folder / "train.py"
    script.touch()
    log = box.folder / "refreshed"
    for words in (
        ("cluster", "status", "box"), ("cluster", "health", "box"),
        ("cluster", "ssh", "box", "--", "ls"), ("cluster", "logs", "box"),
        ("submit", str(script), "--cluster", "box"), ("jobs", "--cluster", "box"),
        ("attach", "2026", "--cluster", "box"),
        ("tensorboard", "2026", "--cluster", "box"),
        ("runs", "status", "2026", "--cluster", "box"),
        ("launch", "--cluster", "box", "--print", "--", "python", "t.py"),
        ("cluster", "down", "box"),
    ):  # fmt: skip
        log.unlink(missing_ok=True)
        box.shoal(*words)
        assert log.exists(), words


def test_a_provider_that_does_not_answer_hides_nothing(box: Box) -> None:
    assert box.shoal("cluster", "up", box.file).exit_code == 0
    box.make("nobody-answers")
    done = box.shoal("cluster", "status", "box")
    assert "box is shown as it was last seen: the toy box does not" in done.output
    assert "toy-1" in done.stdout
    assert done.exit_code == 0  # its hosts answer
    (box.folder / "refreshed").unlink()
    (box.folder / "asked").unlink()
    done = box.shoal("cluster", "status", "box", "--offline")
    assert done.exit_code == 0, done.output
    assert "box as of 20" in done.stdout
    assert "last seen" in done.stdout
    assert not (box.folder / "refreshed").exists()
    assert not (box.folder / "asked").exists()
    [one, _] = json.loads(
        box.shoal("cluster", "status", "box", "--offline", "--json").stdout
    )
    assert (one["address"], one["state"]) == ("toy-0", "last seen")
    assert one["is_head"]


def test_a_head_that_does_not_train(box: Box) -> None:
    box.write(head_trains=False, runs="/data/runs")
    assert box.shoal("cluster", "up", box.file).exit_code == 0
    assert box.asked("toy-0", "start")["options"] == ["--num-cpus=0", "--num-gpus=0"]
    assert box.asked("toy-1", "start")["options"] == []
    words = ("launch", "--cluster", "box", "--print", "--json", "--", "python", "t.py")
    launched = json.loads(box.shoal(*words).stdout)
    assert [process["node"] for process in launched] == ["toy-1"]
    script = box.folder / "train.py"
    script.touch()
    assert box.shoal("submit", str(script), "--cluster", "box").exit_code == 0
    told = box.asked("toy-0", "submit")
    assert (told["runs"], told["variables"]["SHOAL_CLUSTER"]) == ("/data/runs", "ray")


def test_jobs_are_of_the_cluster_that_the_environment_names(box: Box) -> None:
    for name in ("box", "other"):
        assert box.shoal("cluster", "up", box.file, "--name", name).exit_code == 0
    assert "no cluster was named, and this machine knows 2" in box.shoal("jobs").output
    box.variables["SHOAL_CLUSTER"] = "other"
    assert box.shoal("jobs").exit_code == 0


def test_health_names_a_machine_that_is_gone(box: Box) -> None:
    assert box.shoal("cluster", "up", box.file).exit_code == 0
    box.make("no-way")
    [one, _] = ManagedCluster("box", ClusterStore(str(box.known))).health()
    assert [asdict(finding)["name"] for finding in one.findings] == ["machine", "ssh"]
    assert "running" in box.shoal("cluster", "health", "box").stdout


@pytest.mark.parametrize("what", ["acquire-fails", "start-fails", "facts-fails"])
def test_an_up_that_fails_half_way_gives_machines_back_once(
    box: Box, what: str
) -> None:
    box.make(what)
    done = box.shoal("cluster", "up", box.file)
    assert done.exit_code == 1, done.output
    said = "the toy box is empty" if what == "acquire-fails" else "does not want to"
    assert said in done.output
    assert box.nothing_is_left()
    assert box.releases == 1
    box.shoal("cluster", "down", "box")
    assert box.releases == 1


def test_ctrl_c_while_machines_are_made_gives_them_back_once(box: Box) -> None:
    box.make("acquire-is-broken-off")
    assert box.shoal("cluster", "up", box.file).exit_code == 130
    assert box.nothing_is_left()
    assert box.releases == 1


def test_ctrl_c_while_hosts_start_gives_machines_back_once(box: Box) -> None:
    box.make("start-hangs")
    with box.up() as up:
        assert up.stdout is not None
        said: list[str] = []
        while not (said and "starts the head" in said[-1]):
            said.append(up.stdout.readline())
            assert said[-1], said
        while "start" not in (box.folder / "asked").read_text():
            pass
        os.killpg(up.pid, signal.SIGINT)
        said.append(up.stdout.read())
    assert up.returncode != 0
    assert box.nothing_is_left(), said
    assert box.releases == 1


def test_down_releases_machines_of_a_killed_up(box: Box) -> None:
    box.make("acquire-is-killed")
    with box.up() as up:
        assert up.wait() == -signal.SIGKILL
    assert (box.names, box.machines, box.releases) == (["box"], ["toy-0"], 0)
    assert box.shoal("cluster", "down", "box").exit_code == 0
    assert box.nothing_is_left()
    assert box.releases == 1


def test_machines_that_cannot_be_given_back_stay_known(box: Box) -> None:
    assert box.shoal("cluster", "up", box.file).exit_code == 0
    box.make("release-fails")
    done = box.shoal("cluster", "down", "box")
    assert done.exit_code == 1
    assert "could not be released: the toy box is locked" in done.output
    assert "Run `shoal cluster down box` to try again" in done.output
    assert (box.names, box.machines) == (["box"], ["toy-0", "toy-1"])
    (box.folder / "release-fails").unlink()
    assert box.shoal("cluster", "down", "box").exit_code == 0
    assert box.nothing_is_left()
    assert box.releases == 2


def test_error_of_an_up_that_cannot_release_machines_has_both_causes(box: Box) -> None:
    box.make("acquire-fails", "release-fails")
    done = box.shoal("cluster", "up", box.file)
    assert done.exit_code == 1
    assert "ProvisionError: the toy box is empty" in done.output
    assert "The cluster stays known, and may still cost" in done.output
    assert box.names == ["box"]
    rows = box.shoal("cluster", "list").stdout
    assert "toy" in rows
    for words in (["health", "box"], ["ssh", "box", "--", "ls"]):
        done = box.shoal("cluster", *words)
        assert "the cluster box has no node" in done.output
    assert "i-toy-0" in box.shoal("cluster", "status", "box", "--json").stdout
    (box.folder / "release-fails").unlink()
    assert box.shoal("cluster", "down", "box").exit_code == 0
    assert box.nothing_is_left()


def test_machines_go_although_ssh_does_not_reach_them(box: Box) -> None:
    assert box.shoal("cluster", "up", box.file).exit_code == 0
    box.make("no-way")
    done = box.shoal("cluster", "down", "box")
    assert done.exit_code == 0, done.output
    assert box.nothing_is_left()


def test_machines_on_which_a_job_runs_are_kept(box: Box) -> None:
    assert box.shoal("cluster", "up", box.file).exit_code == 0
    answers = json.loads((box.folder / "answers").read_text())
    job = {
        "id": "2026-11-26-train-a3f", "state": "running", "script": "train.py",
        "arguments": [], "began": 0.0, "log": 0, "pid": 1,
    }  # fmt: skip
    answers["jobs"] = {"jobs": [job, {**job, "id": "old", "state": "ended 0"}]}
    (box.folder / "answers").write_text(json.dumps(answers))
    done = box.shoal("cluster", "down", "box")
    assert done.exit_code == 2
    assert "jobs run on the cluster box: 2026-11-26-train-a3f. Expected" in done.output
    assert (box.machines, box.releases) == (["toy-0", "toy-1"], 0)
    done = box.shoal("cluster", "down", "box", "--force")
    assert done.exit_code == 0, done.output
    assert box.nothing_is_left()


def test_a_second_up_makes_missing_machines_and_releases_none(box: Box) -> None:
    assert box.shoal("cluster", "up", box.file).exit_code == 0
    id_of = box.state().id
    (box.folder / "toy-1").unlink()
    box.write(count=3)
    done = box.shoal("cluster", "up", box.file)
    assert "3 of 3 hosts run" in done.output
    assert (box.state().id, box.state().spec["count"]) == (id_of, 3)
    box.make("start-fails")
    assert box.shoal("cluster", "up", box.file).exit_code == 1
    assert box.machines == ["toy-0", "toy-1", "toy-2"]
    assert box.releases == 0


def test_a_cluster_without_local_state_is_released_by_its_file(box: Box) -> None:
    assert box.shoal("cluster", "up", box.file).exit_code == 0
    (box.known / "box.json").unlink()
    done = box.shoal("cluster", "down", "box", "--hosts", box.file)
    assert done.exit_code == 0, done.output
    assert box.nothing_is_left()
    assert box.releases == 1


def test_another_provider_is_refused_while_it_is_known(box: Box) -> None:
    assert box.shoal("cluster", "up", box.file).exit_code == 0
    Path(box.file).write_text(json.dumps({"hosts": ["a"]}))
    done = box.shoal("cluster", "up", box.file)
    assert done.exit_code == 2
    assert "the provider 'toy', and the file says 'hosts'" in done.output
    assert box.releases == 0
