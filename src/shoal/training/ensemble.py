"""Independent models: each trained by a run of its own, several at a time.

This file decides what members share (the data, the run folder, the user's wish to
stop) and what each has for itself (a model, an order of samples, callbacks). When
all are done the user's model becomes the best of them.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, final

import numpy as np

from shoal.errors import ConfigError
from shoal.launchers.shared import SharedBlob
from shoal.models.inspection import SAMPLE_ROWS, prepare
from shoal.models.travel import unpack
from shoal.plan import Plan
from shoal.runs.base import Run, Which
from shoal.runs.events import Event
from shoal.runs.history import is_higher_better
from shoal.training.arguments import Ready
from shoal.training.driver import Habits
from shoal.training.fitting import Outcome, Work, train, write_data
from shoal.training.progress import Progress

SEED_LIMIT = 2**31 - 1


def train_members(ready: Ready, run: Run) -> Outcome:
    """Trains every member; `ready.work.model` becomes the best one.

    Returns:
        The best member's history, with `models` and `members` (all histories), the
        best first, and `predict(x)`, the mean of their predictions.

    Raises:
        WorkerFailed, WorkerLost, ClusterError: Of the first member that failed.
        KeyboardInterrupt: After Ctrl-C; the model holds the best member so far.
    """
    plan = ready.plan
    board = Board(run, plan, ready.verbose)
    works = _works(ready)
    blob = SharedBlob()
    try:
        write_data(ready.work.source, blob)
        works = [replace(work, shared=blob) for work in works]
        outcomes = _train_all(ready, works, board)
    except KeyboardInterrupt:
        _adopt(ready.work.model, works[0].model)
        raise
    finally:
        blob.close()
        board.close()
    order = _ranking(outcomes, _monitor(ready, outcomes))
    models = [works[place].model for place in order]
    _adopt(ready.work.model, models[0])
    run.save_model(ready.work.model, "best")
    history = outcomes[order[0]].history
    history.set_model(ready.work.model)
    ready.work.model.history = history
    history.models = models
    history.members = [outcomes[place].history for place in order]
    history.predict = Combined(tuple(models))
    steps = [o.first_step for o in outcomes if o.first_step is not None]
    return Outcome(history=history, first_step=min(steps, default=None))


@final
@dataclass(frozen=True)
class Combined:
    """Predicts with several models at once: the mean of what they say.

    Args:
        models: With the same outputs.
    """

    models: tuple[Any, ...]

    def __call__(self, x: Any, **arguments: Any) -> Any:
        """Returns the mean of the members' predictions.

        Args:
            x: As for `model.predict`.
            **arguments: Of `model.predict`.
        """
        found = [model.predict(x, **arguments) for model in self.models]
        tree = import_module("keras").tree
        return tree.map_structure(lambda *parts: np.mean(parts, axis=0), *found)


@final
class Board:
    """Puts the records of members together in one run. Safe from several threads.

    Args:
        run: Where they go.
        plan: Of the whole.
        verbose: As in Keras.
    """

    def __init__(self, run: Run, plan: Plan, verbose: int | str) -> None:
        self.run, self.stop = run, threading.Event()
        self._plan = plan
        self._progress = Progress(plan, verbose)
        self._lock = threading.Lock()
        self._epochs: dict[int, dict[int, Event]] = {}

    def epoch_ended(self, member: int, event: Event) -> None:
        """Keeps a member's epoch; the last member's completes it for the run."""
        with self._lock:
            epoch = int(event["epoch"])
            ended = self._epochs.setdefault(epoch, {})
            ended[member] = event
            self.run.event("member_epoch_ended", member=member, **event)
            if len(ended) == self._plan.models:
                self._complete(epoch)

    def close(self) -> None:
        """Completes the epochs that some members did not reach."""
        with self._lock:
            for epoch in sorted(self._epochs):
                self._complete(epoch)
            self._progress.close()

    def _complete(self, epoch: int) -> None:
        events = self._epochs.pop(epoch)
        metrics = [dict(events[member]["metrics"]) for member in sorted(events)]
        names = [n for n in metrics[0] if all(n in found for found in metrics)]
        means = {n: float(np.mean([found[n] for found in metrics])) for n in names}
        samples = sum(int(event["samples"]) for event in events.values())
        self.run.event(
            "epoch_ended", epoch=epoch, metrics=means, samples=samples, members=metrics
        )
        self._progress.epoch_begin(epoch)
        self._progress.epoch_end(samples, means)


@final
class MemberRun(Run):
    """One member's records, on their way to the run of all.

    Args:
        board: Of all members.
        member: Number of this one.
    """

    def __init__(self, board: Board, member: int) -> None:
        run = board.run
        super().__init__(run_id=run.id, name=run.name, url=run.url, complain=None)
        self._board, self._member = board, member

    def exchanges(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Passes records on; here a member hears that it is to stop."""
        if self._board.stop.is_set():
            raise KeyboardInterrupt
        member = self._member
        self._board.run.exchanges([{**record, "rank": member} for record in records])

    @property
    def lost_events(self) -> int:
        """Always 0: the run of all counts."""
        return 0

    def log_path(self, rank: int) -> Path | None:
        """Returns the log of this member's one worker."""
        del rank
        return self._board.run.log_path(self._member)

    def save_model(self, model: Any, which: Which) -> str | None:
        """Saves nothing: the best of all members is saved at the end."""
        del model, which

    def write_plan(self, plan: Mapping[str, Any]) -> None:
        """Writes nothing: there is one plan."""

    def flush(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""

    def _keep(self, line: bytes, event: Event) -> None:
        del line
        stamp = ("v", "kind", "time", "t", "member")
        fields = {name: value for name, value in event.items() if name not in stamp}
        if event["kind"] == "epoch_ended":
            self._board.epoch_ended(self._member, fields)
        elif event["kind"] not in ("run_started", "epoch_started"):
            fields = {"rank": self._member, **fields} | {"member": self._member}
            self._board.run.event(event["kind"], **fields)


def _works(ready: Ready) -> list[Work]:
    """A model for each member.

    A callable makes each anew; a model is copied, so that members start from the
    same weights (they may be pretrained) and differ in order and random state.
    """
    work, found = ready.work, list[Work]()
    sample = work.source.take(slice(0, SAMPLE_ROWS))
    for member in range(ready.plan.models):
        if work.factory is not None and member:
            model = work.factory()
        else:
            model = unpack(work.packed)
        prepare(model, sample)
        if work.factory is None and member:
            _reseed(model, member)
        found.append(replace(work, model=model).with_packed())
    return found


def _reseed(model: Any, member: int) -> None:
    """Gives a copy random state of its own, for dropout and its like."""
    for variable in model.non_trainable_variables:
        if "uint32" in str(variable.dtype) and tuple(variable.shape) == (2,):
            state = np.asarray(variable.numpy()).copy()
            words = np.random.SeedSequence([int(state[0]), member])
            state[0] = words.generate_state(1)[0]
            variable.assign(state)


def _train_all(ready: Ready, works: Sequence[Work], board: Board) -> list[Outcome]:
    """Trains members in threads, as many at a time as there are workers."""
    jobs = [_habits(ready, work, member) for member, work in enumerate(works)]
    with ThreadPoolExecutor(ready.plan.workers, "shoal-member") as pool:
        futures: list[Future[Outcome]] = []
        try:
            for member, (work, habits) in enumerate(zip(works, jobs, strict=True)):
                plan = _member_plan(ready.plan, member)
                run = MemberRun(board, member)
                futures.append(pool.submit(train, plan, work, run, habits))
            wait(futures, return_when=FIRST_EXCEPTION)
            done = [f for f in futures if f.done()]
            for future in done:
                future.result()
        except BaseException:
            board.stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        return [future.result() for future in futures]


def _member_plan(plan: Plan, member: int) -> Plan:
    """The plan of one member: one worker, an order of its own."""
    return replace(
        plan,
        workers=1,
        min_workers=1,
        models=1,
        gang_batch_size=plan.batch_size,
        seed=(plan.seed + member) % SEED_LIMIT,
    )


def _habits(ready: Ready, work: Work, member: int) -> Habits:
    """Callbacks and validation of one member."""
    try:
        callbacks = copy.deepcopy(ready.arguments.callbacks)
    except Exception as error:
        raise ConfigError(
            f"callbacks cannot be copied for the members of an ensemble: {error}. "
            "Expected callbacks that copy.deepcopy can copy, one set for each member. "
            "Leave such a callback out, or train the members one by one."
        ) from error
    own = replace(ready, work=work, verbose=0)
    return replace(own.habits(), callbacks=callbacks)


def _monitor(ready: Ready, outcomes: Sequence[Outcome]) -> str:
    seen = outcomes[0].history.history
    return ready.arguments.monitor or ("val_loss" if "val_loss" in seen else "loss")


def _ranking(outcomes: Sequence[Outcome], monitor: str) -> list[int]:
    """Members by their last value of a metric, the best first."""
    sign = -1.0 if is_higher_better(monitor) else 1.0
    values = [
        sign * o.history.history.get(monitor, [np.inf * sign])[-1] for o in outcomes
    ]
    return sorted(range(len(values)), key=lambda place: (values[place], place))


def _adopt(model: Any, other: Any) -> None:
    """Makes a model equal to another of the same make, optimizer included."""
    pairs = [
        *zip(model.variables, other.variables, strict=True),
        *zip(model.optimizer.variables, other.optimizer.variables, strict=True),
    ]
    for ours, theirs in pairs:
        # A copy: JAX donates the buffers of whichever model trains first.
        ours.assign(np.array(theirs.numpy()))
