"""The public functions and their contracts. Their implementation is in `training`."""

# Imports stay few here: `fit` starts the processes of a run first, and imports the rest
# while they import theirs.

from __future__ import annotations

import inspect
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from shoal.data.located import FileArguments
from shoal.data.order import Shuffle
from shoal.data.trees import Tree
from shoal.errors import ShoalWarning
from shoal.interruption import undisturbed
from shoal.plan.request import Request, Workers
from shoal.strategies import Strategy, get
from shoal.training.early_start import early_pool
from shoal.training.fit_call import FitCall, cluster_of

if TYPE_CHECKING:
    from shoal.clusters import Cluster, Yarn
    from shoal.plan import Plan
    from shoal.runs.base import Run
    from shoal.training import comparing
    from shoal.training.comparison import Comparison

__all__ = ["attach", "compare", "evaluate", "fit", "plan", "predict", "resume"]

History: TypeAlias = Any
"""`keras.callbacks.History` with `run`; see `fit`."""


def fit(  # noqa: PLR0913 - the arguments of Keras' fit
    model: Any,
    x: Tree = None,
    y: Tree = None,
    *,
    strategy: str | Strategy | type[Strategy] = "all_reduce",
    workers: Workers | Yarn = "auto",
    cluster: str | Cluster | None = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: int | str = "auto",
    echo: bool = False,
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: Shuffle = True,
    class_weight: Mapping[int, float] | None = None,
    sample_weight: Tree = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | Sequence[int] = 1,
    validation: str = "blocking",
    run: str | os.PathLike[str] | Run | bool | None = None,
    monitor: str | None = None,
    deterministic: bool = False,
    epoch_barrier: bool = True,
    max_restarts: int = 3,
    servers: int = 1,
    standby: int = 0,
    spares: int = 0,
    quorum: float | None = None,
    collective: str = "auto",
    codec: str = "float32",
    overlap: bool = False,
    scale_rate: str | None = None,
    on_nan: str | None = None,
    checkpoint_every: float | str | bool | None = None,
    threads: int | None = None,
    seed: int | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    features: Any = None,
    label: Any = None,
    preprocess: Any = None,
    on_bad_file: str = "raise",
) -> History:
    """Trains a Keras model on several processes; the weights end up in `model`.

    Use it where you would call `model.fit`. The default strategy gives the same
    curve as Keras; others exchange less often and are faster. `plan` takes the same
    arguments and shows what would happen.

    Args:
        model: Compiled Keras model, or a callable without arguments that returns
            one; `history.model` has it then.
        x: Inputs: array (NumPy, JAX, pandas), or dict, list or tuple of arrays; rows
            first. Or a path, glob or URL of files, "s3://bucket/prefix/", a DataFrame
            of Spark, or a source of `shoal.data`.
        y: Targets, in any nesting.
        strategy: How workers agree: a name, as `shoal strategies` lists them, or an
            object of `shoal.strategies`. With "auto" the plan chooses, and says why.
        workers: Training processes, at least 1, `(min, max)`, or "auto": one a GPU,
            else one a usable core, at most 4; for `all_reduce` without GPUs one with
            all cores, unless several are faster in spite of an exchange at each step,
            as `plan` says. Of a cluster one a GPU, else one a node, or one a slot of
            Spark. "yarn" or a `shoal.clusters.Yarn`: as many as a ResourceManager's
            nodes have cores.
            If a Ray cluster has room for fewer than `max`, the rest joins later.
        cluster: Where workers run; "local" is this machine. "ray", the address of a Ray
            cluster, or a `shoal.clusters.Ray`: its nodes; "auto": these, where this
            process is part of one. "spark" or a `shoal.clusters.Spark`: executors of
            the active Spark session. An address of Ray Client, "ray://host:10001", or
            the name of a cluster that `shoal cluster up` has made: the run is sent
            there, and followed from here. "inline" lets workers
            take turns in this process, for experiments with many of them. Default
            None means $SHOAL_CLUSTER, else "local"; jobs on a cluster have "ray" there.
        batch_size: Samples of an optimizer step, at least 1: of all workers together
            for "all_reduce", of each worker otherwise. Default None means 32.
        epochs: Number of the epoch before which training ends, as in Keras; at least 1.
        verbose: 0 for silence, 1 for a live line, 2 for a line an epoch, or "auto".
        echo: Also print what workers print, each line after its worker's name; it is
            in their logs anyway.
        callbacks: Keras callbacks; they run in this process, on the common weights.
            Their changes to the model travel to workers, except trainable
            weights. Hooks of batches are called once an exchange and up to a tenth of
            a second after it; hooks that set something are called between two steps by
            "all_reduce" and "single", and late by other strategies. Changes by hooks of
            epochs act at once. Under "ensemble" each member gets deep copies of them.
        validation_split: Share of the rows, from the end, to validate on; from 0 to
            below 1.
        validation_data: `(x, y)` or `(x, y, sample_weight)`.
        shuffle: Whether to draw a new order each epoch; "batch" shuffles within each
            batch and leaves batches in place, as Keras does.
        class_weight: Class -> weight in the loss; 1 for a class that is not named.
        sample_weight: Weights of samples, one array or nested as `y`.
        initial_epoch: The epoch to start with, from 0; it begins a new pass over the
            data.
        steps_per_epoch: Steps of `batch_size` that make an epoch, at least 1; None for
            all data.
        validation_steps: Steps of a validation, at least 1; None for all data.
        validation_batch_size: Samples of a step of a validation, at least 1; default
            None means `batch_size`.
        validation_freq: Epochs between validations, at least 1, or a list of epochs.
        validation: "blocking": workers wait while an epoch is validated, as in Keras.
            "async": a process of its own validates while they train on; its results
            join the history with their epochs, and callbacks do not see them.
        run: Name, path or URL for the records; False keeps none. Default None means
            a folder under $SHOAL_RUNS, or ./shoal-runs. A run that is sent to a cluster
            is made at the URL, or at that of the cluster's runs; else its folder is
            copied to the path when it ends.
        monitor: Metric of the best model; default None: "val_loss", else "loss".
            "name:max" or "name:min" for a metric that does not know its direction.
        deterministic: Refuse settings that cannot be repeated bit for bit.
        epoch_barrier: Whether workers wait for callbacks between epochs.
        max_restarts: Replacements of lost workers before the run stops; at least 0.
        servers: Number of servers that share the weights, at least 1, on a cluster on
            different nodes: for large vectors. One of them orders the messages of all.
        standby: 0, or 1 for a second server that holds the same state as the first, and
            takes over within seconds when that is lost, without any other effect.
        spares: Waiting processes, everything imported, that replace lost workers; at
            least 0.
        quorum: Number of workers that suffice for a round when the others are late, at
            least 1, or a share of them such as 0.75; 1.0 waits for all. For strategies
            whose rounds exchange weights. Default None: all but one in four, or two
            of three; all of one or two, and with `deterministic`.
        collective: Where the gradients of "all_reduce" are averaged: by the "server";
            "shared": by each worker of this machine, in shared memory;
            "native": by the backend's own collectives (torch: gloo, on GPUs NCCL).
            The server averages if those fail. "auto": native if it is NCCL,
            shared on CPUs of this machine for models that are not large.
        codec: Number format of vectors between hosts: "float32", "bfloat16" (2
            bytes) or "int8" (1 byte, and a scale for 256). Rounding errors are added
            to the next message. On one host nothing is rounded.
        overlap: Whether workers compute on while their vectors travel; steps taken
            meanwhile are added to the reply. For strategies that exchange
            weights, on slow links.
        scale_rate: How the workers' learning rate follows their number, for strategies
            that exchange weights: "sqrt" multiplies the optimizer's rate by its square
            root, "linear" by the number, "none" by 1. It grows to that during the first
            epoch; callbacks and logs have the unscaled one. Default None: "sqrt" for
            Adagrad, Adam and its like with strategies that average and exchange
            rarely, all but "downpour", "adag" and "eamsgd".
        on_nan: Reaction when weights, gradients or the loss of a worker turn NaN
            or infinite: "stop" the run; "skip" that worker's change of these
            samples (under "all_reduce": that step); "rollback" to the last checkpoint,
            and leave them out. Default None warns once a worker and continues as Keras.
        checkpoint_every: Seconds above 0, or "N samples", between checkpoints for
            `resume`; False for never. Default None: 30 s. The end of an epoch always
            makes one.
        threads: Compute threads of a worker, at least 1; default None shares the cores.
        seed: Seed of the order of samples; default None honours
            `keras.utils.set_random_seed`.
        custom_objects: Name -> class or function, as in Keras.
        features: For files and frames, the columns that are x: a name, a list, or input
            -> one of these. Default None: all but `label`; for images the image.
        label: For files and frames, the columns that are y. Default None: the class of
            images, the key "y" of NPZ files.
        preprocess: For files, a class, object or function that reads them: it gets
            (keys, objects) and returns (inputs, outputs, train_size). Default None:
            the definition in `preprocessing.py` beside the script, if there is one and
            no column is named.
        on_bad_file: "raise", or "skip" to leave out files that are bad from the start.

    Returns:
        Keras' history. `history.run` has `id`, `url` and `report`. Under "ensemble",
        `history.models` has all models and `history.predict` averages them.

    Raises:
        ConfigError, PlanError, DataError: The arguments do not fit; nothing was
            started.
        ClusterError: A cluster cannot be reached, or has no room.
        WorkerFailed: The model's code raised on a worker.
        WorkerLost: Workers died more often than `max_restarts` allows.
        NotFinite: Numbers turned NaN or infinite, and `on_nan` does not continue.
        ModelNotSaved: The storage refused the trained model; `model` has it.
        KeyboardInterrupt: After Ctrl-C; `model` has the weights so far.

    Example:
        >>> import keras, numpy as np, shoal
        >>> x = np.linspace(-1, 1, 256)[:, None]
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        >>> model.compile(keras.optimizers.SGD(0.5), "mse")
        >>> history = shoal.fit(model, x, 3 * x, epochs=4, run=False, verbose=0)
        >>> float(model.predict(np.ones((1, 1)), verbose=0)[0, 0])
        3.0
        >>> history.run.summary().samples_committed
        1024
    """
    began = time.monotonic()
    chosen, where = get(strategy), cluster_of(cluster)
    request = Request(
        strategy=chosen, batch_size=batch_size, epochs=epochs,
        initial_epoch=initial_epoch, steps_per_epoch=steps_per_epoch, shuffle=shuffle,
        seed=seed, deterministic=deterministic, epoch_barrier=epoch_barrier,
        max_restarts=max_restarts, servers=servers, standby=standby, spares=spares,
        quorum=quorum, collective=collective, codec=codec, overlap=overlap,
        scale_rate=scale_rate, on_nan=on_nan, threads=threads, monitor=monitor,
        validation=validation, validation_freq=validation_freq,
    )  # fmt: skip
    call = FitCall(
        model=model, request=request, workers=workers, cluster=where, x=x, y=y,
        sample_weight=sample_weight, class_weight=class_weight,
        validation_split=validation_split, validation_data=validation_data,
        validation_steps=validation_steps, validation_batch_size=validation_batch_size,
        files=FileArguments(
            features=features, label=label, preprocess=preprocess,
            on_bad_file=on_bad_file,
        ),
        callbacks=callbacks, verbose=verbose, echo=echo, run=run,
        checkpoint_every=checkpoint_every, custom_objects=custom_objects,
    )  # fmt: skip
    if where not in ("local", "inline", "auto"):
        from shoal.training.remote_fit import fit_there, is_away

        if is_away(where):
            return fit_there(call)
    with undisturbed(), early_pool(call) as pool:
        from shoal.training.run_fit import FitContext, perform

        return perform(call, FitContext(began=began, pool=pool))


