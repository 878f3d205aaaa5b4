"""Retrieval from a whole catalogue, measured at validation and test: embeddings in, metrics out.

The class here knows no Lightning package; see ``lightning_rank.callbacks``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_rank.callbacks import RankingMonitorMixin
from lightning_rank.functional.retrieval import ITEMS, ItemLists, best_in_blocks, check_embeddings, item_lists


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

    def _start(self, num_batches: Sequence[float], pl_module: Any) -> None:
        super()._start(num_batches, pl_module)
        self._catalogue = None  # of the model as it was

    def _log(self, trainer: Any, pl_module: Any, stage: str, loaders: Any) -> None:
        super()._log(trainer, pl_module, stage, loaders)
        self._catalogue = None

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
            for found in _retrieved(inputs, item, self._number):
                metrics.update(**found)
        except (ValueError, TypeError) as error:
            raise type(error)(f"{type(pl_module).__name__}.{step}, batch {batch_idx}: {error}") from error


def _retrieved(inputs: dict[str, Tensor], item: Tensor, number: int) -> Iterator[dict[str, Any]]:
    """What a metric is updated with, some queries at a time: the first items of each, and the grades of all relevant ones."""
    query = inputs["query"]
    check_embeddings("query", query, like=item)
    sizes = len(query), len(item)
    relevant = item_lists(
        "relevant", inputs["relevant"], inputs.get("relevant_mask"), inputs.get("relevant_offsets"), *sizes
    )
    grade = _grades(inputs, relevant)
    seen = None
    if "seen" in inputs:
        seen = item_lists("seen", inputs["seen"], inputs.get("seen_mask"), inputs.get("seen_offsets"), *sizes)
    query = query.to(item.dtype)
    # One more than asked for tells whether the last place is tied.
    for first, scores, items in best_in_blocks(query, item, number + 1, seen):
        rows = torch.arange(first, first + len(scores), device=scores.device)
        judged = _Judged(relevant, grade, first, len(scores), len(item))
        tied = (scores[:, number - 1] == scores[:, number]) & (scores[:, number] > -torch.inf)
        whole = tied.nonzero()[:, 0]
        single = (~tied).nonzero()[:, 0]
        if len(single):
            found, score = items[single, :number], scores[single, :number]
            yield _update_of(inputs, rows[single], judged, single, score, found, found >= 0)
        # The others are ranked whole, so that what is tied counts by its expectation.
        for part in whole.split(max(1, ITEMS * 64 // max(len(item), 1))):
            score = query[rows[part]] @ item.T
            free = torch.ones_like(score, dtype=torch.bool)
            if seen is not None:
                hidden, row = seen.of(first, len(scores))
                place = torch.full((len(scores),), -1, device=row.device).index_copy(
                    0, part, torch.arange(len(part), device=row.device)
                )[row]
                free[place[place >= 0], hidden[place >= 0]] = False
            found = torch.arange(len(item), device=score.device).expand_as(score)
            yield _update_of(inputs, rows[part], judged, part, score, found, free)


def _update_of(
    inputs: dict[str, Tensor], rows: Tensor, judged: _Judged, places: Tensor, score: Tensor, found: Tensor, mask: Tensor
) -> dict[str, Any]:
    ideal, ideal_mask = judged.ideal(places)
    indexes = inputs["indexes"][rows] if "indexes" in inputs else None
    target = judged.grade_of(places, found).masked_fill(~mask, 0)
    return {"preds": score, "target": target, "mask": mask, "indexes": indexes, "ideal": ideal, "ideal_mask": ideal_mask}


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
    """The relevant items of some queries, and their grades."""

    def __init__(self, relevant: ItemLists, grade: Tensor, first: int, number: int, num_items: int) -> None:
        items, row = relevant.of(first, number)
        start = int(relevant.offsets[first])
        self._num_items = num_items
        # Sorted by query and item.
        self._keys, order = (row * num_items + items).sort()
        twice = (self._keys[1:] == self._keys[:-1]).nonzero()[:, 0]
        if len(twice):
            query, item = divmod(int(self._keys[twice[0]]), num_items)
            raise ValueError(f"A query's `relevant` items must differ: item {item} came twice for query {first + query}.")
        self._grade = grade[start : start + len(items)][order]
        count = relevant.offsets[first : first + number + 1].diff()
        width = max(int(count.max()), 1)
        place = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
        self._padded = grade.new_zeros(number, width)
        self._padded[row, place] = self._grade
        self._mask = torch.arange(width, device=row.device) < count[:, None]

    def ideal(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Grades of all relevant items of some queries, padded, and their mask."""
        return self._padded[places], self._mask[places]

    def grade_of(self, places: Tensor, items: Tensor) -> Tensor:
        """The grades of items ``[len(places), N]``; 0 for one that is not relevant."""
        if not len(self._keys):
            return torch.zeros(items.shape, device=items.device)
        keys = places[:, None] * self._num_items + items
        at = torch.searchsorted(self._keys, keys).clamp(max=len(self._keys) - 1)
        return torch.where(self._keys[at] == keys, self._grade[at], 0.0)
