"""Small batches put together and ranked at once: an update of metrics costs half a millisecond, however small the batch."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from lightning_rank.metrics import RankingMetrics

# Items with their padding that are ranked at once; by more there is nothing left to gain.
MOST_ITEMS = 2**16
# How many times as many items a common width may make of those of the batches.
MOST_PADDING = 1.25


class _Batch(NamedTuple):
    preds: Tensor
    target: Tensor
    mask: Tensor | None
    offsets: Tensor | None
    indexes: Tensor | None
    number: int


class Gathered:
    """Updates metrics with several batches at a time; nothing waits for a device.

    Args:
        metrics: what is updated.

    Example:
        >>> metrics = RankingMetrics(["mrr"])
        >>> gathered = Gathered(metrics)
        >>> for number in range(3):
        ...     batch = {"preds": torch.tensor([[0.1, 0.2]]), "target": torch.tensor([[1, number % 2]])}
        ...     gathered.update(batch, number)
        >>> gathered.flush()
        >>> metrics.compute()["mrr"]
        tensor(0.6667)
    """

    def __init__(self, metrics: RankingMetrics) -> None:
        self.metrics = metrics
        self._batches: list[_Batch] = []
        self._kind: tuple[object, ...] | None = None
        self._queries = self._widest = self._items = 0  # of the batches

    def update(self, inputs: dict[str, Tensor], number: int) -> None:
        """Add a batch, the arguments of ``RankingMetrics.update``; it may be counted later.

        Raises:
            ValueError, TypeError: as ``RankingMetrics.update``, for this batch or one before; the message begins with its number.
        """
        kind = _kind(inputs)
        if kind is None:
            self.flush()
            _update(self.metrics, inputs, number)
            return
        if kind != self._kind or not self._has_room_for(inputs):
            self.flush()
        self._kind = kind
        self._queries, self._widest, self._items = self._with(inputs)
        held = {name: value.detach().clone() for name, value in inputs.items()}  # the step may use its tensors again
        self._batches.append(
            _Batch(held["preds"], held["target"], held.get("mask"), held.get("offsets"), held.get("indexes"), number)
        )

    def _with(self, inputs: dict[str, Tensor]) -> tuple[int, int, int]:
        """Queries, the longest list and items, with one more batch; flat items are a row each."""
        preds = inputs["preds"]
        width = preds.shape[1] if preds.ndim == 2 else 1
        return self._queries + len(preds), max(self._widest, width), self._items + preds.numel()

    def _has_room_for(self, inputs: dict[str, Tensor]) -> bool:
        queries, widest, items = self._with(inputs)
        return queries * widest <= min(MOST_ITEMS, MOST_PADDING * items)

    def flush(self) -> None:
        """Count what was added."""
        batches, self._batches, self._kind = self._batches, [], None
        widest, self._queries, self._widest, self._items = self._widest, 0, 0, 0
        if not batches:
            return
        try:
            self.metrics.update(**_joined(batches, widest))
        except (ValueError, TypeError):
            # Nothing was counted; one by one they tell which it is.
            for batch in batches:
                inputs = {name: value for name, value in batch._asdict().items() if isinstance(value, Tensor)}
                _update(self.metrics, inputs, batch.number)


def _update(metrics: RankingMetrics, inputs: dict[str, Tensor], number: int) -> None:
    try:
        metrics.update(**inputs)
    except (ValueError, TypeError) as error:
        raise type(error)(f"batch {number}: {error}") from error


def _kind(inputs: dict[str, Tensor]) -> tuple[object, ...] | None:
    """What batches must share to be put together; None: not to be, as it is large or of an unusual or wrong form."""
    if not inputs.keys() <= {"preds", "target", "mask", "offsets", "indexes"} or not all(
        isinstance(value, Tensor) for value in inputs.values()
    ):
        return None
    preds, target, mask, offsets = inputs["preds"], inputs["target"], inputs.get("mask"), inputs.get("offsets")
    indexes = inputs.get("indexes")
    if preds.shape != target.shape or not 0 < preds.numel() <= MOST_ITEMS // 2:
        return None
    if offsets is not None:
        fits = preds.ndim == 1 and offsets.ndim == 1 and mask is None and len(offsets) > 0
        queries, width = len(offsets) - 1, 0
    else:
        fits = preds.ndim == 2 and (mask is None or (mask.shape == preds.shape and mask.dtype == torch.bool))
        queries, width = len(preds), 0 if mask is not None else preds.shape[-1]
    if not fits or (indexes is not None and indexes.shape != (queries,)):
        return None
    return (width, *((name, value.dtype, value.device) for name, value in inputs.items()))


def _joined(batches: list[_Batch], widest: int) -> dict[str, Tensor]:
    first = batches[0]
    if first.offsets is not None:
        ends, items = [first.offsets], 0
        for before, batch in pairwise(batches):
            items += len(before.preds)
            ends.append(batch.offsets.narrow(0, 1, len(batch.offsets) - 1) + items)  # type: ignore[union-attr,arg-type]  # of one kind
        joined = {"preds": torch.cat([b.preds for b in batches]), "target": torch.cat([b.target for b in batches])}
        joined["offsets"] = torch.cat(ends)
    else:
        joined = {
            "preds": _padded([b.preds for b in batches], widest),
            "target": _padded([b.target for b in batches], widest),
        }
        if first.mask is not None:
            joined["mask"] = _padded([b.mask for b in batches], widest)  # type: ignore[misc]  # all are of one kind
    if first.indexes is not None:
        joined["indexes"] = torch.cat([b.indexes for b in batches])  # type: ignore[misc]  # all are of one kind
    return joined


def _padded(values: list[Tensor], width: int) -> Tensor:
    return torch.cat([v if v.shape[1] == width else pad(v, (0, width - v.shape[1])) for v in values])
