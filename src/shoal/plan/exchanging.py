"""How vectors travel, and whether workers wait for them. Pure."""

from __future__ import annotations

from shoal.errors import ConfigError, PlanError
from shoal.plan.request import Request
from shoal.registry import did_you_mean

CODECS = ("float32", "bfloat16", "int8")
"""From the most bytes a number to the least: 4, 2 and 1."""


def choose_codec(request: Request) -> str:
    """Returns one of `CODECS`.

    Raises:
        ConfigError: It is none.

    Example:
        >>> from shoal.strategies import DiLoCo
        >>> choose_codec(Request(strategy=DiLoCo(), codec="int8"))
        'int8'
    """
    if request.codec not in CODECS:
        raise ConfigError(did_you_mean("codec", request.codec, CODECS))
    return request.codec


def choose_overlap(request: Request) -> bool:
    """Returns whether workers compute on while their vectors travel.

    Raises:
        ConfigError: `overlap` is neither True nor False.
        PlanError: The strategy has nothing to compute meanwhile.
    """
    wanted, strategy = request.overlap, request.strategy
    if not isinstance(wanted, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"overlap={wanted!r} cannot be used. Expected True or False. "
            "Leave it out to have workers wait for each exchange."
        )
    if wanted and (strategy.exchanges == "gradients" or strategy.is_independent):
        why = "exchanges nothing"
        if strategy.exchanges == "gradients":
            why = "needs the gradients of a step before the next one"
        raise PlanError(
            f"overlap=True with {strategy.name}, which {why}. Expected a strategy "
            "that exchanges weights, such as aeasgd or diloco. Leave one of the two "
            "out."
        )
    return wanted
