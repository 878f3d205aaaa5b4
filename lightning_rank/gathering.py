"""Small batches put together and ranked at once: an update of metrics costs half a millisecond, however small the batch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from lightning_rank.conventions import values_are_free
from lightning_rank.functional.ranking import BLOCK
from lightning_rank.metrics import RankingMetrics

# Items with their padding that are held back: after so many, what the first batch costs beyond the others is nothing.
MOST_HELD = 2**20
# How many times as many items a common width may make of those of the batches that share it.
MOST_PADDING = 1.25

_JOINABLE = frozenset({"preds", "target", "mask", "offsets", "indexes"})


class _Batch(NamedTuple):
    inputs: dict[str, Tensor]
    kind: tuple[object, ...]  # what batches must share to be put together
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
        self._items = 0  # of the batches

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
        held = {name: value.detach().clone() for name, value in inputs.items()}  # the step may use its tensors again
        self._batches.append(_Batch(held, kind, number))
        self._items += inputs["preds"].numel()
        if self._items >= MOST_HELD:
            self.flush()

    def flush(self) -> None:
        """Count what was added."""
        batches, self._batches, self._items = self._batches, [], 0
        for together in _groups(batches):
            try:
                self.metrics.update(**_joined([batch.inputs for batch in together]))
            except (ValueError, TypeError):
                # Nothing of them was counted; one by one they tell which it is.
                for batch in together:
                    _update(self.metrics, batch.inputs, batch.number)


def _groups(batches: list[_Batch]) -> Iterator[list[_Batch]]:
    """Batches that follow one another, are of one kind, and make few items together."""
    group: list[_Batch] = []
    rows = widest = items = most = 0
    for batch in batches:
        preds = batch.inputs["preds"]
        new_rows, width = preds.shape if preds.ndim == 2 else (preds.shape[0], 1)
        together = (rows + new_rows) * max(widest, width)
        if group and (batch.kind != group[0].kind or together > min(most, MOST_PADDING * (items + new_rows * width))):
            yield group
            group, rows, widest, items = [], 0, 0, 0
        if not group:
            most = 2 * BLOCK - 1 if values_are_free(preds) else MOST_HELD  # more is parted into blocks
        group.append(batch)
        rows, widest, items = rows + new_rows, max(widest, width), items + new_rows * width
    if group:
        yield group


def _update(metrics: RankingMetrics, inputs: dict[str, Tensor], number: int) -> None:
    try:
        metrics.update(**inputs)
    except (ValueError, TypeError) as error:
        raise type(error)(f"batch {number}: {error}") from error


def _kind(inputs: dict[str, Tensor]) -> tuple[object, ...] | None:
    """What batches must share to be put together; None: not to be, as it is large or of an unusual or wrong form."""
    preds, target, mask = inputs["preds"], inputs["target"], inputs.get("mask")
    offsets, indexes = inputs.get("offsets"), inputs.get("indexes")
    kind: list[object] = []
    for name, value in inputs.items():
        if name not in _JOINABLE or not isinstance(value, Tensor):
            return None
        kind += name, value.dtype, value.device
    if preds.shape != target.shape or not 0 < preds.numel() <= BLOCK:
        return None
    if offsets is not None:
        fits = preds.ndim == 1 and offsets.ndim == 1 and mask is None and len(offsets) > 0
        queries, width = len(offsets) - 1, 0
    else:
        fits = preds.ndim == 2 and (mask is None or (mask.shape == preds.shape and mask.dtype == torch.bool))
        queries, width = len(preds), 0 if mask is not None else preds.shape[-1]
    if not fits or (indexes is not None and indexes.shape != (queries,)):
        return None
    return (width, *kind)


def _joined(batches: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    joined = {name: [batch[name] for batch in batches] for name in batches[0]}
    if "offsets" in joined:
        starts = accumulate((len(preds) for preds in joined["preds"]), initial=0)
        ends = (
            offsets.narrow(0, 1, len(offsets) - 1) + start
            for offsets, start in zip(joined["offsets"], starts, strict=False)
        )
        joined["offsets"] = [batches[0]["offsets"].narrow(0, 0, 1), *ends]
    elif len(batches) > 1:
        widest = max(preds.shape[1] for preds in joined["preds"])
        for name in joined.keys() - {"indexes"}:
            joined[name] = [v if v.shape[1] == widest else pad(v, (0, widest - v.shape[1])) for v in joined[name]]
    return {name: torch.cat(values) for name, values in joined.items()}
