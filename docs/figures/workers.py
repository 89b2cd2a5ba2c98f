"""Figure: the processes of a run, and what passes between them."""

from __future__ import annotations

from figures.drawing import Drawing


def draw() -> str:
    """Returns the figure as SVG."""
    d = Drawing(
        "workers-and-server",
        "Processes of a run",
        "Your process calls fit. It writes the run folder, and starts and watches a "
        "server and three workers. The server holds the center, which is the shared "
        "weights, and the ledger of samples. Each worker holds a copy of the model. "
        "Workers push to the server and pull from it; they do not talk to each other.",
    )
    d.box(8, 8, 196, 62, "box")
    d.text(18, 27, "Your process", "title")
    d.text(18, 44, "calls fit: makes the plan,", "small")
    d.text(18, 60, "runs callbacks, returns history", "small")
    d.arrow((204, 38), (234, 38))
    d.box(236, 8, 96, 62, "box")
    d.text(246, 27, "Run folder", "title")
    d.text(246, 44, "events, logs,", "small")
    d.text(246, 60, "checkpoints", "small")

    d.arrow((60, 70), (60, 112))
    d.text(70, 95, "starts and watches", "small quiet")
    d.box(8, 114, 324, 256, "dashes")

    d.box(18, 126, 304, 92, "server")
    d.text(30, 145, "Server", "title")
    for cell in range(14):
        d.box(30 + 20 * cell, 154, 20, 12, "done", 0)
    d.text(30, 183, "center: the shared weights", "small")
    d.text(30, 204, "ledger: which samples are done", "small")

    for rank, x in enumerate((18, 123, 228)):
        d.arrow((x + 37, 282), (x + 37, 219))
        d.text(x + 32, 255, "push", "small", "end")
        d.arrow((x + 58, 218), (x + 58, 281))
        d.text(x + 63, 255, "pull", "small")
        d.box(x, 282, 94, 76, "worker")
        d.text(x + 8, 301, f"Worker {rank}", "title")
        for cell in range(5):
            d.box(x + 8 + 16 * cell, 309, 16, 11, "worker", 0)
        d.text(x + 8, 336, "its own copy", "small")
        d.text(x + 8, 350, "of the model", "small")
    return d.svg(378)
