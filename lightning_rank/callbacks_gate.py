"""The offline half of the release gate in training: each validated model against the ranker that is in use.

The class here knows no Lightning package; see ``lightning_rank.callbacks``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_rank.callbacks import RankingMonitorMixin
from lightning_rank.data.tables import is_table
from lightning_rank.gate import Gate, GateDecision
from lightning_rank.metrics import RankingMetrics
from lightning_rank.offline.per_query import read_per_query, write_per_query
from lightning_rank.stats import paired


class ReleaseGateMixin(RankingMonitorMixin):
    """After each validation, is the model good enough for an experiment? ``Gate.screen`` against a stored baseline.

    The baseline is the value of the metric for each validation query by the ranker in use. It is made by
    ``trainer.validate(old_model, ...)`` with ``ReleaseGate(path, record=True)``. Queries are joined by the ids that
    ``validation_step`` returns as ``indexes`` (or ``query``, as ``RankingModule`` does), or, in one process, by their order. Logged
    are ``gate/pass`` (1 or 0), ``gate/difference``, ``gate/low`` and ``gate/high`` of the mean difference (paired t), and with
    ``veto`` also ``gate/<metric>``, for ``ModelCheckpoint(monitor="gate/ndcg@10", mode="max")``. A checkpoint whose score is -inf
    was kept for want of one that passes.

    The baseline may also be a table of values of each query, such as ``RankingReport`` and ``lightning-rank evaluate --per-query``
    write. It names queries by the text of their ids and holds those without a relevant item, with what they count; conventions are
    not in it, and must be the same.

    Args:
        baseline: path of a JSON file, or of a table, ``.csv``, ``.tsv``, ``.parquet`` or ``.jsonl``.
        metric: name of the metric.
        tolerance: the loss that is accepted; the gate passes where the interval is above ``-tolerance``.
        alpha: 1 - the level of the interval.
        veto: log the metric where the gate passes, and -inf where it does not.
        record: write the baseline at the end of validation, in place of comparing with one.
        dataloader_idx: which of several validation dataloaders.
        prefix: put before each name in place of ``gate/``, where there are two of them.
        keys, convention, gain, ties, min_relevance, ignore_index: see ``RankingMonitor``.

    Attributes:
        decision: the last one, with its reasons.

    Raises:
        ValueError: a baseline of another metric, of other conventions or of other queries; no ids on several processes, or with
            a table.
        FileNotFoundError: there is no baseline, said before training.

    Example:
        >>> from lightning_rank.pytorch_lightning import ReleaseGate
        >>> gate = ReleaseGate("baseline.json", metric="ndcg@10", tolerance=0.002, veto=True)
    """

    def __init__(
        self,
        baseline: str,
        metric: str = "ndcg@10",
        *,
        tolerance: float = 0.0,
        alpha: float = 0.05,
        veto: bool = False,
        record: bool = False,
        dataloader_idx: int = 0,
        prefix: str = "gate/",
        keys: dict[str, str] | None = None,
        **conventions: Any,
    ) -> None:
        super().__init__([metric], prefix=prefix, keys=keys, advice=False, **conventions)
        self.metric = metric
        options = {name: value for name, value in conventions.items() if value is not None}
        self._template = RankingMetrics([metric], per_query=True, **options)
        self.gate = Gate(tolerance=tolerance, alpha=alpha)
        self.baseline, self.veto, self.record, self.dataloader_idx = baseline, veto, record, dataloader_idx
        self.decision: GateDecision | None = None
        self._old: dict[Any, float] | None = None
        self._by_ids, self._recorded_by = False, ""
        self._in_table = is_table(baseline)
        if self._in_table:
            self.keep_query_values()

    def logged_keys(self, stage: str) -> list[str]:
        """What is logged; at ``"test"`` nothing."""
        names = ["pass", "difference", "low", "high", *([self.metric] if self.veto else [])]
        return [self._prefix(stage) + name for name in names] if stage == "val" and not self.record else []

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if not self.record and stage in ("fit", "validate"):
            self._old = self._read()

    def on_test_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        pass

    def on_test_batch_end(self, *args: Any, **kwargs: Any) -> None:
        pass

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        pass

    def _start(self, num_batches: Sequence[float], pl_module: Any) -> None:
        super()._start(num_batches, pl_module)
        if not self.dataloader_idx < len(self._metrics):
            raise ValueError(
                f"`dataloader_idx` must be below the number of dataloaders, got {self.dataloader_idx} for {len(self._metrics)}."
            )

    def _inputs(self, outputs: Any, pl_module: Any, step: str) -> dict[str, Tensor]:
        inputs = super()._inputs(outputs, pl_module, step)
        if "indexes" not in inputs and self._numbers is None and outputs.get("query") is not None:
            inputs["indexes"] = outputs["query"]
        # A table has ids, and where they come from is seen to by the class above.
        self._by_ids = "indexes" in inputs or self._in_table
        if not self._by_ids and pl_module.trainer.world_size > 1:
            raise ValueError(
                f"ReleaseGate needs {type(pl_module).__name__}.{step} to return 'indexes', the ids of the queries, on several "
                "processes, where their order is not that of the baseline."
            )
        return inputs

    def _update(self, outputs: Any, pl_module: Any, step: str, batch_idx: int, dataloader_idx: int) -> None:
        if dataloader_idx == self.dataloader_idx:
            super()._update(outputs, pl_module, step, batch_idx, dataloader_idx)

    def _log_finished(self, *args: Any) -> None:
        pass

    def _log(self, trainer: Any, pl_module: Any, stage: str, loaders: Any) -> None:
        self._flush(self.dataloader_idx, pl_module, "validation_step")
        metrics = self._metrics[self.dataloader_idx]
        value = float(metrics.compute()[self.metric])
        new: dict[Any, float]
        if self._in_table:
            (new,) = self.query_values(self.dataloader_idx).values()
        else:
            ids, values = metrics.query_values()
            # Queries without a relevant item have no value, whatever the ranker.
            new = {i: v for i, v in zip(ids.tolist(), values.flatten().tolist(), strict=True) if not math.isnan(v)}
        joined_by = "ids" if self._by_ids or trainer.world_size > 1 else "order"
        if self.record:
            if trainer.is_global_zero and self._in_table:
                write_per_query(self.baseline, {self.metric: new}, run="baseline")
            elif trainer.is_global_zero:
                content = {
                    "metric": self.metric,
                    "conventions": repr(self._template),
                    "joined by": joined_by,
                    "values": list(new.items()),
                }
                Path(self.baseline).write_text(json.dumps(content), encoding="utf-8")
            return
        assert self._old is not None
        if joined_by != self._recorded_by:
            raise ValueError(
                f"The baseline {self.baseline} has its queries by {self._recorded_by}, but here they come by {joined_by}. "
                "Record it anew with record=True."
            )
        if new.keys() != self._old.keys():
            lost, others = len(self._old.keys() - new.keys()), len(new.keys() - self._old.keys())
            raise ValueError(
                f"The validation queries must be those of the baseline {self.baseline}: of its {len(self._old):,} queries {lost:,} "
                f"did not come (are batches limited?), and {others:,} others did. Record it anew with record=True."
            )
        found = paired(self._old, new, alpha=self.gate.alpha)
        self.decision = self.gate.screen(found)
        passes = self.decision.outcome == "pass"
        logged = {"pass": float(passes), "difference": found.difference, "low": found.low, "high": found.high}
        if self.veto:
            logged[self.metric] = value if passes else -math.inf
        for name, number in logged.items():
            pl_module.log(
                self._prefix(stage) + name,
                number,
                on_step=False,
                on_epoch=True,
                batch_size=1,
                sync_dist=trainer.world_size > 1,
            )

    def _read(self) -> dict[Any, float]:
        path = Path(self.baseline)
        if not path.exists():
            raise FileNotFoundError(
                f"ReleaseGate needs the baseline {path}: write it by trainer.validate(old_model, ...) with "
                f"ReleaseGate({self.baseline!r}, record=True)."
            )
        if self._in_table:
            self._recorded_by = "ids"
            return dict(read_per_query(path, [self.metric])[self.metric])
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            made_for, conventions = content["metric"], content["conventions"]
            values = {int(query): float(value) for query, value in content["values"]}
            self._recorded_by = content["joined by"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} must be a baseline that ReleaseGate(record=True) wrote: {error!r}.") from error
        if (made_for, conventions) != (self.metric, repr(self._template)):
            raise ValueError(
                f"The baseline {path} must be of {self.metric} by the same conventions, {self._template!r}; it is of {conventions}."
            )
        return values
