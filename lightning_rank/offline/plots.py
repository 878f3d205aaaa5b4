"""Results as figures of matplotlib (the extra ``plot``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_rank.extras import extra
from lightning_rank.stats.comparison import TIE, PairedComparison

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lightning_rank.offline.compare import Comparison
    from lightning_rank.offline.evaluate import Evaluation

# Told apart also without colour vision.
WIN, LOSS = "#0072b2", "#d55e00"


def intervals(result: Evaluation) -> Figure:
    """The means with their intervals; what is no mean is left out."""
    found = [(name, estimate) for name, estimate in result.summary.items() if not math.isnan(estimate.low)]
    if not found:
        raise ValueError("There is nothing to draw: no measure is a mean over two queries or more.")
    figure, axes = _figure(1 + 0.35 * len(found))
    for place, (_, estimate) in enumerate(found):
        ends = [[estimate.value - estimate.low], [estimate.high - estimate.value]]
        axes.errorbar([estimate.value], [place], xerr=ends, fmt="o", color=WIN, capsize=3)
    axes.set_yticks(range(len(found)), [name for name, _ in found])
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set(title=_plain(result.run or "run"), xlabel=f"mean and {result.level * 100:g} % interval")
    return figure


def differences(result: Comparison, measure: str | None, candidate: str | None) -> Figure:
    """A bar per query, candidate - baseline, from the largest down; the mean and its interval across; a panel per candidate."""
    measure = measure or result.differences[0].measure
    candidates = [candidate] if candidate else [agreement.candidate for agreement in result.agreements]
    figure, *panels = _figure(3.6, len(candidates))
    for axes, name in zip(panels, candidates, strict=True):
        of = result[measure, name]
        old, new = (result.evaluations[run].per_query(measure) for run in (of.baseline, name))
        changes = [new[query] - old[query] for query in old if query in new]
        title = f"{measure}: {name} - {of.baseline}"
        _draw_differences(axes, changes, of.result, title, higher_is_better=result.measure(measure).higher_is_better)
    return figure


def difference_bars(
    changes: Sequence[float], result: PairedComparison, title: str, *, higher_is_better: bool = True
) -> Figure:
    """A bar for the difference on each query, from the largest down; the mean and its interval across."""
    figure, axes = _figure(3.6)
    _draw_differences(axes, changes, result, title, higher_is_better=higher_is_better)
    return figure


def _draw_differences(
    axes: Any, changes: Sequence[float], result: PairedComparison, title: str, *, higher_is_better: bool
) -> None:
    bars = np.sort(np.asarray(changes, dtype=np.float64))[::-1]
    better = 1 if higher_is_better else -1
    won, lost = int((bars * better > TIE).sum()), int((bars * better < -TIE).sum())
    axes.bar(np.arange(len(bars)), bars, width=1, color=np.where(bars * better > 0, WIN, LOSS))
    axes.axhspan(result.low, result.high, color="0.5", alpha=0.3)
    axes.axhline(result.difference, color="0.2", linestyle="--")
    axes.set(
        title=_plain(f"{title}, mean {result.difference:+.4f}"),
        xlabel=f"queries: {won:,} won, {len(bars) - won - lost:,} tied, {lost:,} lost", ylabel="difference",
    )  # fmt: skip


def value_bars(values: Sequence[float], title: str) -> Figure:
    """A bar for the value of each query, from the largest down; the mean across."""
    bars = np.sort(np.asarray(values, dtype=np.float64))[::-1]
    figure, axes = _figure(3.6)
    axes.bar(np.arange(len(bars)), bars, width=1, color=WIN)
    axes.axhline(bars.mean(), color="0.2", linestyle="--")
    axes.set(title=_plain(f"{title}, mean {bars.mean():.4f}"), xlabel=f"{len(bars):,} queries", ylabel="value")
    return figure


def _plain(text: str) -> str:
    """Text in which matplotlib finds no formula."""
    return text.replace("$", r"\$")


def _figure(height: float, panels: int = 1) -> tuple[Any, ...]:
    """A figure and its panels, one below the other, each so many inches high."""
    figure = extra("matplotlib.figure", "Plots need", "plot").Figure(figsize=(6, height * panels), layout="constrained")
    all_axes = figure.subplots(panels, squeeze=False)[:, 0]
    for axes in all_axes:
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
    return figure, *all_axes
