"""What joins a Lightning Trainer: metrics at validation and test, and files of predictions.

The classes here know no Lightning package; ``lightning_rank.pytorch_lightning`` and ``lightning_rank.lightning`` join them to the
``Callback`` of each.
"""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar

import torch
from lightning_utilities.core.imports import compare_version
from torch import Tensor

from lightning_rank.advise import Facts, facts_of, warnings_on
from lightning_rank.conventions import check_number
from lightning_rank.data.batches import RankingDataset
from lightning_rank.data.trec import write_run, write_scores
from lightning_rank.gathering import Gathered
from lightning_rank.metrics import RankingMetrics
from lightning_rank.offline.per_query import Baseline


class _Key(str):
    """Text that seems to name no dataloader."""

    def __contains__(self, text: Any) -> bool:
        return text != "/dataloader_idx_" and super().__contains__(text)


def _log(pl_module: Any, key: str, value: Any, **options: Any) -> None:
    """``pl_module.log``, also in Lightning before 2.5.3, which refuses a key with a dataloader whatever the options."""
    # Lightning's own classes tell which of its two packages runs.
    package = type(pl_module.trainer.fit_loop).__module__.partition(".")[0]
    if "/dataloader_idx_" not in key or not compare_version(package, operator.lt, "2.5.3"):
        pl_module.log(key, value, **options)
        return
    pl_module.log(_Key(key), value, **options)
    for result in pl_module.trainer._results.values():
        if result.meta.name == key:
            result.meta.name = key  # plain again: users may save `callback_metrics`


