"""Checkpoints: values that are stored completely, and found again after any crash.

A folder of checkpoints holds `parts/` (files that never change), one manifest for
each checkpoint, written after all its parts, and `owners/` (the present writer).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self, final

from shoal.errors import CheckpointError, ConfigError
from shoal.runs import checkpoint_manifest
from shoal.runs.checkpoint_contents import Checkpoint as Checkpoint
from shoal.runs.checkpoint_contents import check, pack, unpack
from shoal.runs.checkpoint_files import (
    Damage,
    Part,
    read_whole,
    remove,
    sizes,
    storage,
    write_part,
    write_whole,
)
from shoal.runs.checkpoint_manifest import PARTS, CheckpointNumber, Manifest
from shoal.runs.checkpoint_owner import Ownership
from shoal.runs.folder import Folder


@final
class CheckpointStore:
    """The checkpoints of one run, on a local disk or any storage that fsspec supports.

    Reading needs no preparation. To write, `open` it first: that takes the folder over
    from any other writer, whose next `save` is refused. When a run is resumed, open
    before `latest`, so that no checkpoint can be saved in between and be lost.

    A crash at any point leaves the previous checkpoint readable. The storage holds
    `keep` checkpoints, and one more during a save.

    Args:
        folder: Folder of the checkpoints, such as `run.folder.child("checkpoints")`.
        keep: Number of complete checkpoints that stay, at least 1, default 2.
        complain: Called with one line when old checkpoints cannot be removed; default
            None: the logger "shoal".

    Raises:
        ConfigError: `keep` is below 1.

    Example:
        >>> store = CheckpointStore(Folder.at("memory://doctest-checkpoints")).open()
        >>> store.save(Checkpoint(number=1, document={"epoch": 0}))
        >>> store.save(Checkpoint(number=2, document={"epoch": 1}))
        >>> store.latest(print).document
        {'epoch': 1}
    """

    def __init__(
        self,
        folder: Folder,
        *,
        keep: int = 2,
        complain: Callable[[str], None] | None = None,
    ) -> None:
        if keep < 1:
            raise ConfigError(
                f"keep={keep} checkpoints are too few. Expected 1 or more. "
                "Leave it out to keep 2."
            )
        self.folder = folder
        self._keep = keep
        self._complain = complain or logging.getLogger("shoal").warning
        self._lock = threading.Lock()
        self._owner: Ownership | None = None
        self._last = -1
        self._attempts = 0
        self._damaged: set[CheckpointNumber] = set()

    def open(self) -> Self:
        """Claims the folder for writing. Once is enough; returns itself.

        Raises:
            OSError: The storage cannot be reached or takes no files.
            CheckpointError: Others claimed it faster, many times in a row.
        """
        with self._lock:
            if self._owner is None:
                # Also above the manifests: a copy of a run may lack the tokens.
                newest = max((p.generation for p in self._places()), default=0)
                self._owner = Ownership.claim(self.folder, above=newest)
        return self

    def check(self) -> None:
        """Checks that no other process has claimed the folder since.

        Raises:
            CheckpointError: Another one has.
            OSError: The storage or the folder cannot be reached.
        """
        owner = self._owner  # set once; a save in another thread is not waited for
        if owner is None:
            Ownership.check_unclaimed(self.folder)
        else:
            owner.check()

    def save(self, checkpoint: Checkpoint) -> None:
        """Saves a checkpoint: it is complete and durable when this returns.

        It takes as long as the storage does, so call it from a thread of its own. The
        arrays must not change meanwhile.

        Raises:
            OSError: The storage is full or cannot be reached. No partial checkpoint is
                left that `latest` would take; try again later, with this number or a
                higher one.
            CheckpointError: Another process has taken over, the number does not
                grow, or a value cannot be saved. Trying again does not help.
        """
        with self._lock:
            document = check(checkpoint)
            owner = self._writer(checkpoint.number)
            owner.check()
            try:
                self._write(checkpoint, document, owner)
            except OSError:
                # A successor removes this writer's files during a write: report that,
                # then.
                with suppress(OSError):
                    owner.check()
                raise
            # Checked again: a writer that claimed before the manifest was written has
            # not seen it. A writer that claims from now on will see it.
            owner.check()
            self._last = checkpoint.number
            self._clean_up(owner)

    def latest(self, complain: Callable[[str], None]) -> Checkpoint | None:
        """Returns the newest checkpoint whose bytes are all unchanged.

        Args:
            complain: Called with one line for each damaged checkpoint that is skipped.

        Returns:
            The checkpoint, its arrays new and writable. None when there is none.

        Raises:
            CheckpointError: All are damaged, or of another version of Shoal.
            OSError: The storage cannot be reached.
        """
        seen: set[CheckpointNumber] = set()
        reasons: list[str] = []
        # Listed again each time: a writer may save, and remove, during this loop.
        while place := next((p for p in self._places() if p not in seen), None):
            seen.add(place)
            try:
                return unpack(self.folder, self._manifest(place))
            except Damage as damage:
                if place not in self._places():
                    continue
                self._damaged.add(place)
                reasons.append(f"checkpoint {place.number}: {damage}")
                complain(
                    f"checkpoint {place.number} in {self.folder.url} is damaged: "
                    f"{damage}. Expected every file as it was written. "
                    "The one before it is tried."
                )
        if reasons:
            raise CheckpointError(
                f"no checkpoint in {self.folder.url} can be read: "
                f"{'; '.join(reasons)}. Expected at least one with every file as it "
                "was written. Restore the folder from a copy, or remove it and start "
                "the run again."
            )
        return None

    def _writer(self, number: int) -> Ownership:
        if self._owner is None:
            raise CheckpointError(
                f"checkpoint {number} cannot be saved: {self.folder.url} was not "
                "opened for writing. Expected a store that has claimed its folder. "
                "Call open() before save()."
            )
        if number <= self._last:
            raise CheckpointError(
                f"checkpoint {number} cannot be saved in {self.folder.url}: "
                f"the last one was number={self._last}. Expected a higher number. "
                "Count checkpoints upwards."
            )
        return self._owner

    def _write(self, checkpoint: Checkpoint, document: bytes, owner: Ownership) -> None:
        """Writes the parts, then the manifest; removes all of it on failure."""
        place = CheckpointNumber(generation=owner.generation, number=checkpoint.number)
        self._attempts += 1
        names: list[str] = []

        def write(content: memoryview) -> Part:
            names.append(place.part(owner.writer, self._attempts, len(names)))
            return write_part(self.folder, names[-1], content)

        try:
            manifest = pack(checkpoint, document, place, write)
            owner.check()
            write_whole(
                self.folder, place.manifest, checkpoint_manifest.encode(manifest)
            )
        except BaseException:
            self._take_back(place, names)
            raise

    def _take_back(self, place: CheckpointNumber, names: list[str]) -> None:
        """Removes the files of a failed save, as far as the storage allows."""
        try:
            remove(self.folder, place.manifest)
        except OSError:
            # A put that failed may have arrived. Then the checkpoint is complete,
            # and must stay; otherwise the next save removes its parts.
            return
        for name in names:
            with suppress(OSError):
                remove(self.folder, name)

    def _clean_up(self, owner: Ownership) -> None:
        """Removes unneeded files. A failure costs space, not the checkpoint."""
        try:
            kept, old = self._sort_out()
            for place in old:
                # Before its parts: a manifest must never exist without them.
                remove(self.folder, place.manifest)
            for name in self._orphans(kept, owner.generation):
                remove(self.folder, name)
            owner.forget_others()
        except OSError as error:
            self._complain(
                f"old checkpoints cannot be removed from {self.folder.url} ({error}). "
                "Expected a storage that lets this process remove its files. "
                "The next checkpoint tries again; watch the space until then."
            )

    def _sort_out(
        self,
    ) -> tuple[dict[CheckpointNumber, Manifest | None], list[CheckpointNumber]]:
        """Separates manifests that stay, None for an unreadable one, from old ones."""
        lengths = sizes(self.folder, PARTS)
        kept: dict[CheckpointNumber, Manifest | None] = {}
        whole = 0
        found = self._places()
        for place in found:
            if whole >= self._keep:
                break
            try:
                manifest = self._manifest(place)
            except (Damage, CheckpointError):
                kept[place] = None
                continue
            kept[place] = manifest
            is_whole = all(
                lengths.get(part.name.removeprefix(f"{PARTS}/")) == part.size_bytes
                for part in manifest.parts
            )
            whole += is_whole and place not in self._damaged
        return kept, found[len(kept) :]

    def _orphans(
        self, kept: dict[CheckpointNumber, Manifest | None], generation: int
    ) -> list[str]:
        """Lists parts that no manifest needs, and partial files of a crash."""
        needed = {m.place: {p.name for p in m.parts} for m in kept.values() if m}
        orphans: list[str] = []
        for bare in sizes(self.folder, PARTS):
            place, name = checkpoint_manifest.place_of_part(bare), f"{PARTS}/{bare}"
            # Parts of a later generation are another writer's, being written.
            if place is None or place.generation > generation:
                continue
            is_kept = place in kept and name in needed.get(place, {name})
            if not is_kept:
                orphans.append(name)
        for name in sizes(self.folder, ""):
            place = checkpoint_manifest.place_of_leftover(name)
            if place is not None and place.generation <= generation:
                orphans.append(name)
        return orphans

    def _places(self) -> list[CheckpointNumber]:
        with storage(self.folder):
            return checkpoint_manifest.places(self.folder.names())

    def _manifest(self, place: CheckpointNumber) -> Manifest:
        return checkpoint_manifest.decode(
            read_whole(self.folder, place.manifest), place
        )
