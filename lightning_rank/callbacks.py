"""What joins a Lightning Trainer: metrics at validation and test, and files of predictions.

The classes here know no Lightning package; ``lightning_rank.pytorch_lightning`` and ``lightning_rank.lightning`` join them to the
``Callback`` of each.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_rank.advise import Facts, facts_of, warnings_on
from lightning_rank.conventions import check_number
from lightning_rank.data.batches import RankingDataset
from lightning_rank.data.trec import write_run, write_scores
from lightning_rank.metrics import RankingMetrics

_INPUTS = ("preds", "target", "mask", "indexes", "offsets", "judged", "ideal", "ideal_mask")


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
        prog_bar: show the metrics in the progress bar.
        advice: after the first epoch, warn of what is easily misread on this data (see ``lightning_rank.advise``).

    Raises:
        ValueError: an unknown metric or option; two monitors that would log the same key; a step that returned nothing usable; NaN
            scores.

    Example:
        >>> from lightning_rank.pytorch_lightning import RankingMonitor
        >>> monitor = RankingMonitor(["ndcg@5", "mrr"], keys={"preds": "logits"})
    """

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
        self._template = RankingMetrics(metrics, **{k: v for k, v in conventions.items() if v is not None})
        if unknown := sorted((keys or {}).keys() - set(_INPUTS)):
            raise ValueError(
                f"`keys` says what the step calls {', '.join(_INPUTS)}; {', '.join(map(repr, unknown))} is none of them."
            )
        self.prefix = prefix
        self.keys = {name: name for name in _INPUTS} | (keys or {})
        if interval is not None:
            check_number("interval", interval, above=0, below=1)
        self.num_queries, self.empty_queries, self.interval, self.prog_bar = num_queries, empty_queries, interval, prog_bar
        self._metrics: list[RankingMetrics] = []
        self._advises, self._checks_names = advice, True
        self._facts: Facts | None = None  # of the first epoch's queries

    def new_metrics(self) -> RankingMetrics:
        """The monitor's metrics, without data: for values under the same conventions elsewhere."""
        return copy.deepcopy(self._template)

    def logged_keys(self, stage: str) -> list[str]:
        """What is logged for one dataloader; ``stage`` is ``"val"`` or ``"test"``."""
        names = list(self._template.names)
        if self.interval is not None:
            names += [f"{name}/{end}" for name in self._template.names for end in ("low", "high")]
        names += ["num_queries"] * self.num_queries + ["empty_queries"] * self.empty_queries
        return [self._prefix(stage) + name for name in names]

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

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
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
        self._update(outputs, pl_module, "validation_step", batch_idx, dataloader_idx)
        self._log_finished(trainer, pl_module, "val", trainer.val_dataloaders, batch_idx, dataloader_idx)

    def on_test_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._update(outputs, pl_module, "test_step", batch_idx, dataloader_idx)
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
        self._num_batches = list(num_batches)
        self._logged: set[int] = set()

    def _inputs(self, outputs: Any, pl_module: Any, step: str) -> dict[str, Tensor]:
        where = f"{type(pl_module).__name__}.{step}"
        wanted = f"a dict with '{self.keys['preds']}' (scores) and '{self.keys['target']}' (grades)"
        layout = "and 'mask', 'indexes' or 'offsets' where queries are padded or flat"
        if not isinstance(outputs, Mapping):
            came = "None" if outputs is None else f"a {type(outputs).__name__}"
            raise ValueError(f"{type(self).__name__} needs {where} to return {wanted}, {layout}; it returned {came}.")
        inputs = {name: outputs[key] for name, key in self.keys.items() if outputs.get(key) is not None}
        for name in ("preds", "target"):
            if name not in inputs and self.keys[name] in outputs:
                raise ValueError(f"{type(self).__name__} needs {where} to return {wanted}; '{self.keys[name]}' is None.")
        if "preds" not in inputs or "target" not in inputs:
            raise ValueError(
                f"{type(self).__name__} needs {where} to return {wanted}, {layout}; the keys that came are "
                f"{', '.join(map(repr, outputs)) or 'none'}. Rename with RankingMonitor(keys={{'preds': ..., 'target': ...}})."
            )
        self._warn_of_near_misses(outputs, inputs, where)
        return inputs

    def _warn_of_near_misses(self, outputs: Mapping[str, Any], inputs: dict[str, Tensor], where: str) -> None:
        """Once: an output whose name is nearly that of a layout, and which would be left out without a word."""
        if not self._checks_names:
            return
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

    def _update(self, outputs: Any, pl_module: Any, step: str, batch_idx: int, dataloader_idx: int) -> None:
        inputs = self._inputs(outputs, pl_module, step)
        metrics = self._metrics[dataloader_idx]
        if isinstance(inputs["preds"], Tensor) and metrics.device != inputs["preds"].device:
            metrics.to(inputs["preds"].device)
        if self._advises:
            self._note_facts(inputs)
        try:
            metrics.update(inputs.pop("preds"), inputs.pop("target"), **inputs)
        except (ValueError, TypeError) as error:
            raise type(error)(f"{type(pl_module).__name__}.{step}, batch {batch_idx}: {error}") from error

    def _note_facts(self, inputs: dict[str, Tensor]) -> None:
        if not all(isinstance(value, Tensor) for value in inputs.values()):
            return  # the metric says what is wrong
        if "indexes" in inputs and "offsets" not in inputs and inputs["preds"].ndim == 1:
            return  # a batch may hold parts of queries
        entry = self._template.entries[0]
        # Off the device at once, not value by value.
        inputs = {name: inputs[name].cpu() for name in ("preds", "target", "mask", "offsets") if name in inputs}
        layout = {name: inputs[name] for name in ("mask", "offsets") if name in inputs}
        min_relevance = entry.options.get("min_relevance", 1)
        try:
            facts = facts_of(inputs["target"], inputs["preds"], top_k=entry.top_k, min_relevance=min_relevance, **layout)
        except (ValueError, TypeError):  # the metric says what is wrong
            return
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
        is_last = batch_idx + 1 == self._num_batches[dataloader_idx]
        if is_last and len(self._metrics) > 1 and trainer.world_size == 1:
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
        for name, value in values.items():
            pl_module.log(
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
