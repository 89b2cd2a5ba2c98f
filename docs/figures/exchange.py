"""Figure: one exchange, with the words of the glossary."""

from __future__ import annotations

from figures.drawing import Drawing

WORKER, SERVER = 70, 266


def draw() -> str:
    """Returns the figure as SVG."""
    d = Drawing(
        "exchange",
        "One exchange in words",
        "The server leases samples to a worker. The worker takes the steps of one "
        "period and pushes a message. The server applies it to the center, or merges "
        "it with the other messages of the round, and commits the samples. Its reply "
        "has the center or a change and the next lease; the worker pulls it.",
    )
    d.box(WORKER - 62, 8, 124, 26, "worker")
    d.text(WORKER, 26, "Worker", "title", "middle")
    d.box(SERVER - 66, 8, 132, 26, "server")
    d.text(SERVER, 26, "Server", "title", "middle")
    # Boxes can be seen through: the lines end at them.
    for x, spans in (
        (WORKER, ((34, 82), (138, 350))),
        (SERVER, ((34, 184), (276, 350))),
    ):
        for start, stop in spans:
            d.line((x, start), (x, stop), kind="dashes")

    _message(d, 66, SERVER, WORKER, "lease: samples")
    d.box(WORKER - 62, 82, 124, 56, "worker")
    d.text(WORKER, 102, "one period:", "small", "middle")
    d.text(WORKER, 117, "local steps on", "small", "middle")
    d.text(WORKER, 132, "its own copy", "small", "middle")
    _message(d, 168, WORKER, SERVER, "push")
    d.box(SERVER - 66, 184, 132, 92, "server")
    d.text(SERVER, 203, "apply: on arrival,", "small", "middle")
    d.text(SERVER, 218, "or merge: a round", "small", "middle")
    d.text(SERVER, 238, "commit: samples", "small", "middle")
    d.text(SERVER, 253, "count, once", "small", "middle")
    d.text(SERVER, 270, "version + 1", "small", "middle")
    _message(d, 310, SERVER, WORKER, "reply, next lease")
    d.text(WORKER + 8, 328, "pull", "small")
    return d.svg(356)


def _message(d: Drawing, y: float, start: float, stop: float, words: str) -> None:
    """Draws a message, with its name above."""
    d.arrow((start, y), (stop + (2 if start > stop else -2), y))
    d.text((start + stop) / 2, y - 7, words, "small", "middle")
