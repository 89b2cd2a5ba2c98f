"""The numbered folders of a run: `experiments/NNN` and `models/NNN`.

This file decides their contents. The run itself is in the folder of runs, so that
`shoal runs` finds it; `experiments/NNN` is a link to the consoles of its workers, which
can be read during the run, and `models/NNN` holds copies that outlive the run's folder.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import final
from zipfile import ZipFile

from shoal.errors import ConfigError
from shoal.host.private import make_private
from shoal.runs.folder import Folder
from shoal.runs.store import ARCHIVE, LOGS, MODELS, WEIGHTS, StoredRun
from shoal.training.progress import warn_aside

CONSOLES = "experiments"
TRIES = 64
BEST = "best"
ARCHIVED = {"config.json": "network.json", "model.weights.h5": "best.weights.h5"}
"""Parts of a Keras archive, with their names beside it."""


@final
@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The folders of one run in the working directory.

    Args:
        number: Number from 1, in the order of their start.
        home: The working directory.
        run: Its run.
    """

    number: int
    home: Path
    run: StoredRun

    @property
    def consoles(self) -> Path:
        """Returns the link to the output of the workers."""
        return self.home / CONSOLES / f"{self.number:03}"

    @property
    def models(self) -> Path:
        """Returns the folder of the trained model."""
        return self.home / MODELS / f"{self.number:03}"

    @property
    def records(self) -> Path:
        """Returns the real folder of the consoles."""
        return Path(self.run.folder.path, LOGS)

    def save_models(self) -> None:
        """Copies the saved models; failing storage costs only the copies."""
        folder = Path(self.run.folder.path, MODELS)
        saved = sorted(
            path for end in (ARCHIVE, WEIGHTS) for path in folder.glob(f"[!.]*{end}")
        )
        try:
            self._copy(saved)
        except OSError as error:
            warn_aside(
                f"the models cannot be copied to {self.models} ({error}). Expected "
                f"space, and a folder of this run alone. They are in {self.run.url}."
            )

    def _copy(self, saved: list[Path]) -> None:
        if not saved:
            return
        make_private(self.models.parent)
        self.models.mkdir(mode=0o700)
        for path in saved:
            shutil.copyfile(path, self.models / path.name)
        archive = self.models / f"{BEST}.keras"
        if archive.is_file():
            with ZipFile(archive) as parts:
                for part, name in ARCHIVED.items():
                    if part in parts.namelist():
                        (self.models / name).write_bytes(parts.read(part))

    def copy_to(self, root: str) -> None:
        """Copies the run to its folder of runs, if that is not on this machine.

        Failing storage costs only the copy.

        Args:
            root: Folder or URL of runs.
        """
        source = Path(self.run.folder.path)
        place = Folder.at(root)
        if place.is_local or not source.is_dir():
            return
        target = place.child(self.run.id)
        try:
            for path in sorted(one for one in source.rglob("*") if one.is_file()):
                name = path.relative_to(source).as_posix()
                target.fs.put_file(str(path), target.where(name))
        except Exception as error:  # each kind of storage has errors of its own
            warn_aside(
                f"the run cannot be copied to {root} ({type(error).__name__}: "
                f"{error}). Expected storage that takes files. It is in "
                f"{self.run.url}."
            )

    def undo(self) -> None:
        """Removes the folders, because nothing has begun."""
        self.run.close()
        self.consoles.unlink(missing_ok=True)
        self.run.folder.remove()


def begin_experiment(run: StoredRun, home: Path) -> Experiment:
    """Takes the next number for a run, and links to its consoles.

    Args:
        run: A new run, in a folder of this machine.
        home: The working directory.

    Raises:
        ConfigError: The link cannot be made.
    """
    folder = Path(run.folder.path).resolve()
    home = home.resolve()
    inside = folder.is_relative_to(home)
    for _ in range(TRIES):
        experiment = Experiment(number=_next_number(home), home=home, run=run)
        link = experiment.consoles
        try:
            make_private(experiment.records)
            make_private(link.parent)
            target = folder / LOGS
            # Making a link fails if the name exists: runs that begin together get two
            # numbers.
            link.symlink_to(os.path.relpath(target, link.parent) if inside else target)
        except FileExistsError:
            continue
        except OSError as error:
            raise _not_begun(link, str(error)) from error
        return experiment
    raise _not_begun(home / CONSOLES, f"{TRIES} numbers in a row were taken")


def _next_number(home: Path) -> int:
    """Returns one more than the highest number of experiments and models."""
    places = (home / CONSOLES, home / MODELS)
    names = [p.name for place in places if place.is_dir() for p in place.iterdir()]
    return max((int(name) for name in names if name.isdecimal()), default=0) + 1


def _not_begun(place: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"{place} cannot be made ({reason}). Expected a working directory in which "
        f"this process may create {CONSOLES}/ and {MODELS}/. Start the script "
        "elsewhere, or make room for them."
    )
