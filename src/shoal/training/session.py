"""Processes that stay for the next fit: their start takes most of a short run."""

from __future__ import annotations

import threading
import time
from typing import Any, final

from shoal.engine.controller.process_pool import ProcessPool
from shoal.errors import ConfigError
from shoal.forks import gives_up
from shoal.interruption import undisturbed
from shoal.training.early_start import guess
from shoal.training.fit_call import FitCall
from shoal.training.run_fit import FitContext, perform


@final
class Session:
    """Trains one model after the other on the same worker processes.

    The first fit starts them, later ones reuse them, with everything imported. Their
    last compiled programs serve every model of the same structure, which may differ in
    weights, in learning rate and in names that Keras gave. A fit that fails or is
    interrupted ends them; the next one starts new ones. So does one that needs other
    processes, with another number of workers or threads.

    Example:
        >>> import keras, numpy as np, shoal
        >>> x = np.linspace(-1, 1, 256)[:, None]
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        >>> model.compile(keras.optimizers.SGD(0.5), "mse")
        >>> with shoal.Session() as session:
        ...     for slope in (3, 5):
        ...         given = {"epochs": 4, "workers": 1, "run": False, "verbose": 0}
        ...         history = session.fit(model, x, slope * x, **given)
        ...         print(float(model.predict(np.ones((1, 1)), verbose=0)[0, 0]))
        3.0
        5.0
    """

    def __init__(self) -> None:
        self._pool: ProcessPool | None = None
        self._is_closed = False
        self._training = threading.Lock()
        gives_up(self)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fit(self, model: Any, x: Any = None, y: Any = None, **arguments: Any) -> Any:
        """Trains as `shoal.fit` does, with the same arguments and errors.

        Args:
            model: Model, as for `shoal.fit`.
            x: Inputs, as for `shoal.fit`.
            y: Targets, as for `shoal.fit`.
            arguments: Other arguments of `shoal.fit`.

        Raises:
            ConfigError: The session is closed, or is training: in another thread, or
                because a callback calls this.
        """
        if not self._training.acquire(blocking=False):
            raise ConfigError(
                "this session trains a model already. Expected one `fit` at a time, as "
                "all use the same processes. Call shoal.fit, which has processes of "
                "its own, or make another shoal.Session()."
            )
        try:
            return self._fit(model, x, y, **arguments)
        finally:
            self._training.release()

    def _fit(self, model: Any, x: Any, y: Any, **arguments: Any) -> Any:
        """Trains, while no other thread does."""
        if self._is_closed:
            raise ConfigError(
                "this session is closed. Expected `fit` to be called within its `with` "
                "block, or before `close`. Make another shoal.Session()."
            )
        began = time.monotonic()
        call = FitCall.of(model=model, x=x, y=y, **arguments)
        with undisturbed():
            try:
                pool = self._pool = self._pool or self._start(call)
                context = FitContext(began=began, pool=pool)
                return perform(call, context)
            except BaseException:
                self._end()
                raise

    def _start(self, call: FitCall) -> ProcessPool | None:
        worker_environment = guess(call)
        return (
            None
            if worker_environment is None
            else ProcessPool(worker_environment, is_kept=True)
        )

    def _end(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            with undisturbed():
                pool.close()

    def give_up(self) -> None:
        """Forgets the processes in a fork, which may start its own."""
        self._pool, self._training = None, threading.Lock()

    def close(self) -> None:
        """Ends the processes; safe to repeat."""
        self._is_closed = True
        self._end()
