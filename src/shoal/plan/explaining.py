"""A plan in lines for people. This file decides only their words."""

from __future__ import annotations

from shoal.plan.cautions import metric_notes
from shoal.plan.collective import library_of
from shoal.plan.decisions import Decisions
from shoal.plan.pace import BACKWARD, exchange_s, is_chosen, step_s
from shoal.plan.refusals import is_repeatable
from shoal.strategies.base import UsualPeriod


def explained(plan: Decisions) -> str:
    """Returns the lines of `Plan.explain`."""
    title = (
        f"{plan.strategy.name} on {count(plan.workers, 'worker')}, "
        f"{count(plan.threads, 'thread')} each, cluster {plan.request.cluster!r}"
    )
    lines = [f"  {name:<10} {text}" for name, text in _paragraphs(plan)]
    return "\n".join([title, *lines, *(f"  warning    {w}" for w in plan.warnings)])


def _paragraphs(plan: Decisions) -> list[tuple[str, str]]:
    """Returns the lines of `explain`, each with its heading."""
    model, data, asked = plan.model, plan.data, plan.request
    most = "highest" if plan.monitor.is_higher_better else "lowest"
    kept = "each committed exactly once" if data.is_exactly_once else "at least once"
    found = [
        ("backend", f"{plan.backend} on {_device(plan)}; {_exchanged(plan)}"),
        ("model", f"{model.name}: {model.parameters:,} trainable floats, "
                  f"{model.statistics:,} statistics, {model.optimizer}{_frozen(plan)}"),
        ("data", f"{plan.data_rows:,} samples, {data.size_bytes / 1e6:,.1f} MB "
                 f"of {data.kind}; {kept}"),
        ("step", f"{plan.worker_batch_size:,} samples of a worker, "
                 f"{plan.global_batch_size:,} of all workers together"),
        ("epochs", f"{_epochs(plan.epoch_range)}, {plan.rows:,} "
                   f"samples each, {plan.samples_expected:,} in all"),
        ("exchange", _exchange(plan)),
        ("repeatable", _repeatable(plan)),
        ("best model", f"that of the {most} {plan.monitor.name}"),
        ("lost", f"a worker is replaced, up to {count(asked.max_restarts, 'time')}; "
                 f"the run needs {plan.min_workers} of {plan.workers}"),
    ]  # fmt: skip
    found[1:1] = _places(plan)
    if plan.choice:
        found.insert(0, ("strategy", plan.choice))
    found += _rate(plan)
    if plan.estimates_averages:
        found.append((
            "averages",
            "moving averages of BatchNormalization are estimated anew after each "
            "epoch, from training samples that do not count",
        ))  # fmt: skip
    if plan.machine.nodes and asked.servers > 1:
        found.append(("servers", _servers(plan)))
    if plan.data.validation_rows:
        found.append(("validation", _validation(plan)))
    if asked.standby or asked.spares:
        found.append(("waiting", _waiting(plan)))
    if plan.quorum:
        found.append(("late", _late(plan)))
    if asked.on_nan is not None:
        found.append(("nan", _not_finite(plan)))
    is_here = plan.exchanges_gradients and plan.device == "cpu"
    is_asked = not plan.choice and not is_chosen(asked, plan.machine)
    if is_here and plan.workers > 1 and is_asked:
        found.append((
            "note",
            f"on CPU {plan.strategy.name} exchanges every step and waits for it; "
            "strategy='auto' exchanges less often and is faster, on another curve",
        ))  # fmt: skip
    return found + [("note", text) for text in metric_notes(model)]


def _frozen(plan: Decisions) -> str:
    """Returns the size of untrained variables, if that is large."""
    size_mb = plan.model.local_bytes / 1e6
    return (
        f"; {size_mb:,.1f} MB that are not trained travel once" if size_mb > 1 else ""
    )


