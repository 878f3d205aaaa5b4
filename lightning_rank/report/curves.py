"""Curves of a training run, from the file that Lightning's CSVLogger writes."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_rank.extras import extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def read_curves(path: str | Path) -> dict[str, list[tuple[int, float]]]:
    """Values by name from a ``metrics.csv``, each with its epoch.

    Args:
        path: the file that CSVLogger wrote.

    Returns:
        For each logged name a list of (epoch, value) in the order of writing.
    """
    curves: dict[str, list[tuple[int, float]]] = {}
    with Path(path).open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value and name not in ("epoch", "step") and row.get("epoch"):
                    curves.setdefault(name, []).append((int(row["epoch"]), float(value)))
    return curves


def plot_curves(path: str | Path, *, chosen_by: str = "val/ndcg@10", names: Sequence[str] | None = None) -> Figure:
    """Draw the validation metrics of a run over its epochs, the losses beside them, and mark the best epoch.

    Args:
        path: the ``metrics.csv`` of the run.
        chosen_by: the metric by which the checkpoint was chosen; higher is better.
        names: the metrics to draw; None draws all that begin with ``val/`` but the loss.

    Raises:
        ModuleNotFoundError: matplotlib is not installed (the extra ``plot``).
        ValueError: the file has no such metric.
    """
    curves = read_curves(path)
    if names is None:
        names = [name for name in curves if name.startswith("val/") and not name.endswith(("loss", "_queries"))]
    if missing := [name for name in names if name not in curves] or not names:
        raise ValueError(f"{path} has no {missing if names else 'validation metric'}; it has {', '.join(curves)}.")
    losses = [name for name in ("train/loss", "val/loss") if name in curves]
    figure = extra("matplotlib.figure", "Plots need", "plot").Figure(
        figsize=(9 if losses else 5.5, 3.6), layout="constrained"
    )
    axes = figure.subplots(1, 2 if losses else 1, squeeze=False)[0]
    for name in names:
        epochs, values = zip(*curves[name], strict=True)
        axes[0].plot(epochs, values, marker=".", label=name)
    title = "Validation metrics"
    if chosen_by in curves:
        epoch, value = max(curves[chosen_by], key=lambda pair: pair[1])
        axes[0].axvline(epoch, color="0.6", linestyle=":", zorder=0)
        title = f"best {chosen_by} {value:.4f}, epoch {epoch}"
    axes[0].set(title=title, xlabel="epoch")
    for name in losses:
        epochs, values = zip(*curves[name], strict=True)
        axes[1].plot(epochs, values, marker=".", label=name)
    if losses:
        axes[1].set(title="Loss", xlabel="epoch")
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
        axis.xaxis.get_major_locator().set_params(integer=True)
    return figure