class RankingMonitorMixin:
    """Logs ranking metrics once an epoch, in ``fit``, ``validate`` and ``test``.

    It reads what ``validation_step`` and ``test_step`` return: a dict with ``preds`` and ``target``, and ``mask``, ``indexes`` or
    ``offsets`` for the layout, as ``RankingMetrics.update`` takes them. The values are exact over uneven batches and processes,
    and there in the same epoch for ModelCheckpoint and EarlyStopping. With several dataloaders each has its own values, under
    ``val/ndcg@10/dataloader_idx_0`` as Lightning names them, or under its own name where the dataloaders came as a dict.

    Args:
        metrics: names of metrics.
        prefix: put before each name in place of ``val/`` and ``test/``.
        keys: other names of the step's outputs, as ``{"preds": "logits"}``.
        convention: the options of a tool by its name, such as ``"trec_eval"``.
        gain, ties, min_relevance, denominator, empty_target_action, ignore_index: conventions, where they should not be the
            default ones.
        num_queries: log how many queries count, as ``num_queries``.
        empty_queries: log how many queries have no relevant item, as ``empty_queries``.
        interval: log the confidence interval of each mean at this level, such as 0.95, as ``val/ndcg@10/low`` and ``/high``.
        baseline: a file with the values of another ranker for the validation queries, under the same conventions, as
            ``RankingReport`` and ``lightning-rank evaluate --per-query`` write it (CSV, TSV, Parquet or JSON lines). Logged is the
            mean difference from it over the queries of both, ``val/ndcg@10/difference``, with ``/difference/low`` and
            ``/difference/high`` (paired t; at the level of ``interval``, else 0.95). Queries are joined by id: that of the
            ``RankingDataset`` where the dataloader has one, else the number in ``indexes``. Needs the extras ``files`` and
            ``stats``.
        prog_bar: show the metrics in the progress bar.
        advice: after the first epoch, warn of what is easily misread on this data (see ``lightning_rank.advise``).

    Raises:
        ValueError: an unknown metric or option; two monitors that would log the same key; a step that returned nothing usable; NaN
            scores; a baseline that lacks a metric, has several runs or no query in common; with one, no ids or several dataloaders.
        FileNotFoundError: there is no such baseline, said before training.

    Warns:
        UserWarning: once: outputs that are nearly a layout, what is easily misread, queries that the baseline or the
            validation lacks.

    Example:
        >>> from lightning_rank.pytorch_lightning import RankingMonitor
        >>> monitor = RankingMonitor(["ndcg@5", "mrr"], keys={"preds": "logits"})
    """

    _INPUTS: ClassVar[tuple[str, ...]] = ("preds", "target", "mask", "indexes", "offsets", "judged", "ideal", "ideal_mask")

    def __init__(
        self,
        metrics: Sequence[str] = ("ndcg@10", "map", "mrr"),
        *,
        prefix: str | None = None,
        keys: dict[str, str] | None = None,
        convention: str | None = None,
        gain: str | list[float] | None = None,
        ties: str | None = None,
        min_relevance: float | None = None,
        denominator: str | None = None,
        empty_target_action: str | None = None,
        ignore_index: int | None = None,
        num_queries: bool = False,
        empty_queries: bool = False,
        interval: float | None = None,
        baseline: str | None = None,
        prog_bar: bool = False,
        advice: bool = True,
    ) -> None:
        super().__init__()
        conventions: dict[str, Any] = {
            "convention": convention,
            "gain": gain,
            "ties": ties,
            "min_relevance": min_relevance,
            "denominator": denominator,
            "empty_target_action": empty_target_action,
            "ignore_index": ignore_index,
        }
        self._options = {k: v for k, v in conventions.items() if v is not None}
        self._template = RankingMetrics(metrics, **self._options)
        if unknown := sorted((keys or {}).keys() - set(self._INPUTS)):
            raise ValueError(
                f"`keys` says what the step calls {', '.join(self._INPUTS)}; {', '.join(map(repr, unknown))} is none of them."
            )
        self.prefix = prefix
        self.keys = {name: name for name in self._INPUTS} | (keys or {})
        if interval is not None:
            check_number("interval", interval, above=0, below=1)
        self.num_queries, self.empty_queries, self.interval, self.prog_bar = num_queries, empty_queries, interval, prog_bar
        self._metrics: list[RankingMetrics] = []
        self._gathered: list[Gathered] = []
        self._advises, self._checks_names = advice, True
        self._facts: Facts | None = None  # of the first epoch's queries
        self._seen_ids: set[tuple[int, int]] = set()  # of dataloader and query, of flat lists by ids
        self._baseline_path = baseline
        self._baseline: Baseline | None = None
        # Where values are kept by query: the numbers of a batch's queries in the data set; their ids there, by dataloader.
        self._keeps_ids = False
        self._numbers: Tensor | None = None
        self._query_ids: list[Sequence[str] | None] = []
        if baseline is not None:
            self.keep_query_values()

    def new_metrics(self) -> RankingMetrics:
        """The monitor's metrics, without data: for values under the same conventions elsewhere."""
        return copy.deepcopy(self._template)

    def logged_keys(self, stage: str) -> list[str]:
        """What is logged for one dataloader; ``stage`` is ``"val"`` or ``"test"``."""
        names = list(self._template.names)
        if self.interval is not None:
            names += [f"{name}/{end}" for name in self._template.names for end in ("low", "high")]
        names += ["num_queries"] * self.num_queries + ["empty_queries"] * self.empty_queries
        if self._baseline_path is not None and stage == "val":
            names += [f"{name}/difference{end}" for name in self._template.names for end in ("", "/low", "/high")]
        return [self._prefix(stage) + name for name in names]

    def keep_query_values(self) -> None:
        """From now on keep the value of each query, for ``query_values``; the step must then give their ids."""
        self._keeps_ids = True
        if not self._template.per_query:
            self._template = RankingMetrics(self._template.names, per_query=True, **self._options)

    def query_values(self, dataloader_idx: int = 0) -> dict[str, dict[str, float]]:
        """The value of each query of the last epoch, over all processes, after ``keep_query_values``.

        Returns:
            ``{metric: {query id: value}}``; a query without a relevant item counts what the conventions say, and is left out
            where they skip it.
        """
        metrics, named = self._metrics[dataloader_idx], self._query_ids[dataloader_idx]
        ids, values = metrics.query_values()
        queries = [str(i) if named is None else named[i] for i in ids.tolist()]
        filled = {}
        for entry, column in zip(metrics.entries, values.double().cpu().unbind(1), strict=True):
            if entry.empty_target_action != "skip":
                column = column.nan_to_num(float(entry.empty_target_action == "pos"))
            filled[entry.name] = {query: v for query, v in zip(queries, column.tolist(), strict=True) if v == v}
        return filled

    def _prefix(self, stage: str) -> str:
        return f"{stage}/" if self.prefix is None else self.prefix

    # Hooks ------------------------------------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        for other in trainer.callbacks:
            if other is self or not isinstance(other, RankingMonitorMixin):
                continue
            shared = [key for key in self.logged_keys("val") if key in other.logged_keys("val")]
            if shared:
                raise ValueError(
                    f"Two RankingMonitors would log {', '.join(shared)}, and Lightning would average them: give one another "
                    "`prefix`, such as prefix='linear/'."
                )
        if self._baseline_path is not None and self._baseline is None and stage in ("fit", "validate"):
            self._baseline = Baseline.read(self._baseline_path, self._template.names, alpha=1 - (self.interval or 0.95))

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if self._baseline is not None and len(trainer.num_val_batches) > 1 and not trainer.sanity_checking:
            raise ValueError(
                f"A baseline is that of one validation dataloader, got {len(trainer.num_val_batches)} of them: leave `baseline` "
                "out, or validate on each by itself."
            )
        self._start(trainer.num_sanity_val_batches if trainer.sanity_checking else trainer.num_val_batches, pl_module)

    def on_test_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._start(trainer.num_test_batches, pl_module)

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if trainer.sanity_checking:
            # A sanity check must not fail, but what is wrong with the step can be said before the first epoch.
            try:
                self._inputs(outputs, pl_module, "validation_step")
            except ValueError as error:
                warnings.warn(str(error), stacklevel=2)
            return
        if self._keeps_ids:
            self._note_numbers(batch, trainer.val_dataloaders, dataloader_idx)
        self._update(outputs, pl_module, "validation_step", batch_idx, dataloader_idx)
        if len(self._metrics) > 1:
            self._log_finished(trainer, pl_module, "val", trainer.val_dataloaders, batch_idx, dataloader_idx)

    def on_test_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self._keeps_ids:
            self._note_numbers(batch, trainer.test_dataloaders, dataloader_idx)
        self._update(outputs, pl_module, "test_step", batch_idx, dataloader_idx)
        if len(self._metrics) > 1:
            self._log_finished(trainer, pl_module, "test", trainer.test_dataloaders, batch_idx, dataloader_idx)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._log(trainer, pl_module, "val", trainer.val_dataloaders)

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._log(trainer, pl_module, "test", trainer.test_dataloaders)

    # What they do -----------------------------------------------------------------------------------------------------

    def _start(self, num_batches: Sequence[float], pl_module: Any) -> None:
        # Made anew, and on every process for every dataloader, so that a process without data joins in all the same.
        self._metrics = [self.new_metrics().to(pl_module.device) for _ in num_batches]
        self._gathered = [Gathered(metrics) for metrics in self._metrics]
        self._num_batches = list(num_batches)
        self._query_ids = [None] * len(self._num_batches)
        self._logged: set[int] = set()
        self._facts = None
        self._seen_ids.clear()

    def _inputs(self, outputs: Any, pl_module: Any, step: str) -> dict[str, Tensor]:
        if isinstance(outputs, Mapping):
            inputs = {name: outputs[key] for name, key in self.keys.items() if outputs.get(key) is not None}
            if "preds" in inputs and "target" in inputs:
                if self._checks_names:
                    self._warn_of_near_misses(outputs, inputs, f"{type(pl_module).__name__}.{step}")
                return inputs
        where = f"{type(pl_module).__name__}.{step}"
        wanted = f"a dict with '{self.keys['preds']}' (scores) and '{self.keys['target']}' (grades)"
        layout = "and 'mask', 'indexes' or 'offsets' where queries are padded or flat"
        if not isinstance(outputs, Mapping):
            came = "None" if outputs is None else f"a {type(outputs).__name__}"
            raise ValueError(f"{type(self).__name__} needs {where} to return {wanted}, {layout}; it returned {came}.")
        for name in ("preds", "target"):
            if name not in inputs and self.keys[name] in outputs:
                raise ValueError(f"{type(self).__name__} needs {where} to return {wanted}; '{self.keys[name]}' is None.")
        raise ValueError(
            f"{type(self).__name__} needs {where} to return {wanted}, {layout}; the keys that came are "
            f"{', '.join(map(repr, outputs)) or 'none'}. Rename with RankingMonitor(keys={{'preds': ..., 'target': ...}})."
        )

    def _warn_of_near_misses(self, outputs: Mapping[str, Any], inputs: dict[str, Tensor], where: str) -> None:
        """Once: an output whose name is nearly that of a layout, and which would be left out without a word."""
        self._checks_names = False
        others = [key for key in outputs if isinstance(key, str) and key not in self.keys.values()]
        for name in ("mask", "indexes", "offsets"):
            near = get_close_matches(self.keys[name], others, n=1, cutoff=0.7) if name not in inputs else []
            if near:
                warnings.warn(
                    f"RankingMonitor does not read {near[0]!r}, which {where} returned: if it is the `{name}`, name it "
                    f"'{self.keys[name]}', or say keys={{'{name}': {near[0]!r}}}.",
                    stacklevel=2,
                )

    def _note_numbers(self, batch: Any, loaders: Any, dataloader_idx: int) -> None:
        """The numbers of the batch's queries in a ``RankingDataset``, which knows the text of their ids."""
        self._numbers = None
        loaders = list(loaders.values()) if isinstance(loaders, Mapping) else loaders
        loader = loaders[dataloader_idx] if isinstance(loaders, (list, tuple)) else loaders
        dataset = getattr(loader, "dataset", None)
        if isinstance(dataset, RankingDataset) and isinstance(batch, Mapping) and isinstance(batch.get("query"), Tensor):
            self._numbers = batch["query"]
            self._query_ids[dataloader_idx] = dataset.query_ids

    def _with_ids(self, inputs: dict[str, Tensor], pl_module: Any, step: str, dataloader_idx: int) -> dict[str, Tensor]:
        by_item = isinstance(inputs["preds"], Tensor) and inputs["preds"].ndim == 1 and "offsets" not in inputs
        if "indexes" not in inputs and self._numbers is not None and not by_item:
            return inputs | {"indexes": self._numbers}
        if "indexes" not in inputs:
            raise ValueError(
                f"To keep values by query, {type(pl_module).__name__}.{step} must return their ids as '{self.keys['indexes']}', "
                "whole numbers that are the same in each epoch: one per query, or one per item where scores are flat."
            )
        if inputs["indexes"] is not self._numbers:
            self._query_ids[dataloader_idx] = None  # ids of its own
        return inputs

    def _update(self, outputs: Any, pl_module: Any, step: str, batch_idx: int, dataloader_idx: int) -> None:
        inputs = self._inputs(outputs, pl_module, step)
        metrics = self._metrics[dataloader_idx]
        if isinstance(inputs["preds"], Tensor) and metrics.device != inputs["preds"].device:
            self._flush(dataloader_idx, pl_module, step)
            metrics.to(inputs["preds"].device)
        if self._keeps_ids:
            inputs = self._with_ids(inputs, pl_module, step, dataloader_idx)
        if self._advises:
            self._note_facts(inputs, dataloader_idx)
        try:
            self._gathered[dataloader_idx].update(inputs, batch_idx)
        except (ValueError, TypeError) as error:
            raise type(error)(f"{type(pl_module).__name__}.{step}, {error}") from error

    def _flush(self, dataloader_idx: int, pl_module: Any, step: str) -> None:
        """Count the batches that wait to be ranked together."""
        try:
            self._gathered[dataloader_idx].flush()
        except (ValueError, TypeError) as error:
            raise type(error)(f"{type(pl_module).__name__}.{step}, {error}") from error

    def _note_facts(self, inputs: dict[str, Tensor], dataloader_idx: int) -> None:
        if not all(isinstance(value, Tensor) for value in inputs.values()):
            return  # the metric says what is wrong
        names = ["preds", "target", "mask", "offsets"]
        if "indexes" in inputs and "offsets" not in inputs and inputs["preds"].ndim == 1:
            names.append("indexes")
        entry = self._template.entries[0]
        # Off the device at once, not value by value.
        inputs = {name: inputs[name].cpu() for name in names if name in inputs}
        layout = {name: inputs[name] for name in ("mask", "offsets", "indexes") if name in inputs}
        min_relevance = entry.options.get("min_relevance", 1)
        try:
            facts = facts_of(inputs["target"], inputs["preds"], top_k=entry.top_k, min_relevance=min_relevance, **layout)
        except (ValueError, TypeError):  # the metric says what is wrong
            return
        if "indexes" in inputs and not self._template.whole_queries:
            ids = {(dataloader_idx, query) for query in inputs["indexes"].tolist()}
            if ids & self._seen_ids:  # batches hold parts of queries, of which nothing can be told
                self._advises, self._facts = False, None
                return
            self._seen_ids |= ids
        self._facts = facts if self._facts is None else self._facts.merged(facts)

    def _advise(self) -> None:
        """Once: what the first epoch's queries, in this process, tell about the metrics."""
        if self._facts is not None and self._facts.queries:
            entry = self._template.entries[0]
            for warning in warnings_on(
                self._facts,
                top_k=entry.top_k or self._facts.longest,
                metrics=[entry.name for entry in self._template.entries],
                empty_target_action=entry.empty_target_action,
            ):
                warnings.warn(f"RankingMonitor: {warning}", stacklevel=2)
        self._facts = None

    def _log_finished(
        self, trainer: Any, pl_module: Any, stage: str, loaders: Any, batch_idx: int, dataloader_idx: int
    ) -> None:
        """Log a dataloader of several with its last batch, so that Lightning's printed table has each in its own column."""
        # Not over processes: they need not come to an end together, and would wait for one another.
        if batch_idx + 1 == self._num_batches[dataloader_idx] and trainer.world_size == 1:
            self._log_loader(trainer, pl_module, stage, loaders, dataloader_idx)

    def _log(self, trainer: Any, pl_module: Any, stage: str, loaders: Any) -> None:
        if self._advises and trainer.is_global_zero:
            self._advise()
        self._advises = False
        for i in range(len(self._metrics)):
            if i not in self._logged:
                self._log_loader(trainer, pl_module, stage, loaders, i)

    def _log_loader(self, trainer: Any, pl_module: Any, stage: str, loaders: Any, index: int) -> None:
        self._logged.add(index)
        self._flush(index, pl_module, "test_step" if stage == "test" else "validation_step")
        metrics, suffix = self._metrics[index], ""
        if len(self._metrics) > 1:
            suffix = f"/{list(loaders)[index]}" if isinstance(loaders, Mapping) else f"/dataloader_idx_{index}"
        values: dict[str, Any] = dict(metrics.compute())
        if self.num_queries:
            values["num_queries"] = float(max(metrics.num_queries.values()))
        if self.empty_queries:
            values["empty_queries"] = float(max(metrics.num_empty.values()))
        if self.interval is not None:
            for name, interval in metrics.interval(self.interval).items():
                values |= {f"{name}/low": interval.low, f"{name}/high": interval.high}
        if self._baseline is not None and stage == "val":
            for name, found in self._baseline.against(self.query_values(index), says=trainer.is_global_zero).items():
                ends = {"": found.difference, "/low": found.low, "/high": found.high}
                values |= {f"{name}/difference{end}": value for end, value in ends.items()}
        for name, value in values.items():
            _log(
                pl_module,
                self._prefix(stage) + name + suffix,
                value,
                prog_bar=self.prog_bar and name in metrics.names,
                on_step=False,
                on_epoch=True,
                batch_size=1,
                # Equal on all processes already; said so that Lightning does not warn.
                sync_dist=trainer.world_size > 1,
                add_dataloader_idx=False,
            )