def _exchange(plan: Decisions) -> str:
    """Returns what is exchanged, and how often."""
    how = "when ready" if plan.strategy.is_asynchronous else "in rounds"
    period = plan.alone_steps or plan.strategy.period
    every = "every step" if period == 1 else f"every {period} steps"
    usual = plan.request.strategy.period
    if isinstance(usual, UsualPeriod) and period < usual:
        every += f" (usually {usual}; an epoch is short)"
    exchanged = f"{plan.strategy.exchanges} of {plan.message_bytes / 1e6:,.2f} MB {how}"
    if plan.strategy.is_independent:
        exchanged = f"none: {count(plan.models, 'model')}, each on all data; committed"
    elif plan.alone_steps:
        exchanged = "none while there is one worker; committed"
    return f"{exchanged}, {every}: {plan.exchanges_per_epoch:,.0f} a worker and epoch"


def _device(plan: Decisions) -> str:
    """Returns the device of the workers, and their share of its memory."""
    if not plan.places:
        return "cpu"
    gpus = {place.number: place for place in plan.places}
    most = max(place.workers for place in gpus.values())
    each = "one worker each" if most == 1 else f"up to {count(most, 'worker')} each"
    least, shares = "", [place.share for place in plan.places]
    if min(shares) < max(shares):
        least = f"{min(shares):.0%} to "
    return (
        f"{count(len(gpus), 'GPU')}, {each}, which may take {least}{max(shares):.0%} "
        "of its memory"
    )


def _places(plan: Decisions) -> list[tuple[str, str]]:
    """Returns the lines about the number of workers and their machines."""
    found: list[tuple[str, str]] = []
    if is_chosen(plan.request, plan.machine):
        found.append(("workers", _workers(plan)))
    if plan.machine.nodes:
        found.append(("nodes", _nodes(plan)))
    return found


def _workers(plan: Decisions) -> str:
    """Returns why there are as many workers: what a step costs, and an exchange."""
    rows = min(plan.batch_size, plan.rows)
    work = plan.model.multiplications
    step = 1e3 * step_s(work, rows, plan.machine.cores)
    if not work.total:
        return "one, as how long a step takes is not known; workers=2 overrides"
    exchange = 1e3 * exchange_s(plan.model.parameters, max(2, plan.workers))
    text = (
        f"a step of {count(rows, 'sample')} takes one worker about {step:.2g} ms "
        f"({BACKWARD * rows * work.total / 1e6:,.3g} million multiplications) on "
        f"{count(plan.machine.cores, 'core')}, an exchange {exchange:.2g} ms"
    )
    if plan.workers == 1:
        return f"{text}: one worker is fastest; workers=2 overrides"
    return f"{text}: {plan.workers} are faster; workers=1 overrides"


def _nodes(plan: Decisions) -> str:
    """Returns the machines of a cluster."""
    names = [node.name for node in plan.machine.nodes]
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    cores, slots = sum(node.cores for node in plan.machine.nodes), plan.machine.slots
    if slots is not None:
        each = count(plan.machine.threads_each, "core")
        what = count(len(names), "executor")
        limit = plan.machine.overhead_each_mib
        over = f", {limit:,} MiB of memory overhead a worker" if limit else ""
        return f"{what} ({shown}), {count(slots, 'slot')} of {each}{over}"
    return f"{count(len(names), 'node')} ({shown}), {count(cores, 'core')} free"


def _exchanged(plan: Decisions) -> str:
    """Returns where gradients are averaged or weights are exchanged."""
    if plan.strategy.is_independent or plan.workers == 1:
        return "nothing to average"
    if plan.collective == "native":
        library = library_of(plan.backend, plan.places)
        return (
            f"gradients averaged by the workers themselves ({library}),"
            " through the server where that fails"
        )
    if plan.collective == "shared":
        return "gradients averaged by the workers themselves, in shared memory"
    asked = plan.request
    done = "averaged" if plan.exchanges_gradients else "exchanged"
    beside = " while workers compute on" if asked.overlap else ""
    if asked.codec != "float32":
        beside += f", in {asked.codec} between hosts"
    server = "the server" if asked.servers == 1 else f"{asked.servers} servers"
    return f"{plan.strategy.exchanges} {done} through {server}{beside}"


