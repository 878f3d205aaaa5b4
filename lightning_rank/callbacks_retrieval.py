"""Retrieval from a whole catalogue, measured at validation and test: embeddings in, metrics out.

The class here knows no Lightning package; see ``lightning_rank.callbacks``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_rank.callbacks import RankingMonitorMixin
from lightning_rank.functional.retrieval import ITEMS, QUERIES, ItemLists, best, check_embeddings, item_lists, memory_for


class RetrievalMonitorMixin(RankingMonitorMixin):
    """Logs metrics of retrieval from a whole catalogue once an epoch, in ``fit``, ``validate`` and ``test``.

    The module gives embeddings: ``validation_step`` and ``test_step`` those of queries, a method or attribute those of all items.
    The score is the dot product. Each query's best items are found exactly and block by block, items seen in training left out,
    so that neither scores of all pairs nor what was found is kept: memory is constant but for ``indexes``.

    The step returns a dict of

    - ``query``: ``[query, embedding]``;
    - ``relevant``: what should be found, as rows of the item embeddings: ``[query]`` one for each query, ``[query, N]`` with
      ``relevant_mask`` (False is padding), or flat with ``relevant_offsets`` ``[query + 1]``;
    - ``grade``: like ``relevant``, where relevance is graded; else each has grade 1;
    - ``seen``: what must not be found, with ``seen_mask`` or ``seen_offsets``. An item that is relevant and seen counts as missed;
    - ``indexes``: ``[query]`` ids, with which a query counts once over processes (a distributed sampler repeats some).

    Items that tie at the cutoff count by the exact expectation over their orders, as in all metrics here, so that a model that
    gives all items one score is not praised for the order of the catalogue.

    Args:
        metrics: names of metrics, each with a cutoff.
        items: the module's method, without arguments, or attribute that gives ``[item, embedding]``; called once an epoch, on
            every process, in evaluation mode.
        prefix: put before each name in place of ``val/`` and ``test/``.
        keys: other names of the step's outputs, as ``{"query": "user"}``.
        gain, min_relevance, denominator, empty_target_action: conventions, where they should not be the default ones.
        num_queries, empty_queries, interval, prog_bar: as for ``RankingMonitor``.

    Raises:
        ValueError: a metric without a cutoff; a step or module that gave nothing usable; embeddings that are not finite; a
            relevant item named twice for a query.

    Example:
        >>> from lightning_rank.pytorch_lightning import RetrievalMonitor
        >>> monitor = RetrievalMonitor(["recall@100", "ndcg@10"], items="item_embeddings", keys={"relevant": "held_out"})
    """

    _INPUTS: ClassVar[tuple[str, ...]] = (
        "query", "relevant", "relevant_mask", "relevant_offsets", "grade", "seen", "seen_mask", "seen_offsets", "indexes",
    )  # fmt: skip

    def __init__(
        self,
        metrics: Sequence[str] = ("recall@100", "ndcg@10", "mrr@10"),
        *,
        items: str = "item_embeddings",
        prefix: str | None = None,
        keys: dict[str, str] | None = None,
        gain: str | list[float] | None = None,
        min_relevance: float | None = None,
        denominator: str | None = None,
        empty_target_action: str | None = None,
        num_queries: bool = False,
        empty_queries: bool = False,
        interval: float | None = None,
        prog_bar: bool = False,
    ) -> None:
        super().__init__(
            metrics, prefix=prefix, keys=keys, gain=gain, min_relevance=min_relevance, denominator=denominator,
            empty_target_action=empty_target_action, num_queries=num_queries, empty_queries=empty_queries, interval=interval,
            prog_bar=prog_bar, advice=False,
        )  # fmt: skip
        for entry in self._template.entries:
            if entry.top_k is None:
                raise ValueError(
                    f"RetrievalMonitor finds the first items of a catalogue: `metrics` must have a cutoff, as in "
                    f"'{entry.name}@100', got '{entry.name}'."
                )
            if entry.spec.name == "fall_out":
                raise ValueError("RetrievalMonitor cannot log fall_out: nobody judged the items that are not relevant.")
        self._number = max(entry.top_k or 0 for entry in self._template.entries)
        self.items = items
        self._catalogue: Tensor | None = None
        self._memory: Tensor | None = None

    def _start(self, num_batches: Sequence[float], pl_module: Any) -> None:
        super()._start(num_batches, pl_module)
        self._catalogue = None  # of the model as it was

    def _log(self, trainer: Any, pl_module: Any, stage: str, loaders: Any) -> None:
        super()._log(trainer, pl_module, stage, loaders)
        self._catalogue = self._memory = None

    def _item_embeddings(self, pl_module: Any) -> Tensor:
        if self._catalogue is None:
            name = f"{type(pl_module).__name__}.{self.items}"
            given = getattr(pl_module, self.items, None)
            if given is None:
                raise ValueError(
                    f"{type(self).__name__} needs the embeddings of all items, [item, embedding]: give the module a method or "
                    f"attribute {self.items!r}, or name another with items=..."
                )
            with pl_module.trainer.precision_plugin.forward_context():
                items = given() if callable(given) else given
            check_embeddings(name, items)
            # Half precision would tie items that are not equal.
            self._catalogue = items.detach().to(torch.promote_types(items.dtype, torch.float32))
            self._memory = memory_for(self._catalogue)
        return self._catalogue

    def _inputs(self, outputs: Any, pl_module: Any, step: str) -> dict[str, Tensor]:
        where = f"{type(pl_module).__name__}.{step}"
        wanted = (
            f"a dict with '{self.keys['query']}' (embeddings) and '{self.keys['relevant']}' (rows of the items to be found)"
        )
        if not isinstance(outputs, Mapping):
            came = "None" if outputs is None else f"a {type(outputs).__name__}"
            raise ValueError(f"{type(self).__name__} needs {where} to return {wanted}; it returned {came}.")
        inputs = {name: outputs[key] for name, key in self.keys.items() if outputs.get(key) is not None}
        if "query" not in inputs or "relevant" not in inputs:
            raise ValueError(
                f"{type(self).__name__} needs {where} to return {wanted}; the keys that came are "
                f"{', '.join(map(repr, outputs)) or 'none'}. Rename with RetrievalMonitor(keys={{'query': ..., 'relevant': ...}})."
            )
        return inputs

    def _update(self, outputs: Any, pl_module: Any, step: str, batch_idx: int, dataloader_idx: int) -> None:
        inputs = self._inputs(outputs, pl_module, step)
        item = self._item_embeddings(pl_module)
        metrics = self._metrics[dataloader_idx]
        if isinstance(inputs["query"], Tensor) and metrics.device != inputs["query"].device:
            metrics.to(inputs["query"].device)
        try:
            for found in _retrieved(inputs, item, self._number, self._memory):
                metrics.update(**found)
        except (ValueError, TypeError) as error:
            raise type(error)(f"{type(pl_module).__name__}.{step}, batch {batch_idx}: {error}") from error


def _retrieved(inputs: dict[str, Tensor], item: Tensor, number: int, memory: Tensor | None) -> Iterator[dict[str, Any]]:
    """What a metric is updated with: the first items of each query, and the grades of all that are relevant."""
    query = inputs["query"]
    check_embeddings("query", query, like=item)
    sizes = len(query), len(item)
    relevant = item_lists(
        "relevant", inputs["relevant"], inputs.get("relevant_mask"), inputs.get("relevant_offsets"), *sizes
    )
    judged = _Judged(relevant, _grades(inputs, relevant), *sizes)
    seen = None
    if "seen" in inputs:
        seen = item_lists("seen", inputs["seen"], inputs.get("seen_mask"), inputs.get("seen_offsets"), *sizes)
    if not len(query):
        return

    def update(rows: Tensor, scores: Tensor, items: Tensor, mask: Tensor) -> dict[str, Any]:
        target = judged.grade_of(rows, items).masked_fill(~mask, 0)
        indexes = inputs["indexes"][rows] if "indexes" in inputs else None
        ideal = {"ideal": judged.padded[rows], "ideal_mask": judged.mask[rows]}
        return {"preds": scores, "target": target, "mask": mask, "indexes": indexes, **ideal}

    query = query.to(item.dtype)
    # One more than asked for tells whether the last place is tied.
    scores, items = best(query, item, number + 1, seen, memory)
    tied = (scores[:, number - 1] == scores[:, number]) & (scores[:, number] > -torch.inf)
    rows = (~tied).nonzero()[:, 0]
    if len(rows):
        scores, items = scores[rows, :number], items[rows, :number]
        yield update(rows, scores, items, items >= 0)
    # The others are ranked whole, so that what is tied counts by its expectation.
    tied_rows = tied.nonzero()[:, 0]
    for rows in tied_rows.split(max(1, QUERIES * ITEMS // max(len(item), 1) // 16)) if len(tied_rows) else ():
        scores = query[rows] @ item.T
        free = torch.ones_like(scores, dtype=torch.bool)
        for place, row in enumerate(rows.tolist() if seen is not None else []):
            free[place, seen.of(row, 1)[0]] = False  # type: ignore[union-attr]  # there are rows only where it is not None
        yield update(rows, scores, torch.arange(len(item), device=scores.device).expand_as(scores), free)


def _grades(inputs: dict[str, Tensor], relevant: ItemLists) -> Tensor:
    """``[N]``, a grade for each relevant item."""
    if "grade" not in inputs:
        return torch.ones(len(relevant.items), device=relevant.items.device)
    grade = inputs["grade"]
    if not isinstance(grade, Tensor) or grade.shape != inputs["relevant"].shape:
        came = list(grade.shape) if isinstance(grade, Tensor) else type(grade).__name__
        raise ValueError(f"`grade` must be like `relevant`, {list(inputs['relevant'].shape)}, got {came}.")
    return (grade[inputs["relevant_mask"]] if "relevant_mask" in inputs else grade.flatten()).float()


class _Judged:
    """The relevant items of queries and their grades.

    Attributes:
        padded: ``[query, N]`` the grades of each query's items.
        mask: ``[query, N]``, False is padding.
    """

    def __init__(self, relevant: ItemLists, grade: Tensor, num_queries: int, num_items: int) -> None:
        items, row = relevant.of(0, num_queries)
        # Sorted by query and item.
        keys, order = (row * num_items + items).sort()
        twice = (keys[1:] == keys[:-1]).nonzero()[:, 0]
        if len(twice):
            query, item = divmod(int(keys[twice[0]]), num_items)
            raise ValueError(f"A query's `relevant` items must differ: item {item} came twice for query {query}.")
        count = relevant.offsets.diff()
        self._width = max(int(count.max()) if num_queries else 0, 1)
        self.mask = torch.arange(self._width, device=row.device) < count[:, None]
        self.padded = grade.new_zeros(self.mask.shape).masked_scatter(self.mask, grade[order])
        # In ascending order with its padding.
        self._items = keys.new_full(self.mask.shape, num_items).masked_scatter(self.mask, keys % num_items)

    def grade_of(self, rows: Tensor, items: Tensor) -> Tensor:
        """The grades of items ``[len(rows), N]`` of these queries; 0 for one that is not relevant."""
        own = self._items[rows]
        at = torch.searchsorted(own, items.contiguous()).clamp_(max=self._width - 1)
        return torch.where(own.gather(1, at) == items, self.padded[rows].gather(1, at), 0.0)
