"""Charts: what is drawn is what the facts say, and the files can be opened."""

import math
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from demur.report import gather, time_chart, write_charts
from demur.report.figure import NARROW, WIDE, drawing, short
from demur.report.page import all_charts
from tests.report import ledgers


@pytest.fixture(scope="module")
def facts():
    return gather(ledgers.full())


@pytest.fixture(scope="module")
def drawn(facts):
    """Every figure at both widths, by name."""
    figures = {}
    for chart in all_charts(facts):
        for frame in (WIDE, NARROW):
            with drawing(frame):
                figures[chart.name, frame.name] = chart.draw(frame)
    return figures


@pytest.mark.slow
@pytest.mark.parametrize("width", ["wide", "narrow"])
def test_the_curve_is_drawn_as_it_is(facts, drawn, width) -> None:
    (cost,) = facts.spaces
    axes, bars = drawn["distance", width].axes
    (total,) = (line for line in axes.lines if line.get_gid() == "whole")
    np.testing.assert_array_equal(total.get_xdata(), cost.radii)
    np.testing.assert_array_equal(total.get_ydata(), cost.epsilon)
    assert axes.get_ylim()[0] == 0.0 and axes.get_ylim()[1] > max(cost.epsilon)
    assert "'pixels'" in axes.get_xlabel() and axes.get_ylabel() == "epsilon"
    widths = [bar.get_width() for bar in bars.patches]
    assert widths == [unit.epsilon for unit in facts.units]


@pytest.mark.slow
def test_lines_have_their_names_at_their_ends_and_no_text_lies_on_a_curve(drawn):
    axes = drawn["distance", "wide"].axes[0]
    texts = [text for text in axes.texts if text.get_text()]
    assert len(texts) == 5 and all(text.xy[0] == 1.0 for text in texts), "right of it"
    heights = sorted(text.xy[1] for text in texts)
    step = (axes.get_ylim()[1] - axes.get_ylim()[0]) / 16
    assert min(np.diff(heights)) >= 0.99 * step, "none covers another"
    narrow = drawn["distance", "narrow"].axes[0]
    assert not narrow.texts and len(narrow.get_legend().get_texts()) == 6


@pytest.mark.parametrize(
    ("days", "name"),
    [(1 / 1440, "h:min:s"), (0.5, "h:min"), (30, "day"), (400, "month")],
)
def test_an_axis_of_time_names_its_units(days, name) -> None:
    assert name in time_chart._scale(days)[1]


@pytest.mark.slow
@pytest.mark.parametrize("width", ["wide", "narrow"])
def test_time_is_drawn_as_it_is(facts, drawn, width) -> None:
    figure = drawn["over-time", width]
    assert sum(axes.axison for axes in figure.axes) == len(facts.budgets)
    for position, axes in enumerate(figure.axes[: len(facts.budgets)]):
        steps = axes.lines[0].get_ydata()
        spent = [moment.spent_epsilon[position] for moment in facts.moments]
        np.testing.assert_array_equal(steps, [0.0, *spent, spent[-1]])
        assert axes.get_ylim()[1] > facts.budgets[position].epsilon


@pytest.mark.slow
def test_audits_and_utilities_are_drawn_as_they_are(facts, drawn) -> None:
    axes = drawn["audits", "wide"].axes[0]
    drawn_at = [line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) < 2]
    for audit in facts.audits[:2]:
        assert audit.claimed in drawn_at and audit.lower_bound in drawn_at
    assert any("REFUTED" in text.get_text() for text in axes.texts)
    useful = drawn["utility", "narrow"].axes[0]
    runs = [u for u in facts.utilities if u.name.startswith("accuracy")]
    np.testing.assert_array_equal(
        useful.lines[0].get_ydata(), [u.value for u in sorted(runs, key=_epsilon)]
    )
    assert useful.lines[0].get_linestyle() == "None", "different runs are points"


def _epsilon(one) -> float:
    return one.epsilon


@pytest.mark.slow
def test_files(facts, tmp_path) -> None:
    figures = write_charts(facts, tmp_path / "a" / "charts")
    names = {path.name for path in figures}
    assert names == {
        f"{name}.{kind}"
        for name in ("distance", "over-time", "utility", "audits")
        for kind in ("svg", "png")
    }
    for path in figures:
        if path.suffix == ".svg":
            assert ET.parse(path).getroot().tag.endswith("svg")
        else:
            picture = Image.open(path)
            assert picture.width > 1600
            ink = np.asarray(picture.convert("L"))
            assert ink[0, 0] == 255 and 0.005 < (ink < 200).mean() < 0.5


@pytest.mark.slow
def test_a_chart_of_infinite_and_unknown_values_is_drawn(facts) -> None:
    (cost,) = facts.spaces
    cut = tuple(
        None if i > 12 else math.inf if i > 10 else e
        for i, e in enumerate(cost.epsilon)
    )
    strange = vars(facts) | {"spaces": (type(cost)(**vars(cost) | {"epsilon": cut}),)}
    for chart in all_charts(type(facts)(**strange)):
        with drawing(NARROW):
            chart.draw(NARROW).draw_without_rendering()


def test_labels_are_shortened() -> None:
    assert short("x" * 50, 10) == "xxxxxxx..." and short("abc", 10) == "abc"