def _epochs(epochs: range) -> str:
    """Returns epochs as people count them, from 1.

    Example:
        >>> _epochs(range(3)), _epochs(range(2, 5)), _epochs(range(4, 5))
        ('3 epochs', 'epochs 3 to 5 of 5', 'epoch 5 of 5')
    """
    first, end = epochs.start + 1, epochs.stop
    if first == 1 or not epochs:
        return count(len(epochs), "epoch")
    which = f"epoch {end}" if len(epochs) == 1 else f"epochs {first} to {end}"
    return f"{which} of {end}"


def _repeatable(plan: Decisions) -> str:
    """Returns how equal a second run with the same seed is."""
    if not is_repeatable(plan.strategy, plan.workers):
        return "no: messages are applied as they arrive, so two runs differ"
    if not plan.is_repeatable:
        return "no: without epoch_barrier epochs overlap as it happens"
    if plan.quorum:
        return "while no worker is late; to rounding, with quorum=1.0"
    if plan.request.deterministic:
        return f"yes, bit for bit, with seed {plan.seed}"
    return f"to rounding, with seed {plan.seed}; bit for bit with deterministic=True"


def _validation(plan: Decisions) -> str:
    """Returns which process validates, and whether workers wait."""
    rows = count(plan.data.validation_rows, "sample")
    if plan.request.validation == "async":
        return f"{rows}, by a process of its own while workers train on"
    return f"{rows}, in this process; workers wait"


def _rate(plan: Decisions) -> list[tuple[str, str]]:
    """Returns the line about the workers' learning rate, if it is not the user's."""
    if plan.rate_factor == 1:
        return []
    text = f"workers use {plan.rate_factor:.3g} times the optimizer's learning rate"
    if plan.rate_epochs:
        text += f", reached after {count(plan.rate_epochs, 'epoch')}"
    if plan.request.scale_rate is None and plan.request.strategy.scales_rate:
        text += ", as they are averaged; scale_rate='none' leaves it as it is"
    return [("rate", text)]


def _servers(plan: Decisions) -> str:
    """Returns where the servers of a cluster run."""
    others = count(plan.request.servers - 1, "other")
    text = (
        f"the one that orders messages beside this script, the {others} beside "
        "workers, each on another node as far as there are nodes"
    )
    if plan.request.standby:
        text += "; standbys of those on other nodes again"
    return text


def _waiting(plan: Decisions) -> str:
    """Returns the processes that wait to replace a lost one."""
    asked = plan.request
    each = "a server that takes over when the first one is lost"
    if asked.servers > 1:
        each = "for each server one that takes over when it is lost"
    found = [each] * asked.standby
    if asked.spares:
        found.append(f"{count(asked.spares, 'spare worker')}, everything imported")
    return " and ".join(found)


def _late(plan: Decisions) -> str:
    """Returns what happens when workers are slower than the others."""
    return (
        f"a round closes with {plan.quorum} of {plan.workers} when it took twice as "
        "long as expected; the samples of the others go to free workers"
    )


def _not_finite(plan: Decisions) -> str:
    """Returns what happens when numbers turn NaN or infinite."""
    window = f"window of {count(plan.strategy.period, 'step')}"
    part = "step" if plan.exchanges_gradients else window
    return {
        "stop": "the run stops; the model keeps the last good center",
        "skip": f"that {part} is not applied; its samples count",
        "rollback": "back to the last checkpoint, and on without those samples",
    }[str(plan.request.on_nan)]


def count(number: int, noun: str) -> str:
    """Returns a number with its noun.

    Example:
        >>> count(1, "worker"), count(2000, "step")
        ('1 worker', '2,000 steps')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
