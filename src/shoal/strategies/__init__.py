"""How workers agree: one file and one line here for each strategy.

`get` turns the user's value, a name or an object, into a strategy, and `parse`
reads the spelling of the command line, "aeasgd:period=20,beta=0.5".
"""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, replace
from typing import Any, TypeAlias

from shoal.errors import ConfigError, a_kind
from shoal.registry import Registry, did_you_mean
from shoal.strategies.adag import ADAG as ADAG
from shoal.strategies.aeasgd import AEASGD as AEASGD
from shoal.strategies.all_reduce import AllReduce as AllReduce
from shoal.strategies.async_diloco import AsyncDiLoCo as AsyncDiLoCo
from shoal.strategies.auto import Auto as Auto
from shoal.strategies.averaging import Averaging as Averaging
from shoal.strategies.base import Facts as Facts
from shoal.strategies.base import Overshoot as Overshoot
from shoal.strategies.base import RoundStrategy as RoundStrategy
from shoal.strategies.base import ServerStrategy as ServerStrategy
from shoal.strategies.base import State as State
from shoal.strategies.base import Strategy as Strategy
from shoal.strategies.base import UsualPeriod as UsualPeriod
from shoal.strategies.base import adopt_reply as adopt_reply
from shoal.strategies.diloco import DiLoCo as DiLoCo
from shoal.strategies.downpour import Downpour as Downpour
from shoal.strategies.dynsgd import DynSGD as DynSGD
from shoal.strategies.eamsgd import EAMSGD as EAMSGD
from shoal.strategies.easgd import EASGD as EASGD
from shoal.strategies.ensemble import Ensemble as Ensemble
from shoal.strategies.local_sgd import LocalSGD as LocalSGD
from shoal.strategies.single import Single as Single

Value: TypeAlias = bool | int | float | str | None


def _builtin() -> dict[str, str]:
    """Returns the strategies imported above, by the name of each."""
    return {
        found.name: f"{found.__module__}:{found.__name__}"
        for found in globals().values()
        if isinstance(found, type) and issubclass(found, Strategy)
        if found.__module__ != Strategy.__module__ and found is not Auto
    }


registry: Registry[Strategy] = Registry(
    kind="strategy", group="shoal.strategies", builtin=_builtin(), base=Strategy
)
"""All rules by name, including those of installed plug-ins. "auto" is none of them."""

_WORDS: dict[str, Value] = {"true": True, "false": False, "none": None}


def get(strategy: str | Strategy | type[Strategy], **parameters: Value) -> Strategy:
    """Returns the strategy for a name, a class or an object.

    Args:
        strategy: A name from `shoal strategies` or "auto", with or without parameters
            after a colon; a class; or an object.
        **parameters: Fields to set; they override those of the name or object.

    Raises:
        ConfigError: The name or a parameter is unknown, or a value is not allowed.

    Example:
        >>> get("aeasgd:period=20", beta=0.5).period
        20
        >>> get(ADAG(period=3)).period
        3
    """
    if isinstance(strategy, str):
        name, spelled = parse(strategy)
        return _make(kind_of(name), {**spelled, **parameters})
    if isinstance(strategy, type):
        return _make(strategy, parameters)
    if not isinstance(strategy, Strategy):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"strategy={strategy!r} is {a_kind(strategy)}. "
            "Expected a name or a strategy object. "
            f"Known names: {', '.join(_names())}."
        )
    _refuse_unknown(type(strategy), parameters)
    return replace(strategy, **parameters)


def kind_of(name: str) -> type[Strategy]:
    """Returns the class for a name of `registry`, or for "auto".

    Raises:
        ConfigError: The name is unknown.

    Example:
        >>> kind_of("adag") is ADAG
        True
    """
    if name == Auto.name:
        return Auto
    known = _names()
    if name not in known:
        raise ConfigError(did_you_mean(registry.kind, name, known))
    return registry.load(name)


def _names() -> list[str]:
    """Returns all that `strategy` may be, sorted."""
    return sorted([*registry.names(), Auto.name])


def parse(text: str) -> tuple[str, dict[str, Value]]:
    """Reads "name:parameter=value,..." into a name and typed values.

    Args:
        text: A name; then, after a colon, values: numbers, true, false, none, words.

    Raises:
        ConfigError: A part behind the colon is not of the form parameter=value.

    Example:
        >>> parse("aeasgd:period=20,beta=0.5")
        ('aeasgd', {'period': 20, 'beta': 0.5})
    """
    name, colon, rest = text.partition(":")
    values: dict[str, Value] = {}
    for part in rest.split(",") if colon else []:
        key, equals, value = (word.strip() for word in part.partition("="))
        if not (key and equals and value) or key in values:
            raise ConfigError(
                f"strategy={text!r} has the part {part!r}. "
                "Expected parameter=value, each parameter once. "
                "Write it like aeasgd:period=20,beta=0.5."
            )
        values[key] = _value(value)
    return name.strip(), values


def spell(strategy: Strategy) -> str:
    """Returns a strategy in the notation that `parse` reads, without defaults.

    Example:
        >>> spell(get("aeasgd:period=20")), spell(get("aeasgd"))
        ('aeasgd:period=20', 'aeasgd')
        >>> spell(get("aeasgd:period=10"))
        'aeasgd:period=10'
    """
    changed = [
        f"{field.name}={str(value).lower() if isinstance(value, bool) else value}"
        for field in fields(strategy)
        if not _is_default(field, value := getattr(strategy, field.name))
    ]
    return f"{strategy.name}:{','.join(changed)}" if changed else strategy.name


def _is_default(field: Field[Any], value: object) -> bool:
    made = field.default_factory
    default = field.default if made is MISSING else made()
    if isinstance(default, UsualPeriod) and not isinstance(value, UsualPeriod):
        return False  # a period that was named, though it may be as long
    try:
        return bool(value == default)
    except ValueError:  # an array, in a class of a user's own
        return False


def _value(text: str) -> Value:
    """Returns a number, True, False, None, or the text itself."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _make(strategy: type[Strategy], parameters: dict[str, Value]) -> Strategy:
    """Makes a strategy from parameters that may be misspelled."""
    _refuse_unknown(strategy, parameters)
    for field in fields(strategy):
        is_required = field.default is MISSING and field.default_factory is MISSING
        if is_required and field.name not in parameters:
            raise ConfigError(
                f"{strategy.name} was made without {field.name}. "
                "Expected a value, as it has no default. "
                f"Write it like {strategy.name}:{field.name}=1."
            )
    return strategy(**parameters)  # pyright: ignore[reportArgumentType]


def _refuse_unknown(strategy: type[Strategy], parameters: dict[str, Value]) -> None:
    """Raises ConfigError about the first parameter that the strategy lacks."""
    known = [field.name for field in fields(strategy)]
    for key in parameters:
        if key not in known:
            kind = f"parameter of {strategy.name}"
            raise ConfigError(did_you_mean(kind, key, known))