def attach(
    job: str, model: Any = None, *, cluster: str | Cluster | None = None
) -> History:
    """Attaches to a `fit` that was sent to a cluster, and follows it to its end.

    Args:
        job: Id of the job, or the beginning of one; `shoal jobs` lists them.
        model: Model that gets the trained weights; None returns the history alone.
        cluster: The cluster, as passed to `fit`: the name of a cluster of hosts, or an
            address "ray://host:10001". Default None means $SHOAL_CLUSTER.

    Returns:
        As `fit`; `history.run` is the run: at its URL, or in a folder that was copied
        here.

    Raises:
        ConfigError: There is no such job.
        ClusterError: The head cannot be reached, or the job did not end well.

    Example:
        >>> import shoal
        >>> shoal.attach("2026-11-23-go", cluster="lab")
        Traceback (most recent call last):
        shoal.errors.ConfigError: unknown cluster 'lab'...
    """
    from shoal.training.remote_fit import attach, sent_to

    return attach(sent_to(cluster_of(cluster), job), model)


def resume(  # noqa: PLR0913 - what fit has, where it may differ
    run: str | os.PathLike[str] | Run,
    x: Tree = None,
    y: Tree = None,
    *,
    sample_weight: Tree = None,
    validation_data: Any = None,
    workers: Workers | None = None,
    callbacks: Any = None,
    verbose: int | str | None = None,
    force: bool = False,
) -> History:
    """Resumes an interrupted run, from its last checkpoint to its end.

    It works in a new process, after a crash of all processes. Each sample of each epoch
    counts once, as without the crash; the history has all epochs. Reading a run folder
    runs code from it: only resume runs of your own.

    Args:
        run: Id of a run, the beginning of one, or path or URL of its folder.
        x: Inputs, as passed to `fit`; needed for runs with too many samples
            to keep (1 GiB). Other data than the run began with is refused.
        y: Targets, as passed to `fit`.
        sample_weight: Weights of samples, as passed to `fit`.
        validation_data: Validation data, as passed to `fit`.
        workers: Processes, as for `fit`; default None: as before.
        callbacks: Callbacks in place of those of the run; default None: as before. They
            get the state of the earlier ones.
        verbose: Output, as for `fit`; default None: as before.
        force: Resume although the run seems to be running, for example on a machine
            that cannot be checked from here. Its old process can save nothing more.
            Also train from the first epoch again if all checkpoints are lost.

    Returns:
        Keras' history, as `fit` does; `history.model` is the trained model.

    Raises:
        ConfigError: There is no such run, or it has finished, or it is running.
        CheckpointError: Files that it needs were not kept, are lost or damaged.
        PlanError: The data differs from the run's; or a callback needs
            scores of `validation="async"`, see `fit`.
        WorkerFailed, WorkerLost: See `fit`.

    Example:
        >>> import shoal
        >>> shoal.resume("2026-11-21-no-such-run")
        Traceback (most recent call last):
        shoal.errors.ConfigError: no run '2026-11-21-no-such-run' in ...
    """
    from shoal.training import resuming

    with undisturbed():
        return resuming.resume(
            resuming.Call(
                run=run, x=x, y=y, sample_weight=sample_weight,
                validation_data=validation_data, workers=workers,
                callbacks=callbacks, verbose=verbose, force=force,
            )
        )  # fmt: skip