class PredictionWriterMixin:
    """Writes what ``predict`` scored: a TREC run file, and one score per item in the order of the input.

    It reads what ``RankingModule.predict_step`` returns, for the ``RankingDataset`` of a data module. With several processes, the
    first one writes for all.

    Args:
        run: path of the run file, ``query Q0 document rank score tag``; None writes none.
        scores: path of the file with a score per line; None writes none.
        tag: name of the run.
        overwrite: replace files that exist.

    Raises:
        FileExistsError: a file exists, said before anything is scored.
    """

    def __init__(
        self, run: str | None = None, scores: str | None = None, tag: str = "lightning_rank", overwrite: bool = False
    ) -> None:
        super().__init__()
        self.run, self.scores, self.tag, self.overwrite = run, scores, tag, overwrite
        self._scored: list[tuple[Tensor, Tensor]] = []

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "predict" or self.overwrite or not trainer.is_global_zero:
            return
        for path in (self.run, self.scores):
            if path is not None and Path(path).exists():
                raise FileExistsError(
                    f"{path} exists: choose another file, or set overwrite (--predictions.overwrite true) to replace it."
                )

    def on_predict_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._scored = []
        dataset = getattr(trainer.predict_dataloaders, "dataset", None)
        if (self.run is not None or self.scores is not None) and not isinstance(dataset, RankingDataset):
            raise TypeError(f"PredictionWriter needs one dataloader of a RankingDataset, got {type(dataset).__name__}.")

    def on_predict_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self.run is None and self.scores is None:
            return
        offsets = trainer.predict_dataloaders.dataset.offsets[outputs["query"].cpu()]
        mask = outputs["mask"].cpu()
        items = offsets[:, None] + torch.arange(mask.shape[1])
        self._scored.append((items[mask], outputs["preds"].detach().float().cpu()[mask]))

    def on_predict_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self.run is None and self.scores is None:
            return
        parts = [self._scored]
        if trainer.world_size > 1:
            parts = [[] for _ in range(trainer.world_size)]
            torch.distributed.all_gather_object(parts, self._scored)
        if not trainer.is_global_zero:
            return
        dataset = trainer.predict_dataloaders.dataset
        scores = torch.full((len(dataset.grades),), torch.nan)
        for items, values in (pair for part in parts for pair in part):
            scores[items] = values
        if (missing := int(scores.isnan().sum())) > 0:
            warnings.warn(
                f"{missing} of {len(scores)} items have no score (or NaN), as `limit_predict_batches` leaves them.",
                stacklevel=2,
            )
        if self.run is not None:
            write_run(self.run, dataset, scores, tag=self.tag)
        if self.scores is not None:
            write_scores(self.scores, dataset, scores)
