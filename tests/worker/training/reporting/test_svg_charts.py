"""Line charts as SVG."""

from __future__ import annotations

import math
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.training.reporting.svg_charts import (
    MAX_POINTS,
    PANEL_HEIGHT,
    WIDTH,
    Panel,
    Series,
    smooth,
    svg,
    thin,
    ticks,
)

SVG = "{http://www.w3.org/2000/svg}"
numbers = st.floats(-1e9, 1e9, allow_nan=False)
series = st.lists(st.tuples(st.integers(1, 10**6), numbers), max_size=60).map(sorted)


def parsed(*panels: Panel) -> ET.Element:
    return ET.fromstring(svg("a run", panels))


def coordinates(picture):
    return [
        tuple(float(part) for part in pair.split(","))
        for line in picture.iter(f"{SVG}polyline")
        for pair in line.get("points").split()
    ]


@given(st.lists(series, max_size=3), st.text())
def test_any_series_gives_a_picture_inside_its_frame(lists, name):
    panel = Panel(
        "loss", [Series("".join(filter(str.isprintable, name)), points, "#000", dots=True) for points in lists]
    )
    picture = parsed(panel, panel)
    assert picture.get("viewBox") == f"0 0 {WIDTH} {2 * PANEL_HEIGHT}"
    for x, y in coordinates(picture):
        assert 0 <= x <= WIDTH
        assert 0 <= y <= 2 * PANEL_HEIGHT


def test_higher_values_are_higher_up_and_later_steps_further_right():
    picture = parsed(Panel("loss", [Series("training", [(1, 5.0), (2, 4.0), (3, 4.5)], "#000")]))
    (x1, y1), (x2, y2), (x3, y3) = coordinates(picture)
    assert x1 < x2 < x3
    assert y1 < y3 < y2


def test_what_is_not_finite_is_left_out_and_nothing_is_said_so():
    points = [(1, math.nan), (2, math.inf)]
    picture = parsed(Panel("loss", [Series("training", points, "#000")]))
    assert coordinates(picture) == []
    assert "nothing measured" in "".join(picture.itertext())
    assert "nothing measured" in "".join(parsed(Panel("loss", [])).itertext())


def test_names_are_escaped():
    evil = "</title><script>alert(1)</script>&"
    text = svg(evil, [Panel(evil, [Series(evil, [(1, 1.0)], "#000")])])
    picture = ET.fromstring(text)
    assert "<script" not in text
    assert next(picture.iter(f"{SVG}title")).text == evil


@given(st.lists(st.tuples(st.floats(0, 1e6), numbers), max_size=3000))
def test_thinning_keeps_short_series_and_the_mean_of_pieces(points):
    thinned = thin(points)
    if len(points) <= MAX_POINTS:
        assert thinned == points
    else:
        assert len(thinned) == MAX_POINTS
        assert min(y for _, y in points) - 1e-3 <= min(y for _, y in thinned)
        assert max(y for _, y in thinned) <= max(y for _, y in points) + 1e-3


def test_a_long_run_gives_a_small_picture():
    points = [(step, 1 / step) for step in range(1, 100_001)]
    assert len(svg("long", [Panel("loss", [Series("training", points, "#000")])])) < 20_000


def test_smoothing():
    assert smooth([], 0.1) == []
    assert smooth([(1, 4.0), (2, 2.0)], 0.1) == [(1, 4.0), (2, pytest.approx(3.8))]


@given(numbers, st.floats(1e-6, 1e9))
def test_ticks_are_few_round_and_inside(low, width):
    high = low + width
    if high - low < 1e-9 * abs(low):
        return
    found = ticks(low, high)
    assert 1 <= len(found) <= 7
    assert all(low - 1e-6 * width <= tick <= high + 1e-6 * width for tick in found)


def test_ticks_of_known_ranges():
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert ticks(0.0, 1e-4) == pytest.approx([0, 2e-5, 4e-5, 6e-5, 8e-5, 1e-4])
    assert ticks(3, 3) == [3]
