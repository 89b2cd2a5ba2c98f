"""Figure: which process reads samples, and what passes between processes."""

from __future__ import annotations

from figures.drawing import Drawing

SOURCES = (
    ("Arrays", "workers map", "one copy"),
    ("Files", "each worker", "reads chunks"),
    ("Streams", "your process", "reads for all"),
)


def draw() -> str:
    """Returns the figure as SVG."""
    d = Drawing(
        "data-flow",
        "Where data flows",
        "Samples go from arrays, files or streams to the workers, and no further. "
        "Workers push weights or gradients, numbers of samples and sums of metrics to "
        "the server, and get weights and leases. Your process gets metrics, "
        "checkpoints and the trained weights from the server, and writes the run "
        "folder.",
    )
    d.text(8, 18, "Samples", "title")
    for number, (name, *lines) in enumerate(SOURCES):
        x = 8 + 112 * number
        d.box(x, 28, 100, 60, "free")
        d.text(x + 9, 46, name, "title")
        for place, line in enumerate(lines):
            d.text(x + 9, 62 + 14 * place, line, "small")
        d.arrow((x + 50, 88), (x + 50, 116))
    d.box(8, 118, 324, 44, "worker")
    d.text(18, 136, "Workers", "title")
    d.text(18, 153, "samples stay here", "small")

    d.arrow((60, 162), (60, 236))
    d.text(70, 184, "weights or", "small")
    d.text(70, 199, "gradients,", "small")
    d.text(70, 214, "metrics, which", "small")
    d.text(70, 229, "samples", "small")
    d.arrow((210, 238), (210, 164))
    d.text(220, 196, "weights,", "small")
    d.text(220, 211, "leases", "small")

    d.box(8, 238, 324, 44, "server")
    d.text(18, 256, "Server", "title")
    d.text(18, 273, "numbers of samples, no samples", "small")

    d.arrow((60, 282), (60, 336))
    d.text(70, 305, "metrics, checkpoints,", "small")
    d.text(70, 320, "trained weights", "small")
    d.box(8, 338, 150, 44, "box")
    d.text(18, 356, "Your process", "title")
    d.text(18, 373, "history, callbacks", "small")
    d.arrow((158, 360), (196, 360))
    d.box(198, 338, 134, 44, "box")
    d.text(208, 356, "Run folder", "title")
    d.text(208, 373, "disk or S3", "small")
    return d.svg(392)
