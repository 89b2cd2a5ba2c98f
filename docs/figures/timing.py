"""Figure: three workers in rounds and on arrival, with the staleness of each push.

The times are made up; waits and staleness follow from them as they do in a run.
"""

from __future__ import annotations

from figures.drawing import Drawing

LEFT, END = 72, 332
WINDOWS = (40.0, 46.0, 82.0)
"""Width of one period on the time axis, for each worker: the last one is slow."""


def pushes_on_arrival() -> list[tuple[float, int, int]]:
    """Returns (time, rank, staleness) of each push, in order of time."""
    times = sorted(
        (window * number, rank)
        for rank, window in enumerate(WINDOWS)
        for number in range(1, int((END - LEFT) / window) + 1)
    )
    pulled = [0] * len(WINDOWS)
    found: list[tuple[float, int, int]] = []
    for version, (time, rank) in enumerate(times):
        found.append((time, rank, version - pulled[rank] + 1))
        pulled[rank] = version + 1
    return found


def draw() -> str:
    """Returns the figure as SVG."""
    d = Drawing(
        "timing",
        "Rounds, and exchange on arrival",
        "Two timelines of three workers, of which worker 2 takes twice as long for a "
        "period. In rounds, workers 0 and 1 wait for worker 2 before each exchange. On "
        "arrival nobody waits: each worker pushes when its period is over, and each "
        "push has a number, its staleness. The slow worker's pushes have the highest.",
    )
    d.text(8, 18, "Rounds (synchronous)", "title")
    length = max(WINDOWS)
    for rank, window in enumerate(WINDOWS):
        y = 30 + 30 * rank
        d.text(8, y + 15, f"worker {rank}", "small")
        for number in range(3):
            x = LEFT + number * length
            d.box(x, y, window, 22, "worker", 1)
            if window < length:
                d.box(x + window, y, length - window, 22, "idle", 1)
    for number in range(1, 4):
        x = LEFT + number * length
        d.line((x, 24), (x, 122), kind="second curve")
    d.text(LEFT, 136, "one exchange for all, when the last is done", "small quiet")

    top = 166
    d.text(8, top, "On arrival (asynchronous)", "title")
    for rank, window in enumerate(WINDOWS):
        y = top + 18 + 34 * rank
        d.text(8, y + 16, f"worker {rank}", "small")
        for number in range(int((END - LEFT) / window)):
            d.box(LEFT + number * window, y, window, 22, "worker", 1)
    for time, rank, staleness in pushes_on_arrival():
        y = top + 29 + 34 * rank
        d.circle(LEFT + time - 11, y, 8.5, "server")
        d.text(LEFT + time - 11, y + 4, str(staleness), "small", "middle")
    d.arrow((LEFT, top + 126), (END, top + 126))
    d.text(END, top + 142, "time", "small quiet", "end")

    y = top + 160
    d.box(8, y, 26, 14, "worker", 1)
    d.text(42, y + 11, "computes one period", "small")
    d.box(188, y, 26, 14, "idle", 1)
    d.text(222, y + 11, "waits", "small")
    d.circle(21, y + 31, 8.5, "server")
    d.text(21, y + 35, "2", "small", "middle")
    d.text(42, y + 35, "exchanges; the number is the staleness", "small")
    return d.svg(y + 46)
