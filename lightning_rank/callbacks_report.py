"""The values of each query of the best epoch, in a file and in TensorBoard.

The class here knows no Lightning package; see ``lightning_rank.callbacks``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lightning_rank.callbacks import RankingMonitorMixin
from lightning_rank.data.runs import polars
from lightning_rank.data.tables import table_kind
from lightning_rank.offline.per_query import write_per_query
from lightning_rank.offline.plots import difference_bars, value_bars


class RankingReportMixin:
    """Writes the value of each query whenever a validation is the best so far; ``RankingMonitor`` reads such a file as baseline.

    The values are those of the ``RankingMonitor`` that logs the watched key, all its metrics, over all processes, of which the
    first writes. The file has the columns run, query and one per metric, as that of ``lightning-rank evaluate --per-query``; it is
    replaced whole, so that an interrupted training leaves the best epoch so far. Under ``trainer.validate`` the values
    are written whatever they are, and so are those of ``trainer.test`` where ``monitor`` is one of ``test/``. Queries are named by
    their id, for which the step must return ``indexes`` unless the dataloader has a ``RankingDataset``.

    With a logger that can take them, as TensorBoard's, each validation adds a histogram of the values of each metric, and each best
    one a figure: the sorted values of the watched metric, or, where the monitor has a baseline, the sorted differences from it.

    Args:
        path: the file: ``.csv``, ``.tsv``, ``.parquet`` or ``.jsonl``, and ``.gz`` after it.
        monitor: the key that says which epoch is best.
        name: what the column ``run`` calls the model.
        figures: draw them where there is such a logger; without matplotlib (the extra ``plot``) there is a warning and none.
        overwrite: replace a file that exists.

    Attributes:
        best: the value of the best epoch.
        best_epoch: its number.

    Raises:
        ValueError: no ``RankingMonitor`` logs the key; the name of the file ends otherwise; the step returns no ids.
        FileExistsError: the file exists, said before anything is trained.
        ModuleNotFoundError: polars is not installed (the extra ``files``).

    Example:
        >>> from lightning_rank.pytorch_lightning import RankingMonitor, RankingReport
        >>> callbacks = [RankingMonitor(["ndcg@10", "map"]), RankingReport("best.parquet", monitor="val/ndcg@10")]
    """

    def __init__(
        self,
        path: str,
        monitor: str = "val/ndcg@10",
        *,
        name: str = "model",
        figures: bool = True,
        overwrite: bool = False,
    ) -> None:
        super().__init__()
        table_kind(path)
        self.path, self.monitor, self.name, self.figures, self.overwrite = path, monitor, name, figures, overwrite
        self.best, self.best_epoch = math.nan, -1
        self._wrote = False
        self._watched: RankingMonitorMixin | None = None

    @property
    def state_key(self) -> str:
        return self._generate_state_key(path=self.path, monitor=self.monitor)  # type: ignore[attr-defined]  # of Callback

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_epoch": self.best_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.best_epoch = state_dict["best"], state_dict["best_epoch"]
        self._wrote = self.best_epoch >= 0

    # Hooks ------------------------------------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "predict":
            return
        polars()
        monitors = [other for other in trainer.callbacks if isinstance(other, RankingMonitorMixin)]
        keys = {key: other for other in monitors for of in ("val", "test") for key in _metric_keys(other, of)}
        # That of one of several dataloaders goes on after a slash.
        key = next((key for key in sorted(keys, key=len, reverse=True) if f"{self.monitor}/".startswith(f"{key}/")), None)
        if key is None:
            raise ValueError(
                f"RankingReport watches {self.monitor!r}, which no RankingMonitor of the Trainer logs; "
                + (f"they log {', '.join(keys)}." if keys else "there is none: add one beside it.")
            )
        self._watched = keys[key]
        self._watched.keep_query_values()
        if stage != "fit":
            self._check_file(trainer, "test" if stage == "test" else "val")

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        # Not in `setup`, after which a checkpoint may tell that the file is ours.
        self._check_file(trainer, "val")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._finish(trainer, "val", trainer.val_dataloaders)

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        self._finish(trainer, "test", trainer.test_dataloaders)

    # What they do -----------------------------------------------------------------------------------------------------

    def _check_file(self, trainer: Any, stage: str) -> None:
        if self._metric(stage) is None:  # nothing will be written
            return
        if trainer.is_global_zero and not self.overwrite and not self._wrote and Path(self.path).exists():
            raise FileExistsError(
                f"{self.path} exists: choose another file, or RankingReport(overwrite=True) to replace it."
            )

    def _finish(self, trainer: Any, stage: str, loaders: Any) -> None:
        name = self._metric(stage)
        if name is None:  # it watches the other stage
            return
        assert self._watched is not None
        index = self._dataloader(self.monitor.removeprefix(self._watched._prefix(stage) + name), loaders)
        # Computed on every process, though the values are there already, so that none waits for another.
        values = self._watched.query_values(index)
        if not trainer.is_global_zero:
            return
        value = float(trainer.callback_metrics[self.monitor])
        for experiment in _experiments(trainer, "add_histogram"):
            for metric, of in values.items():
                if of:
                    key = f"{self._watched._prefix(stage)}{metric}/queries"
                    experiment.add_histogram(key, np.array(list(of.values())), trainer.global_step)
        sign = 1 if self._higher_is_better(name) else -1
        if trainer.state.fn == "fit" and not (
            sign * value > sign * self.best or (math.isnan(self.best) and math.isfinite(value))
        ):
            return
        self.best, self.best_epoch = value, trainer.current_epoch
        write_per_query(self.path, values, run=self.name, overwrite=True)
        self._wrote = True
        self._draw(trainer, stage, name, values)

    def _metric(self, stage: str) -> str | None:
        """Name of the watched metric where its key is one of this stage."""
        names = _metric_keys(self._watched, stage)  # type: ignore[arg-type]  # set up
        return next((name for key, name in names.items() if f"{self.monitor}/".startswith(f"{key}/")), None)

    def _dataloader(self, suffix: str, loaders: Any) -> int:
        """Which of the dataloaders a key is of, by what Lightning puts after its name."""
        number = len(self._watched._metrics)  # type: ignore[union-attr]  # set up
        if number > 1:
            names = list(loaders) if isinstance(loaders, Mapping) else [f"dataloader_idx_{i}" for i in range(number)]
        else:
            names = [""]
        if suffix.removeprefix("/") not in names:
            base = self.monitor.removesuffix(suffix)
            raise ValueError(
                f"RankingReport watches {self.monitor!r}; with these dataloaders there is "
                f"{', '.join(f'{base}/{n}' if n else base for n in names)}."
            )
        return names.index(suffix.removeprefix("/"))

    def _higher_is_better(self, name: str) -> bool:
        template = self._watched._template  # type: ignore[union-attr]  # set up
        return template.entries[template.names.index(name)].spec.higher_is_better

    def _draw(self, trainer: Any, stage: str, name: str, values: dict[str, dict[str, float]]) -> None:
        experiments = list(_experiments(trainer, "add_figure")) if self.figures else []
        if not experiments or not values[name]:
            return
        assert self._watched is not None
        title = f"{name}, epoch {trainer.current_epoch}"
        baseline = self._watched._baseline if stage == "val" else None
        try:
            if baseline is not None:
                old, new = baseline.values[name], values[name]
                changes = [new[query] - old[query] for query in new if query in old]
                found = baseline.against({name: new}, says=False)[name]
                title += ", against the baseline"
                figure = difference_bars(changes, found, title, higher_is_better=self._higher_is_better(name))
            else:
                figure = value_bars(list(values[name].values()), title)
        except ModuleNotFoundError as error:
            warnings.warn(f"RankingReport draws nothing: {error}", stacklevel=2)
            self.figures = False
            return
        for experiment in experiments:
            experiment.add_figure(self.monitor, figure, trainer.global_step)


def _metric_keys(monitor: RankingMonitorMixin, stage: str) -> dict[str, str]:
    """The keys under which a monitor logs its metrics, and their names."""
    keys = {monitor._prefix(stage) + name: name for name in monitor._template.names}
    return {key: name for key, name in keys.items() if key in monitor.logged_keys(stage)}


def _experiments(trainer: Any, method: str) -> Iterator[Any]:
    """What the loggers write to, of those that take such a thing."""
    for logger in trainer.loggers:
        experiment = getattr(logger, "experiment", None)
        if callable(getattr(experiment, method, None)):
            yield experiment
