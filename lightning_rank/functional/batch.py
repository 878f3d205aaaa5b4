"""What a loss is computed from, and the few operations that losses share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_rank.conventions import Gain, gains_of
from lightning_rank.lists import Lists

METHODS = ("dense", "rows", "near_linear")
"""How sums over the pairs of items of a query are made: all laid out, row by row, or by sums of exponentials."""


@dataclass(frozen=True)
class Batch:
    """What a loss is computed from.

    Attributes:
        lists: the layout.
        score: scores of the items, float32 or float64; with a last axis for losses on several logits.
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
        if isinstance(gain, str):
            # Vectorised and scalar code may differ in the last bit of 2^x, and 0 decides about signal.
            gains = torch.where(self.grade > 0, gains, 0.0)
        return gains if self.weight is None else gains * self.weight

    def relevant(self) -> Tensor:
        """Queries with an item of positive grade and weight."""
        return self.lists.max(self.grade if self.weight is None else self.grade * (self.weight > 0)) > 0

    def has_pair(self) -> Tensor:
        """Queries with two items of different grades, the better of positive weight."""
        counts = self.grade if self.weight is None else self.grade.masked_fill(self.weight <= 0, -torch.inf)
        return self.lists.max(counts) > -self.lists.max(-self.grade)

    def log_softmax(self, values: Tensor) -> Tensor:
        """Logarithm of the softmax of an item value within each query."""
        lists = self.lists
        highest = lists.max(values.detach())
        shifted = values - lists.spread(torch.where(highest > -torch.inf, highest, 0.0))
        total = lists.sum(torch.where(lists.valid, shifted.exp(), 0.0))
        return shifted - lists.spread(torch.log(torch.where(total > 0, total, 1.0)))


def gumbel_noise(num_samples: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """``[sample, *like.shape]`` of standard Gumbel noise, finite: minus the logarithm of an exponential."""
    noise = torch.empty((num_samples, *like.shape), dtype=like.dtype, device=like.device)
    return noise.exponential_(generator=generator).log().neg()


def under_gumbel(
    function: Callable[..., tuple[Tensor, Tensor]],
    batch: Batch,
    *,
    gumbel_samples: int = 0,
    generator: torch.Generator | None = None,
    noise: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """A loss of the scores, or its mean over samples of the scores with Gumbel noise."""
    if noise is None:
        if not gumbel_samples:
            return function(batch, **options)
        noise = gumbel_noise(gumbel_samples, batch.score, generator)
    # Not by dataclasses.replace, which torch.compile of PyTorch 2.4 does not follow.
    noisy = [Batch(batch.lists, batch.score + sample, batch.grade, batch.weight) for sample in noise.unbind(0)]
    total, signal = function(noisy[0], **options)
    for other in noisy[1:]:
        total = total + function(other, **options)[0]
    return total / len(noise), signal