def plan(model: Any, x: Tree = None, y: Tree = None, **arguments: Any) -> Plan:
    """Shows what `fit` would do with the same arguments, and starts nothing.

    Args:
        model: Model, as for `fit`.
        x: Inputs, as for `fit`.
        y: Targets, as for `fit`.
        **arguments: Other arguments of `fit`.

    Returns:
        The plan; `print(plan.explain())` shows it to a person.

    Raises:
        ConfigError, PlanError, DataError: As `fit` would.

    Example:
        >>> import keras, numpy as np, shoal
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = np.zeros((6400, 1))
        >>> shoal.plan(model, x, x, strategy="aeasgd", workers=2).exchanges_per_epoch
        10.0
    """
    from shoal.training.read_fit import keep_random_state, read

    with keep_random_state():
        call = FitCall.of(model=model, x=x, y=y, **arguments)
        return read(call, is_plan=True).plan


plan.__signature__ = inspect.signature(fit).replace(return_annotation="Plan")  # type: ignore[attr-defined]


def evaluate(  # noqa: PLR0913 - the arguments of Keras' evaluate
    model: Any,
    x: Tree = None,
    y: Tree = None,
    *,
    batch_size: int | None = None,
    sample_weight: Tree = None,
    steps: int | None = None,
    return_dict: bool = False,
    workers: Workers = "auto",
    threads: int | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    features: Any = None,
    label: Any = None,
    preprocess: Any = None,
    on_bad_file: str = "raise",
    verbose: int | str = "auto",
) -> Any:
    """Returns loss and metrics as Keras would, computed on several processes.

    States of metrics are summed over processes, so that AUC and similar metrics equal
    those of one process. With little data, one worker, or a metric whose states do not
    add up, it runs in this process.

    Args:
        model: Compiled Keras model, or a callable that returns one.
        x: Inputs, as for `fit`.
        y: Targets, as for `fit`.
        batch_size: Samples of a step, at least 1; default None means 32.
        sample_weight: Weights of samples, one array or nested as `y`.
        steps: Steps to take, at least 1; None for all data.
        return_dict: Return metrics by name.
        workers: Processes, `(min, max)`, or "auto".
        threads: Compute threads of each, at least 1; default None shares the cores.
        custom_objects: Name -> class or function, as in Keras.
        features: Columns of files, as for `fit`; so are the next three.
        label: Label of files.
        preprocess: Reader of files.
        on_bad_file: Treatment of bad files.
        verbose: 0 for silence, 1 or "auto" for Keras' progress bar, 2 for one line.

    Returns:
        As `model.evaluate`: a number, a list, or a dict by name.

    Raises:
        ConfigError, PlanError, DataError: The arguments do not fit; nothing was
            started.
        WorkerFailed, WorkerLost: See `fit`.

    Example:
        >>> import keras, numpy as np, shoal
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x, y = np.zeros((4, 1)), np.ones((4, 1))
        >>> shoal.evaluate(model, x, y, return_dict=True, verbose=0)
        {'loss': 1.0}
    """
    from shoal.data.reading import Reading
    from shoal.data.training import scored_source
    from shoal.models.inspection import find_model
    from shoal.plan.variables import environment
    from shoal.training import scoring

    model, factory = find_model(model)
    reading = Reading.of_steps(
        steps, "data of evaluate", generator_gb=environment().generator_gb
    )
    files = FileArguments(
        features=features, label=label, preprocess=preprocess, on_bad_file=on_bad_file
    )
    source = scored_source(
        (x, y, sample_weight), files=files, reading=reading, is_served=True
    )
    asked = scoring.Asked(
        workers=workers, threads=threads, batch_size=batch_size, steps=steps,
        custom_objects=custom_objects, factory=factory, verbose=verbose,
    )  # fmt: skip
    found = scoring.evaluate(model, source, asked)
    return found if return_dict else model._flatten_metrics_in_order(found)


