"""Combinations that are refused before anything starts. Pure."""

from __future__ import annotations

from shoal.backends import BACKENDS
from shoal.data.order import Order, shares
from shoal.errors import PlanError
from shoal.facts import DataFacts, MachineFacts, ModelFacts
from shoal.plan.request import Request
from shoal.strategies.base import Strategy


def is_repeatable(
    strategy: Strategy, workers: int, *, epoch_barrier: bool = True
) -> bool:
    """Whether a second run with the same seed can give the same weights.

    Without a barrier the controller opens the next epoch at a variable time, on which
    the division of the last epoch's rest among rounds depends.
    """
    is_ordered = not strategy.is_asynchronous and epoch_barrier
    return workers == 1 or is_ordered or strategy.is_independent


def refuse(
    request: Request, model: ModelFacts, workers: int, machine: MachineFacts
) -> None:
    """Raises PlanError if arguments do not work together.

    Args:
        request: The request.
        model: Facts about its model.
        workers: Number of workers that would run.
        machine: Facts about where they would run.
    """
    strategy = request.strategy
    _refuse_model(model)
    is_here = request.cluster in ("local", "inline")
    if strategy.is_independent and not is_here and machine.slots is None:
        raise PlanError(
            f"{strategy.name} does not run on cluster={request.cluster!r}: its members "
            "are trained by processes of one machine, or in slots of Spark. Expected a "
            "strategy whose workers exchange something. Leave cluster out, or choose "
            "another one."
        )
    limit = strategy.max_workers
    if limit is not None and workers > limit:
        raise PlanError(
            f"{strategy.name} works with at most {limit:,} worker(s), but "
            f"workers={workers}. Expected fewer workers or another strategy. "
            f"Pass workers={limit}, or strategy='all_reduce'."
        )
    if strategy.exchanges == "gradients":
        _refuse_step(strategy, model)
        if workers > 1:
            _refuse_losses(strategy, model)
    if request.deterministic:
        _refuse_chance(request, workers)


def refuse_threads(request: Request, machine: MachineFacts) -> None:
    """Raises PlanError if a worker would use more cores than its slot has.

    Example:
        >>> from shoal.strategies import AEASGD
        >>> machine = MachineFacts(cores=2, slots=2, threads_each=1)
        >>> refuse_threads(Request(strategy=AEASGD(), threads=1), machine)
    """
    if machine.is_divisible or not machine.threads_each:
        return
    if (request.threads or 0) > machine.threads_each:
        raise PlanError(
            f"threads={request.threads}, but each slot of cluster={request.cluster!r} "
            f"has {machine.threads_each} core(s). Expected no more threads than that. "
            "Leave threads out, or give tasks more cores (spark.task.cpus)."
        )


LEAST_OVERHEAD_MIB = 256
"""Memory that a training process takes at least."""


def refuse_overhead(request: Request, machine: MachineFacts) -> None:
    """Raises PlanError if the container of a worker has no room for its process.

    Example:
        >>> from shoal.strategies import AEASGD
        >>> machine = MachineFacts(cores=1, slots=1, overhead_each_mib=384)
        >>> refuse_overhead(Request(strategy=AEASGD()), machine)
    """
    if 0 < machine.overhead_each_mib < LEAST_OVERHEAD_MIB:
        raise PlanError(
            f"each worker of cluster={request.cluster!r} has "
            f"{machine.overhead_each_mib:,} MiB of memory overhead. Expected at least "
            f"{LEAST_OVERHEAD_MIB} MiB, better 1,024: its container is killed above "
            "that. Set spark.executor.memoryOverhead when the session is created, or "
            "give executors fewer cores."
        )


