"""A drawing of plain shapes and text as SVG: the parts that all figures share.

A figure is 340 units wide, so that its text can be read on a phone. Pages include it
in their own HTML: its text can be selected, and its colours follow the theme.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Literal

WIDTH = 340
Anchor = Literal["start", "middle", "end"]

STYLE = """
.concept-figure{--worker:#00695c;--server:#9a4b00;--lost:#b71c1c;--quiet:#56616d;
display:block;margin:0 auto;width:22rem;max-width:100%;height:auto;font-family:inherit}
[data-md-color-scheme=slate] .concept-figure{--worker:#5fd0c0;--server:#f2b35e;
--lost:#ff9a94;--quiet:#a9b4c0}
@media (prefers-color-scheme:dark){.concept-figure:root{--worker:#5fd0c0;
--server:#f2b35e;--lost:#ff9a94;--quiet:#a9b4c0;color:#e8eaed;background:#1b1e24}}
.concept-figure:root{font-family:sans-serif}
.concept-figure text{fill:currentColor;font-size:12px}
.concept-figure .title{font-weight:700}
.concept-figure .small{font-size:11px}
.concept-figure .quiet{fill:var(--quiet)}
.concept-figure .box{fill:none;stroke:currentColor}
.concept-figure .worker{fill:var(--worker);fill-opacity:.16;stroke:var(--worker)}
.concept-figure .server{fill:var(--server);fill-opacity:.16;stroke:var(--server)}
.concept-figure .done{fill:var(--server);fill-opacity:.5;stroke:var(--server)}
.concept-figure .idle{fill:none;stroke:var(--quiet);stroke-dasharray:3 3}
.concept-figure .free{fill:none;stroke:var(--quiet)}
.concept-figure .gone{fill:none;stroke:var(--lost);stroke-dasharray:3 2}
.concept-figure .line{fill:none;stroke:currentColor}
.concept-figure .grid{fill:none;stroke:var(--quiet);stroke-opacity:.35}
.concept-figure .dashes{fill:none;stroke:var(--quiet);stroke-dasharray:4 3}
.concept-figure .cross{fill:none;stroke:var(--lost);stroke-width:2.5}
.concept-figure .head{fill:currentColor;stroke:none}
.concept-figure .first{stroke:var(--worker)}
.concept-figure .second{stroke:var(--server);stroke-dasharray:6 3}
.concept-figure .third{stroke:var(--lost);stroke-dasharray:2 2}
.concept-figure .fourth{stroke:currentColor;stroke-dasharray:8 3 2 3}
.concept-figure .curve{fill:none;stroke-width:2}
"""
"""Colours of Material's two themes; of the system's where the file is opened alone."""


@dataclass
class Drawing:
    """Shapes and text of one figure, in the order in which they are drawn.

    Args:
        name: Name of the file, and the beginning of ids in it.
        title: Short title for screen readers.
        description: What the figure shows, in words.
    """

    name: str
    title: str
    description: str
    parts: list[str] = field(default_factory=list[str])

    def text(
        self, x: float, y: float, content: str, kind: str = "", at: Anchor = "start"
    ) -> None:
        """Writes a line of text; y is its baseline."""
        anchor = "" if at == "start" else f' text-anchor="{at}"'
        words = f' class="{kind}"' if kind else ""
        self.parts.append(
            f'<text x="{_n(x)}" y="{_n(y)}"{words}{anchor}>{escape(content)}</text>'
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        kind: str,
        round_: int = 3,
    ) -> None:
        """Draws a rectangle."""
        self.parts.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" '
            f'height="{_n(height)}" rx="{round_}" class="{kind}"/>'
        )

    def line(self, *points: tuple[float, float], kind: str = "line") -> None:
        """Draws straight lines from point to point."""
        ends = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        self.parts.append(f'<polyline points="{ends}" class="{kind}"/>')

    def arrow(self, *points: tuple[float, float], kind: str = "line") -> None:
        """Draws lines that end in a head; the last one is upright or level."""
        self.line(*points, kind=kind)
        (x0, y0), (x, y) = points[-2:]
        right, down = _sign(x - x0), _sign(y - y0)
        back_x, back_y = x - 7 * right, y - 7 * down
        wide_x, wide_y = 3.5 * abs(down), 3.5 * abs(right)
        left = back_x - wide_x, back_y - wide_y
        corners = (x, y), (back_x + wide_x, back_y + wide_y), left
        ends = " ".join(f"{_n(a)},{_n(b)}" for a, b in corners)
        self.parts.append(f'<polygon points="{ends}" class="head"/>')

    def cross(self, x: float, y: float, size: float = 6) -> None:
        """Draws the mark of a process that is lost."""
        self.line((x - size, y - size), (x + size, y + size), kind="cross")
        self.line((x - size, y + size), (x + size, y - size), kind="cross")

    def circle(self, x: float, y: float, radius: float, kind: str) -> None:
        """Draws a circle."""
        self.parts.append(
            f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}" class="{kind}"/>'
        )

    def svg(self, height: float) -> str:
        """Returns the figure as a file that a page can also include."""
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="concept-figure" '
            f'viewBox="0 0 {WIDTH} {_n(height)}" role="img" '
            f'aria-labelledby="{self.name}-title {self.name}-desc">',
            f'<title id="{self.name}-title">{escape(self.title)}</title>',
            f'<desc id="{self.name}-desc">{escape(self.description)}</desc>',
            f"<style>{STYLE}</style>",
            *self.parts,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"


def _sign(number: float) -> int:
    """Returns -1, 0 or 1."""
    return (number > 0) - (number < 0)


def _n(number: float) -> str:
    """Returns a number with at most one decimal."""
    return f"{number:.1f}".removesuffix(".0")
