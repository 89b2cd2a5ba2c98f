"""Records which optimizers a training step applies, wherever they are stored."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

Act = Callable[[Sequence[Any], Sequence[Any]], None]
"""Called with (gradients, variables) in place of an update."""


class Application(NamedTuple):
    """One call of `apply` or `stateless_apply`.

    Args:
        optimizer: Optimizer that was called.
        variables: Variables to update.
        found: Result of the call, None for `apply`.
        gradients: Gradients given to `stateless_apply`.
    """

    optimizer: Any
    variables: Sequence[Any]
    found: Any = None
    gradients: Sequence[Any] = ()


@contextmanager
def watched(act: Act | None = None) -> Generator[list[Application]]:
    """Records all calls of optimizers by this thread, in order.

    An optimizer that calls another one counts once. One that is not built
    is built first, as Keras would.

    Args:
        act: Called in place of `apply`; None keeps the update.

    Yields:
        A list that grows.
    """
    base = import_module("keras.src.optimizers.base_optimizer").BaseOptimizer
    calls: list[Application] = []
    watch = _Watch(calls, act)
    changed = [
        (kind, name, vars(kind)[name])
        for kind in _kinds(base)
        for name in ("apply", "stateless_apply")
        if name in vars(kind)
    ]
    for kind, name, original in changed:
        around = watch.apply if name == "apply" else watch.stateless_apply
        setattr(kind, name, around(original))
    try:
        yield calls
    finally:
        for kind, name, original in changed:
            setattr(kind, name, original)


class _Watch:
    """Functions that replace the methods of optimizers."""

    def __init__(self, calls: list[Application], act: Act | None) -> None:
        self._calls, self._act = calls, act
        self._thread, self._depth = threading.get_ident(), 0

    @property
    def _is_idle(self) -> bool:
        """Whether a call is not to be recorded."""
        return self._depth > 0 or threading.get_ident() != self._thread

    @contextmanager
    def _within(self) -> Generator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def apply(self, original: Any) -> Any:
        def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
            if self._is_idle:
                return original(optimizer, grads, trainable_variables)
            given = trainable_variables
            given = optimizer._trainable_variables if given is None else given
            variables, arrays = list(given), list(grads)
            with self._within():
                if not optimizer.built:
                    _build(optimizer, variables)
                self._calls.append(Application(optimizer, variables))
                if self._act is None:
                    return original(optimizer, arrays, variables)
                return self._act(arrays, variables)

        return apply

    def stateless_apply(self, original: Any) -> Any:
        def stateless_apply(optimizer: Any, *given: Any, **named: Any) -> Any:
            if self._is_idle:
                return original(optimizer, *given, **named)
            with self._within():
                found = original(optimizer, *given, **named)
            known = list(optimizer._trainable_variables)
            gradients = named["grads"] if "grads" in named else given[1]
            call = Application(optimizer, known, found[0], list(gradients))
            self._calls.append(call)
            return found

        return stateless_apply


def _build(optimizer: Any, variables: Sequence[Any]) -> None:
    """Builds the optimizer as Keras does before the first update."""
    scope = import_module("keras").name_scope
    with scope(optimizer.name, caller=optimizer):
        optimizer.build(list(variables))
    optimizer.built = True


def _kinds(base: type) -> list[type]:
    """Returns a class and all its subclasses, each once."""
    found = {base: None}
    for kind in base.__subclasses__():
        found.update(dict.fromkeys(_kinds(kind)))
    return list(found)
