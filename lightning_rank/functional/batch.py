"""What a loss is computed from, and the few operations that losses share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_rank.conventions import Gain, gains_of
from lightning_rank.lists import Lists


@dataclass(frozen=True)
class Batch:
    """What a loss is computed from.

    Attributes:
        lists: the layout.
        score: scores of the items, float32 or float64.
        grade: grades >= 0 of the same dtype.
        weight: item weights of the same dtype, or None.
    """

    lists: Lists
    score: Tensor
    grade: Tensor
    weight: Tensor | None

    def gains(self, gain: Gain, *, scaled: bool) -> Tensor:
        """Weighted gains of the items, 0 in padding; ``scaled``: the exp2 gains of a query over 2^top grade."""
        top = self.lists.spread(self.lists.max(self.grade.detach()).clamp(min=0)) if scaled else None
        gains = gains_of(self.grade, gain, top) * self.lists.valid
        return gains if self.weight is None else gains * self.weight

    def log_softmax(self, values: Tensor) -> Tensor:
        """Logarithm of the softmax of an item value within each query."""
        lists = self.lists
        highest = lists.max(values.detach())
        shifted = values - lists.spread(torch.where(highest > -torch.inf, highest, 0.0))
        total = lists.sum(torch.where(lists.valid, shifted.exp(), 0.0))
        return shifted - lists.spread(torch.log(torch.where(total > 0, total, 1.0)))
