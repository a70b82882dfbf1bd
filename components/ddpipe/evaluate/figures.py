"""The report's figures, as SVG to be put into a page, which may name other colors."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ddpipe.evaluate.measure import PrecisionRecall
from ddpipe.model.evaluation import Curve
from ddpipe.model.metrics import TITLES
from ddpipe.model.scores import CalibrationBin

INK, MUTED, GRID, QUIET = "#1a1f26", "#5c6672", "#e2e6ea", "#c3cad2"
TRAIN, VALIDATION = "#2563c9", "#c2570c"
NAMES = {INK: "ink", MUTED: "muted", GRID: "line", QUIET: "quiet", TRAIN: "train", VALIDATION: "validation"}
"""The variable of a page that replaces each color, so that a dark page has others."""

DISTINCT = 12  # curves in gray that a reader can still distinguish


def learning_curves(history: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """One SVG, by its title, for each quantity that was measured on the validation split over the epochs."""
    names = dict.fromkeys(name for record in history for name in record if name.startswith("validation_"))
    quantities = [name.removeprefix("validation_") for name in names]
    titles = {quantity: TITLES.get(quantity, quantity.replace("_", " ")) for quantity in quantities}
    return {
        f"{title} by epoch": figure(lambda axes, name=quantity: _by_epoch(axes, history, name))  # type: ignore[misc]
        for quantity, title in titles.items()
    }


def _by_epoch(axes: Axes, history: Sequence[Mapping[str, float]], quantity: str) -> None:
    for part, color in (("train", TRAIN), ("validation", VALIDATION)):
        name = f"{part}_{quantity}"
        points = [(record["epoch"], record[name]) for record in history if record.get(name) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), color=color, label=part, marker="o", markersize=3)
    if len(history) == 1:
        epoch = history[0]["epoch"]
        axes.set_xlim(epoch - 1, epoch + 1)  # a range around one point has no whole numbers
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")
    legend_above(axes)


def losses_by_epoch(losses: Mapping[str, Sequence[float]]) -> str:
    """The validation losses of several runs."""

    def draw(axes: Axes) -> None:
        looks = itertools.product(("-", "--", ":"), (TRAIN, VALIDATION, MUTED))
        for (name, values), (line, color) in zip(losses.items(), itertools.cycle(looks)):
            axes.plot(range(1, len(values) + 1), values, color=color, linestyle=line, label=name)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("epoch")
        legend_above(axes)

    return figure(draw, height=3, width=7)


def roc_curves(average: Curve, curves: Mapping[str, Curve], lowest: str | None) -> str:
    """ROC curves: of each class in gray, but the lowest by its name, and of all together."""

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=GRID, linewidth=1)
        rates = {
            name: (curve.false_positive_rate, curve.true_positive_rate) for name, curve in curves.items()
        }
        _by_class(axes, rates, lowest)
        axes.plot(average.false_positive_rate, average.true_positive_rate, color=TRAIN, label="micro average")
        axes.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(0, 1), ylim=(0, 1))
        axes.legend(frameon=False, loc="lower right")

    return figure(draw, height=3.4)


def precision_recall_curves(curves: Mapping[str, PrecisionRecall], least: str | None) -> str:
    """Precision-recall curves of the classes in gray, but one by its name."""

    def draw(axes: Axes) -> None:
        _by_class(axes, {name: (curve.recall, curve.precision) for name, curve in curves.items()}, least)
        axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02))
        if least in curves:
            axes.legend(frameon=False, loc="lower left")

    return figure(draw, height=3.4)


def _by_class(axes: Axes, lines: Mapping[str, Sequence[Sequence[float]]], named: str | None) -> None:
    """A line of each class in gray, unless there are too many, but one by its name above them."""
    for name, points in lines.items():
        if name != named and len(lines) > DISTINCT:
            continue
        # In a legend, no formula in a name, and no underscore in front, which hides it.
        label = name.replace("$", r"\$").removeprefix("_") if name == named else None
        style: dict[str, Any] = (
            {"color": VALIDATION, "zorder": 3} if name == named else {"color": QUIET, "linewidth": 1}
        )
        axes.plot(*points, label=label, **style)


def reliability(bins: Sequence[CalibrationBin], before: Sequence[CalibrationBin] = ()) -> str:
    """The observed frequency by the predicted probability; larger dots stand for more predictions."""

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=QUIET, linewidth=1)
        for shown, color in ((before, VALIDATION), (bins, TRAIN)):
            most = max((one.count for one in shown), default=1)
            axes.scatter(
                [one.confidence for one in shown],
                [one.frequency for one in shown],
                s=[10 + 110 * one.count / most for one in shown],
                color=color,
                clip_on=False,
            )
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1))
        axes.set(xlabel="predicted probability", ylabel="observed frequency", xlim=(0, 1), ylim=(0, 1))

    return figure(draw, height=3.4)


def legend_above(axes: Axes) -> None:
    """Name the lines above the drawing: among many points, a free place takes long to find."""
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0)


def figure(draw: Callable[[Axes], Any], height: float = 2.8, width: float = 5) -> str:
    """A drawing as an SVG element in the style of the reports."""
    with mpl.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "ddpipe", "text.color": INK, "font.size": 9}
    ):
        page = Figure(figsize=(width, height), layout="constrained")
        axes = page.add_subplot()
        axes.grid(color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[:].set_visible(False)
        axes.tick_params(labelcolor=MUTED, length=0)
        draw(axes)
        for label in (axes.xaxis.label, axes.yaxis.label):
            label.set_color(MUTED)
        drawing = io.StringIO()
        page.savefig(drawing, format="svg", transparent=True, metadata={"Date": None})
    svg = drawing.getvalue()
    for color, name in NAMES.items():
        svg = svg.replace(color, f"var(--{name}, {color})")
    return svg[svg.index("<svg") :]