def refuse_fixed_batch(
    model: ModelFacts, order: Order, epochs: range, workers: range
) -> None:
    """Raises PlanError if a step would have other rows than the model requires.

    Args:
        model: Facts about the model, whose inputs may fix a batch size.
        order: Order of the samples.
        epochs: Epochs of the run.
        workers: Fewest and most workers that share each batch; one each if not shared.
    """
    fixed, batch = model.fixed_batch, order.batch_size
    if not fixed:
        return
    which = f"model {model.name!r} has a fixed batch size of {fixed}, "
    # Epochs repeat after a pass; without `steps_per_epoch` all but the first are equal.
    turns = order.epochs_per_pass if order.steps_per_epoch else 2
    rows = {n for epoch in epochs[:turns] for n in order.batch_rows(epoch)}
    odd = sorted(n for n in rows if n != fixed * workers[-1])
    if odd and (batch not in odd or order.has_batches):
        raise PlanError(which + _of_last(order, odd[0], is_once=len(epochs) == 1))
    if odd and workers[-1] > 1:
        raise PlanError(
            f"{which}a worker's share is {shares(batch, workers[-1])[0]}: "
            f"batch_size={batch} is divided among {workers[-1]} workers. Expected "
            f"shares of {fixed}. Pass batch_size={fixed * workers[-1]}, or a strategy "
            "whose workers have whole batches, such as 'local_sgd', with "
            f"batch_size={fixed}."
        )
    if odd:
        raise PlanError(
            f"{which}and batch_size={batch}. Expected batches of {fixed}. Pass "
            f"batch_size={fixed}, or build the model with keras.Input(shape), which "
            "fixes none."
        )
    if len(workers) > 1:
        raise PlanError(
            f"{which}and a batch would be divided among {workers[0]} to {workers[-1]} "
            "workers. Expected a fixed number of workers, because the size of a "
            f"worker's share cannot change. Pass workers={workers[-1]}."
        )


def _of_last(order: Order, rows: int, *, is_once: bool) -> str:
    """Returns the fault of a batch that does not have the usual rows."""
    if order.has_batches:
        return (
            f"and a batch of the data has {rows}. Expected batches of one size, as the "
            "model takes no others. Leave the others out where the batches are made."
        )
    steps, left = divmod(order.rows, order.batch_size)
    once = f", or steps_per_epoch={steps}" if is_once else ""
    return (
        f"and the last of {order.rows:,} samples make a batch of {rows}. Expected "
        "whole batches, as the model takes no others. "
        f"Pass {order.rows - left:,} samples{once}."
    )


def refuse_late(request: Request, data: DataFacts) -> None:
    """Raises PlanError if a process of its own cannot validate."""
    if request.validation != "async":
        return
    if data.validation_rows == 0:
        raise PlanError(
            "validation='async' without data to validate on. Expected "
            "validation_data=(x, y) or validation_split. Pass one, or leave it out."
        )
    if request.cluster == "inline":
        raise PlanError(
            "validation='async' with cluster='inline'. Expected processes, of which "
            "one validates. Leave one of the two out."
        )
    if request.strategy.is_independent:
        raise PlanError(
            f"validation='async' with {request.strategy.name}, which validates each of "
            "its models where it is trained. Expected a strategy with one model. "
            "Leave validation out."
        )


def _refuse_model(model: ModelFacts) -> None:
    """Refuses models that no strategy can train."""
    if model.backend not in BACKENDS:
        raise PlanError(
            f"backend {model.backend!r} cannot train. "
            f"Expected one of: {', '.join(BACKENDS)}. "
            f"Set KERAS_BACKEND={next(iter(BACKENDS))} before Keras is imported."
        )
    if model.refused_dtypes:
        raise PlanError(
            f"{model.name} has weights that cannot be exchanged: "
            f"{', '.join(model.refused_dtypes)}. "
            "Expected float32, bfloat16 or float16. "
            "Build the model with keras.config.set_floatx('float32')."
        )
    if "none" in model.reductions and not model.has_own_loss:
        raise PlanError(
            f"a loss of {model.name} has reduction='none', which gives a number for "
            "each sample. Expected one number to take a gradient of; Keras' own fit "
            "cannot train with it either. Choose reduction='sum_over_batch_size', or "
            "reduce it in a compute_loss of your own."
        )


def refuse_uncompiled(
    strategy: Strategy, model: ModelFacts, machine: MachineFacts
) -> None:
    """Refuses `jit_compile` without a compiler.

    Gradients are computed step by step, and on GPUs other compilers are used.

    Raises:
        PlanError: There is no compiler.
    """
    is_compiled = model.needs_compiler and strategy.exchanges == "weights"
    if is_compiled and not (machine.has_compiler or machine.gpus):
        raise PlanError(
            f"{model.name} is compiled with jit_compile=True, for which "
            f"{model.backend} finds no C++ compiler. Expected g++ (on macOS clang++) "
            "on PATH, or what $CXX names. Install one, or call "
            "model.compile with jit_compile=False."
        )


