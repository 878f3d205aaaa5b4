"""Losses that are a metric with smooth ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_rank.conventions import Gain, discount
from lightning_rank.functional.batch import Batch


def approx_ndcg(
    batch: Batch, *, top_k: int | None = None, gain: Gain = "exp2", temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """1 - NDCG with smooth ranks: 1 + the sum over the other items of sigmoid((their score - the item's) / temperature).

    A small temperature is closer to NDCG and has smaller gradients where scores lie far apart. Under ``top_k`` an item
    counts by sigmoid(top_k + 1/2 - rank), so that one below the cutoff is still pulled in; the value may then fall below 0.
    All pairs of a query are laid out: O(items^2) memory; on a device, flat lists cost one wait, for the longest one.

    Source: Qin, Liu and Li, "A general approximation framework for direct optimization of information retrieval measures",
    Information Retrieval 2010; Bruch et al., "Revisiting approximate metric optimization in the age of deep neural networks",
    SIGIR 2019.
    """
    lists = batch.lists
    score, gains = lists.pad(batch.score), lists.pad(batch.gains(gain, scaled=True))
    item = lists.pad(torch.ones_like(batch.score) * lists.valid)
    beats = torch.sigmoid((score.unsqueeze(1) - score.unsqueeze(2)) / temperature)
    # The item itself adds sigmoid(0) = 1/2 to its sum.
    soft_rank = (beats * item.unsqueeze(1)).sum(-1) + 0.5
    discounted = gains * discount(soft_rank)
    ideal = torch.sort(gains, dim=-1, descending=True).values
    ideal = ideal * discount(torch.arange(1, gains.shape[-1] + 1, device=gains.device, dtype=gains.dtype))
    if top_k is not None:
        cut = torch.sigmoid(top_k + 0.5 - soft_rank)
        discounted = discounted * torch.where(lists.lengths.unsqueeze(1) <= top_k, 1.0, cut)
        ideal = ideal.narrow(1, 0, min(top_k, ideal.shape[1]))
    best = ideal.sum(-1)
    signal = best > 0
    value = 1 - discounted.sum(-1) / torch.where(signal, best, 1.0)
    return value, signal
