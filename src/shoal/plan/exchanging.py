"""Decides how vectors travel, and whether workers wait for them. Pure."""

from __future__ import annotations

from shoal.errors import ConfigError, PlanError
from shoal.facts import ModelFacts
from shoal.plan.request import Request
from shoal.registry import did_you_mean, is_known

CODECS = ("float32", "bfloat16", "int8")
"""Codecs from the most bytes a number to the fewest: 4, 2 and 1."""
LEAST_PART = 64
"""Minimum number of weights of a server: a few cache lines."""


def check_codec(request: Request) -> None:
    """Refuses a codec that is none of `CODECS`.

    Raises:
        ConfigError: The codec is unknown.
    """
    if not is_known(request.codec, CODECS):
        raise ConfigError(did_you_mean("codec", request.codec, CODECS))


def check_overlap(request: Request) -> None:
    """Refuses computing during exchanges where the strategy does not allow it.

    Raises:
        ConfigError: `overlap` is neither True nor False.
        PlanError: The strategy has nothing to compute during an exchange.
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


def check_servers(request: Request, model: ModelFacts) -> None:
    """Refuses more servers than can share the weights.

    Raises:
        PlanError: There are too few weights for so many, or the strategy has no server.
    """
    wanted = request.servers
    if wanted > 1 and request.strategy.is_independent:
        raise PlanError(
            f"servers={wanted} with {request.strategy.name}, which exchanges nothing. "
            "Expected a strategy that has a server. Leave one of the two out."
        )
    most = max(1, model.parameters // LEAST_PART)
    if wanted > most:
        raise PlanError(
            f"servers={wanted} cannot be used: {model.name} has {model.parameters:,} "
            f"weights. Expected at least {LEAST_PART} of them a server, so at most "
            f"servers={most}. Several servers pay off for models of hundreds of MB."
        )
