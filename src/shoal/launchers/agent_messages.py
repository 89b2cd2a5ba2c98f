"""Messages of an agent that calls its driver: JSON, read field by field. Pure.

To the agent go packed arguments, after the greeting; nothing that comes from it is ever
unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from shoal.launchers.base import Exit
from shoal.launchers.node_agent import AgentReport, Arrival, Listening, Memory
from shoal.wire.frames import BadFrame

Json: TypeAlias = dict[str, Any]

ARRIVE, ANSWER, CALL, BEAT = "arrive", "answer", "call", "beat"
"""Kinds of frames: the first two come from an agent."""


def pack(value: Any) -> Json:
    """Returns what a method of an agent returned, as JSON.

    Raises:
        TypeError: It is nothing that an agent tells.
    """
    match value:
        case None:
            return {}
        case Memory():
            return {"memory": _pack_memory(value)}
        case Listening():
            return {"port": value.port, "descriptor": value.descriptor}
        case Arrival():
            return {
                "node": value.node, "node_id": value.node_id,
                "versions": dict(value.versions), "memory": _pack_memory(value.memory),
            }  # fmt: skip
        case AgentReport():
            exits = {
                token: [gone.name, gone.code, gone.reason, gone.output]
                for token, gone in value.exits.items()
            }
            lines = [list(line) for line in value.lines]
            return {"lines": lines, "exits": exits, "spent_ms": value.spent_ms}
        case _:
            raise TypeError(f"an agent cannot tell {value!r}")


def _pack_memory(memory: Memory) -> list[int]:
    return [memory.pid, memory.descriptor, *memory.mark]


def parse(method: str, told: Mapping[str, Any]) -> Any:
    """Returns what a method of an agent returned.

    Args:
        method: The called method; "arrive" for its first message.
        told: The received result.

    Raises:
        BadFrame: It is not what this method returns.

    Example:
        >>> parse("report", pack(AgentReport(lines=[("a", "epoch 1")])))
        AgentReport(lines=[('a', 'epoch 1')], exits={}, spent_ms={})
    """
    try:
        match method:
            case "arrive":
                versions = {
                    _text(name): _text(word) for name, word in told["versions"].items()
                }
                return Arrival(
                    node=_text(told["node"]), node_id=_text(told["node_id"]),
                    versions=versions, memory=_memory(told["memory"]),
                )  # fmt: skip
            case "start":
                return _memory(told["memory"])
            case "listen":
                return Listening(
                    port=_number(told["port"]), descriptor=_number(told["descriptor"])
                )
            case "report":
                return AgentReport(
                    lines=[(_text(t), _text(line)) for t, line in told["lines"]],
                    exits={_text(t): _exit(e) for t, e in told["exits"].items()},
                    spent_ms={
                        _text(t): _number(ms) for t, ms in told["spent_ms"].items()
                    },
                )
            case _:
                return None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadFrame(f"an agent answers {method!r} with nonsense: {error}") from None


def _memory(told: Any) -> Memory:
    pid, descriptor, device, inode = map(_number, told)
    return Memory(pid=pid, descriptor=descriptor, mark=(device, inode))


def _exit(told: Any) -> Exit:
    name, code, reason, output = told
    return Exit(
        name=_text(name), code=_number(code), reason=_text(reason), output=_text(output)
    )


def _text(told: object) -> str:
    if not isinstance(told, str):
        raise TypeError(f"{told!r} is no text")
    return told


def _number(told: object) -> int:
    if not isinstance(told, int):
        raise TypeError(f"{told!r} is no whole number")
    return told