def predict(  # noqa: PLR0913 - the arguments of Keras' predict, and files
    model: Any,
    x: Tree,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    workers: Workers = "auto",
    threads: int | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    features: Any = None,
    label: Any = None,
    preprocess: Any = None,
    on_bad_file: str = "raise",
    verbose: int | str = "auto",
) -> Any:
    """Returns predictions, computed on several processes, in the order of the rows.

    Args:
        model: Keras model, or a callable that returns one.
        x: Inputs, as for `fit`.
        batch_size: Samples of a step, at least 1; default None means 32.
        steps: Steps to take, at least 1; None for all data.
        workers: Processes, `(min, max)`, or "auto"; little data needs none.
        threads: Compute threads of each, at least 1; default None shares the cores.
        custom_objects: Name -> class or function, as in Keras.
        features: Columns of files, as for `fit`; so are the next three.
        label: Label of files; not needed if features are named.
        preprocess: Reader of files.
        on_bad_file: Treatment of bad files; a warning names the left out ones.
        verbose: 0 for silence, 1 or "auto" for Keras' progress bar, 2 for one line.

    Returns:
        As `model.predict`: an array, or arrays nested as the model's outputs.

    Raises:
        ConfigError, PlanError, DataError: The arguments do not fit; nothing was
            started.
        WorkerFailed, WorkerLost: See `fit`.

    Example:
        >>> import keras, numpy as np, shoal
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Flatten()])
        >>> shoal.predict(model, np.array([[1.0, 2.0]]), verbose=0)
        array([[1., 2.]], dtype=float32)
    """
    from shoal.data.reading import Reading
    from shoal.data.training import scored_source
    from shoal.models.inspection import find_model
    from shoal.plan.variables import environment
    from shoal.training import scoring

    model, factory = find_model(model)
    reading = Reading.of_steps(
        steps, "data of predict", generator_gb=environment().generator_gb
    )
    files = FileArguments(
        features=features, label=label, preprocess=preprocess, on_bad_file=on_bad_file
    ).without_targets(x)
    source = scored_source(
        (x, None, None), files=files, reading=reading, is_served=True
    )
    asked = scoring.Asked(
        workers=workers, threads=threads, batch_size=batch_size, steps=steps,
        custom_objects=custom_objects, factory=factory, verbose=verbose,
    )  # fmt: skip
    return scoring.predict(model, source, asked)


