"""Figure: what happens when a worker, the server or the calling process is lost."""

from __future__ import annotations

from figures.drawing import Drawing

LEFT, END, LOST = 78, 332, 172


def draw() -> str:
    """Returns the figure as SVG."""
    d = Drawing(
        "failure",
        "Three losses and what follows",
        "Three timelines. When worker 1 is lost, worker 0 trains on and takes its "
        "samples, and a replacement starts from the center. When the server is lost, "
        "its standby leads; the workers wait shortly and go on. When the process that "
        "called fit is lost, the run ends; shoal.resume goes on from the last "
        "checkpoint, and what was trained after it is trained again.",
    )
    d.text(8, 18, "A worker is lost", "title")
    _lane(d, 28, "worker 0", [(LEFT, END, "worker")])
    _lane(d, 54, "worker 1", [(LEFT, LOST, "worker"), (252, END, "worker")])
    d.cross(LOST, 64)
    d.text(258, 69, "replacement", "small")
    d.text(LEFT, 92, "worker 0 gets its leases; nothing stops", "small quiet")

    top = 122
    d.text(8, top, "The server is lost (standby=1)", "title")
    _lane(d, top + 10, "server", [(LEFT, LOST, "server")])
    d.cross(LOST, top + 20)
    _lane(
        d, top + 36, "standby", [(LEFT, LOST + 12, "idle"), (LOST + 12, END, "server")]
    )
    d.text(LEFT + 8, top + 51, "follows", "small")
    d.text(LOST + 22, top + 51, "leads", "small")
    _lane(d, top + 62, "workers", [(LEFT, LOST, "worker"), (LOST + 14, END, "worker")])
    d.text(LEFT, top + 100, "nothing is trained twice", "small quiet")

    top = 252
    d.text(8, top, "The process that called fit is lost", "title")
    _lane(d, top + 10, "run", [(LEFT, LOST, "worker"), (238, END, "worker")])
    d.cross(LOST, top + 20)
    for x in (104, 148, 282):
        d.line((x, top + 6), (x, top + 34), kind="second curve")
    d.text(248, top + 50, "resume", "small")
    d.line((148, top + 38), (148, top + 43), (LOST, top + 43), (LOST, top + 38))
    d.text(160, top + 58, "trained again", "small", "middle")

    y = top + 80
    d.line((21, y), (21, y + 16), kind="second curve")
    d.text(42, y + 12, "checkpoint on storage", "small")
    d.cross(206, y + 8)
    d.text(222, y + 12, "process lost", "small")
    return d.svg(y + 26)


def _lane(
    d: Drawing, y: float, name: str, spans: list[tuple[float, float, str]]
) -> None:
    """Draws what a process does over time."""
    d.text(8, y + 15, name, "small")
    for start, stop, kind in spans:
        d.box(start, y, stop - start, 20, kind, 1)