def _refuse_step(strategy: Strategy, model: ModelFacts) -> None:
    """Refuses steps whose gradients cannot be replaced by a mean of all workers."""
    way_out = (
        "Choose a strategy that exchanges weights, for example 'local_sgd', or "
        "'single' for one worker"
    )
    # If everything is frozen, Keras takes no step either.
    calls = model.applies if model.parameters else None
    if calls is not None and len(calls) != 1:
        names = f": {', '.join(calls)}" if calls else ""
        several = "" if not calls else (
            ", or, where all gradients come from one loss, apply one "
            "keras.optimizers.MultiOptimizer in place of them"
        )  # fmt: skip
        raise PlanError(
            f"train_step of {model.name!r} applies gradients {len(calls)} "
            f"times in one step{names}. {strategy.name} expects one optimizer to be "
            "applied once, because workers average their gradients once a step, and "
            f"what is computed after a first update depends on it. {way_out}{several}."
        )
    if model.unseen_optimizers:
        raise PlanError(
            f"train_step of {model.name!r} applies an optimizer that the model does "
            f"not hold: {', '.join(model.unseen_optimizers)}. {strategy.name} expects "
            "one that is an attribute of the model, so that each worker finds its own. "
            "Assign it to an attribute, as in self.second = optimizer."
        )
    if model.changed_beside:
        raise PlanError(
            f"train_step of {model.name!r} changes variables by itself, beside the "
            f"optimizer's step: {', '.join(model.changed_beside)}. {strategy.name} "
            "expects train_step to compute nothing from updated weights, because it "
            "updates them after train_step, with the mean gradient of all workers. "
            f"{way_out}."
        )


def _refuse_losses(strategy: Strategy, model: ModelFacts) -> None:
    """Refuses losses without a common divisor: rows, weights, or none."""
    if model.sums_gradients and "sum" not in model.reductions and not model.summed:
        raise PlanError(
            f"train_step of {model.name!r} takes the gradient of a sum over the batch. "
            f"Expected a mean, because {strategy.name} averages gradients of parts of "
            "a batch, and steps would be smaller than Keras'. Divide the loss by the "
            "rows, take it from self.compute_loss and compile with reduction='sum', or "
            "choose a strategy that exchanges weights, for example 'local_sgd'."
        )
    same = {"mean": "sum_over_batch_size"}
    mixed = sorted({same.get(r, r) for r in model.reductions})
    if len(mixed) > 1:
        raise PlanError(
            f"the losses of {model.name} are reduced in different ways: "
            f"{', '.join(mixed)}. Expected one reduction for all of them, because "
            f"{strategy.name} divides all gradients by one number. Give all losses the "
            "same reduction, or choose a strategy that exchanges weights."
        )
    is_masked = model.masks > 0 and not model.has_own_loss and mixed != ["sum"]
    if is_masked and model.masks > 1:
        raise PlanError(
            f"the losses of {model.name} have {model.masks} different masks (no mask "
            "counts as one), and Keras divides each loss by the number of entries "
            "that its mask keeps. Expected one mask for all outputs, because "
            f"{strategy.name} divides all gradients by one number. Choose a strategy "
            "that exchanges weights, for example 'local_sgd', or losses with "
            "reduction='sum'."
        )
    uneven = is_masked or mixed == ["mean_with_sample_weight"]
    if uneven and model.summed:
        raise PlanError(
            f"a layer of {model.name} adds a loss that is a sum over the batch, beside "
            "losses that are divided by "
            f"{'the entries that masks leave' if is_masked else 'sample weights'}. "
            f"Expected one number, because {strategy.name} divides all gradients by "
            "it. Let the layer add a mean over the batch, or choose a strategy that "
            "exchanges weights, for example 'local_sgd'."
        )
    if mixed == ["mean_with_sample_weight"] and model.weight_arrays > 1:
        raise PlanError(
            f"the losses of {model.name} are each divided by sample weights of their "
            f"own ({model.weight_arrays} arrays, reduction='mean_with_sample_weight'). "
            f"Expected one array for all outputs, because {strategy.name} divides all "
            "gradients by one number. Choose reduction='sum_over_batch_size', or a "
            "strategy that exchanges weights, for example 'local_sgd'."
        )


def _refuse_chance(request: Request, workers: int) -> None:
    """Refuses settings that cannot be repeated bit for bit."""
    strategy, name = request.strategy, request.strategy.name
    if not is_repeatable(strategy, workers):
        raise PlanError(
            f"deterministic=True with {name} on {workers} workers. Expected a "
            "strategy whose rounds have an order: messages are applied as they "
            "arrive here. Choose all_reduce, local_sgd, easgd or diloco, or "
            "workers=1."
        )
    if not is_repeatable(strategy, workers, epoch_barrier=request.epoch_barrier):
        raise PlanError(
            f"deterministic=True with epoch_barrier=False on {workers} workers. "
            "Expected workers that wait at the end of an epoch: otherwise the next "
            "one is shared out at a moment that differs from run to run. Leave "
            "epoch_barrier out, or pass workers=1."
        )
