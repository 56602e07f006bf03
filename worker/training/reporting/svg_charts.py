"""Line charts as SVG: a picture of a run's curves that any browser, forge or editor shows. Pure; no plotting library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.sax.saxutils import escape

Points = Sequence[tuple[float, float]]

WIDTH, PANEL_HEIGHT = 720, 260
LEFT, RIGHT, TOP, BOTTOM = 72, 16, 34, 40
MAX_POINTS = 500
"""Largest number of points of a drawn line; longer series are averaged in this many pieces, so that the picture stays
small.
"""
TICKS = 5


@dataclass(frozen=True, slots=True)
class Series:
    """A line in a chart. Colours are from Okabe and Ito's palette, which colour-blind people can tell apart."""

    name: str
    points: Points
    colour: str
    width: float = 1.8
    dots: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart over steps."""

    title: str
    series: Sequence[Series]


def svg(title: str, panels: Sequence[Panel]) -> str:
    """Return an SVG document with the panels one below the other. Points that are not finite are left out."""
    height = PANEL_HEIGHT * len(panels)
    body = "".join(_panel(panel, index * PANEL_HEIGHT) for index, panel in enumerate(panels))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="sans-serif" font-size="12">\n<title>{escape(title)}</title>\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>\n{body}</svg>\n'
    )


def thin(points: Points, most: int = MAX_POINTS) -> list[tuple[float, float]]:
    """Return at most that many points: each the mean of a piece of the series; a short series stays unchanged."""
    if len(points) <= most:
        return list(points)
    edges = [round(piece * len(points) / most) for piece in range(most + 1)]
    pieces = [points[start:end] for start, end in pairwise(edges)]
    return [
        (math.fsum(x for x, _ in piece) / len(piece), math.fsum(y for _, y in piece) / len(piece)) for piece in pieces
    ]


def smooth(points: Points, weight: float) -> list[tuple[float, float]]:
    """Return the exponential moving average of the values."""
    smoothed: list[tuple[float, float]] = []
    for x, y in points:
        before = smoothed[-1][1] if smoothed else y
        smoothed.append((x, before + weight * (y - before)))
    return smoothed


def ticks(low: float, high: float, about: int = TICKS) -> list[float]:
    """Return round numbers (1, 2 or 5 times a power of ten apart) from ``low`` to ``high``."""
    if high <= low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((factor * power for factor in (1, 2, 5) if factor * power >= rough), 10 * power)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def _panel(panel: Panel, top: float) -> str:
    series = [(line, _finite(line.points)) for line in panel.series]
    series = [(line, points) for line, points in series if points]
    head = f'<text x="{LEFT}" y="{top + 20}" font-weight="bold">{escape(panel.title)}</text>\n'
    if not series:
        return head + f'<text x="{LEFT}" y="{top + PANEL_HEIGHT / 2}" fill="#666">nothing measured</text>\n'
    axes = _Axes.around([point for _, points in series for point in points], top)
    legend = _legend([line for line, _ in series], top)
    return head + axes.drawn() + "".join(_line(line, points, axes) for line, points in series) + legend


def _finite(points: Points) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


@dataclass(frozen=True, slots=True)
class _Axes:
    """Maps data to the picture's coordinates."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    top: float

    @classmethod
    def around(cls, points: Points, top: float) -> _Axes:
        xs, ys = [x for x, _ in points], [y for _, y in points]
        margin = 0.05 * (max(ys) - min(ys)) or abs(max(ys)) * 0.05 or 1.0
        return cls(min(xs), max(xs), min(ys) - margin, max(ys) + margin, top)

    def x(self, value: float) -> float:
        share = (value - self.x_low) / ((self.x_high - self.x_low) or 1.0)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        share = (value - self.y_low) / (self.y_high - self.y_low)
        return round(self.top + PANEL_HEIGHT - BOTTOM - share * (PANEL_HEIGHT - TOP - BOTTOM), 1)

    def drawn(self) -> str:
        right, floor = WIDTH - RIGHT, self.top + PANEL_HEIGHT - BOTTOM
        elements = []
        for value in ticks(self.y_low, self.y_high):
            y = self.y(value)
            elements.append(f'<path d="M{LEFT} {y}H{right}" stroke="#ddd"/>')
            elements.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end" fill="#444">{value:.4g}</text>')
        for value in sorted({round(tick) for tick in ticks(self.x_low, self.x_high)}):
            if self.x_low <= value <= self.x_high:
                at = f'x="{self.x(value)}" y="{floor + 16}"'
                elements.append(f'<text {at} text-anchor="middle" fill="#444">{value}</text>')
        elements.append(f'<path d="M{LEFT} {floor}H{right}" stroke="#444"/>')
        middle = (LEFT + right) / 2
        elements.append(f'<text x="{middle}" y="{floor + 33}" text-anchor="middle" fill="#444">optimizer step</text>')
        return "\n".join(elements) + "\n"


def _line(line: Series, points: Points, axes: _Axes) -> str:
    at = [(axes.x(x), axes.y(y)) for x, y in thin(points)]
    path = " ".join(f"{x},{y}" for x, y in at)
    drawn = f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="{line.width}"/>\n'
    if line.dots or len(at) == 1:
        drawn += "".join(f'<circle cx="{x}" cy="{y}" r="2.5" fill="{line.colour}"/>\n' for x, y in at)
    return drawn


def _legend(lines: Sequence[Series], top: float) -> str:
    drawn, right = "", WIDTH - RIGHT
    for line in reversed(lines):
        drawn += f'<text x="{right}" y="{top + 20}" text-anchor="end" fill="{line.colour}">{escape(line.name)}</text>\n'
        right -= 8 * len(line.name) + 16
    return drawn