def compare(  # noqa: PLR0913 - what `fit` needs, and what to vary
    make_model: Callable[[], Any],
    x: Tree,
    y: Tree = None,
    *,
    strategies: Sequence[str | Strategy],
    workers: comparing.Workers | Sequence[comparing.Workers] = 2,
    epochs: int = 1,
    batch_size: int | None = None,
    validation_data: Any = None,
    seeds: int | Sequence[int] = 1,
    f1: comparing.F1 | None = None,
    cluster: str = "local",
    picture: str | os.PathLike[str] | None = None,
    run: str | os.PathLike[str] | bool | None = False,
    verbose: int = 0,
) -> Comparison:
    """Trains a new model with each strategy on the same samples, beside plain Keras.

    Use it to choose a strategy: one command gives quality, time and a picture.
    Plain `keras.Model.fit` is the baseline, under the name "single".

    Args:
        make_model: Returns a new compiled model; called once for each training.
        x: Inputs: array, or dict, list or tuple of arrays; rows first.
        y: Targets, in any nesting.
        strategies: Names, names with parameters such as "aeasgd:period=20", objects.
        workers: A number or "auto", or a list or tuple of them to try each: (1, 4)
            means one worker and then four, not a minimum and a maximum as for `fit`.
        epochs: Passes over the data, the same for all.
        batch_size: Samples of a step, at least 1, as for `fit`; default None means 32.
        validation_data: Data on which models are evaluated; default None: the training
            data.
        seeds: Number of trainings of each, seeded 0, 1, ...; or the seeds themselves.
        f1: "binary" adds the F1 score of class 1, "macro" the mean over classes.
        cluster: "local" for processes of this machine; "inline" to run the workers
            in turn in this process: quality with any number of workers, but
            meaningless times.
        picture: Path of a picture of the metric against time and samples; None for
            none. A picture that fails in the end is a warning: the results are
            returned.
        run: Records, as for `fit`; default False keeps none.
        verbose: 1 writes a line to standard error as each training begins, 0 none.

    Returns:
        The comparison: `rows`, `table()`, `to_json()` and `plot(path)`.

    Raises:
        ConfigError, PlanError, DataError: Errors, as for `fit`.

    Example:
        >>> import keras, numpy as np, shoal
        >>> x = np.linspace(-1, 1, 256)[:, None]
        >>> def make_model():
        ...     model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        ...     model.compile(keras.optimizers.SGD(0.5), "mse")
        ...     return model
        >>> found = shoal.compare(
        ...     make_model, x, 3 * x, strategies=["local_sgd"], cluster="inline"
        ... )
        >>> [(row["strategy"], row["workers"]) for row in found.rows]
        [('single', 1), ('local_sgd', 2)]
    """
    from shoal.terminal import say
    from shoal.training import comparing
    from shoal.training.comparison import check_picture

    def tell(text: str) -> None:
        if verbose:
            say(text, err=True)

    if picture is not None:
        check_picture(picture)
    task = comparing.Task(
        make_model=make_model,
        x=x,
        y=y,
        validation_data=validation_data,
        epochs=epochs,
        batch_size=batch_size,
        f1=f1,
        cluster=cluster,
        run=run,
    )
    found = comparing.compare(
        task, fit, strategies=strategies, workers=workers, seeds=seeds, tell=tell
    )
    if picture is not None:
        try:
            found.plot(os.fspath(picture))
        except Exception as error:  # an error here must not lose the results
            text = f"the picture cannot be drawn: {type(error).__name__}: {error}"
            warnings.warn(text, ShoalWarning, stacklevel=2)
    return found
