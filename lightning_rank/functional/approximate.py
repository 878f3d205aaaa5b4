"""Losses that are a metric with smooth ranks.

Ranks are those of ``soft_ranks``, in near-linear time and memory for long lists. A small temperature is closer to the metric and
has smaller gradients where scores lie far apart. Under ``top_k`` an item counts by sigmoid(top_k + 1/2 - rank), so that one below
the cutoff is still pulled in.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_rank.conventions import Gain, discount, sum_dtype
from lightning_rank.functional.batch import Batch
from lightning_rank.functional.soft_ranks import soft_ranks
from lightning_rank.lists import Lists


def approx_ndcg(
    batch: Batch, *, top_k: int | None = None, gain: Gain = "exp2", temperature: float = 1.0, method: str | None = None
) -> tuple[Tensor, Tensor]:
    """1 - NDCG with smooth ranks: 1 + the sum over the other items of sigmoid((their score - the item's) / temperature).

    A small temperature is closer to NDCG and has smaller gradients where scores lie far apart. Under ``top_k`` an item
    counts by sigmoid(top_k + 1/2 - rank), so that one below the cutoff is still pulled in; the value may then fall below 0.
    An item weight multiplies the gain, in the DCG and in the ideal one. O(items log items) time and O(items) memory.

    Source: Qin, Liu and Li, "A general approximation framework for direct optimization of information retrieval measures",
    Information Retrieval 2010; Bruch et al., "Revisiting approximate metric optimization in the age of deep neural networks",
    SIGIR 2019.
    """
    gains = batch.gains(gain, scaled=True)
    rank, _ = soft_ranks(batch.lists, batch.score, temperature=temperature, method=method, wanted=gains != 0)
    best = _ideal_dcg(batch.lists, gains, top_k)
    signal = best > 0
    value = _total(batch.lists, gains * discount(rank) * _soft_cut(batch.lists, rank, top_k))
    return (1 - value / torch.where(signal, best, 1.0)).to(gains.dtype), signal


def approx_mrr(
    batch: Batch, *, top_k: int | None = None, temperature: float = 1.0, min_relevance: float = 1, method: str | None = None
) -> tuple[Tensor, Tensor]:
    """1 - the largest reciprocal of the smooth ranks of the relevant items; as the temperature falls, 1 - reciprocal rank.

    Under ``top_k`` an item counts by sigmoid(top_k + 1/2 - rank). An item weight multiplies the reciprocal of the item's rank, and
    the value is divided by the largest weight of a relevant item. O(items log items) time and O(items) memory.

    Source: Qin, Liu and Li, "A general approximation framework for direct optimization of information retrieval measures",
    Information Retrieval 2010.
    """
    lists, weight = batch.lists, _relevant_weight(batch, min_relevance)
    rank, _ = soft_ranks(lists, batch.score, temperature=temperature, method=method, wanted=weight > 0)
    best = lists.max(weight).clamp(min=0)
    signal = best > 0
    values = weight * _soft_cut(lists, rank, top_k) / rank
    largest = lists.sum(values * shares_of_largest(lists, values, weight > 0))
    return 1 - largest / torch.where(signal, best, 1.0), signal


def approx_map(
    batch: Batch, *, top_k: int | None = None, temperature: float = 1.0, min_relevance: float = 1, method: str | None = None
) -> tuple[Tensor, Tensor]:
    """1 - average precision with smooth ranks, and a smooth number of relevant items down to each.

    Under ``top_k`` an item counts by sigmoid(top_k + 1/2 - rank), and min(relevant items, top_k) is divided by. An item weight
    multiplies the precision at the item, and the largest weights that fit are divided by. O(items log items) time and O(items)
    memory.

    Source: Qin, Liu and Li, "A general approximation framework for direct optimization of information retrieval measures",
    Information Retrieval 2010.
    """
    lists, weight = batch.lists, _relevant_weight(batch, min_relevance)
    relevant = _relevant(batch, min_relevance)
    rank, found = soft_ranks(
        lists, batch.score, temperature=temperature, method=method, wanted=relevant > 0, counted=relevant
    )
    best = _sum_of_largest(lists, weight, top_k)
    signal = best > 0
    value = _total(lists, weight * _soft_cut(lists, rank, top_k) * found / rank)
    return (1 - value / torch.where(signal, best, 1.0)).to(weight.dtype), signal


def shares_of_largest(lists: Lists, values: Tensor, counted: Tensor) -> Tensor:
    """1 at the largest value > 0 of the counted items of each query; equal ones share, so that their gradients are equal."""
    values = values.detach()
    # Smooth ranks of tied items are equal but for rounding.
    nearly = 1 - 64 * torch.finfo(values.dtype).eps
    first = ((values >= lists.spread(lists.max(values)) * nearly) & counted).to(values.dtype)
    return first / lists.spread(lists.sum(first).clamp(min=1))


def _relevant(batch: Batch, min_relevance: float) -> Tensor:
    """1.0 for relevant items."""
    return ((batch.grade >= min_relevance) & batch.lists.valid).to(batch.score.dtype)


def _relevant_weight(batch: Batch, min_relevance: float) -> Tensor:
    """The weight of relevant items, 0 for others."""
    relevant = _relevant(batch, min_relevance)
    return relevant if batch.weight is None else relevant * batch.weight


def _total(lists: Lists, values: Tensor) -> Tensor:
    """Sum over each query in float64: a million terms in float32 would lose half the digits."""
    return lists.sum(values.to(sum_dtype(values.device)))


def _soft_cut(lists: Lists, rank: Tensor, top_k: int | None) -> Tensor | float:
    """How far within the cutoff each item stands; 1 where all of its query are."""
    if top_k is None:
        return 1.0
    return torch.where(lists.spread(lists.lengths) <= top_k, 1.0, torch.sigmoid(top_k + 0.5 - rank))


def _ideal_dcg(lists: Lists, gains: Tensor, top_k: int | None) -> Tensor:
    """``[Q]`` DCG of the gains in descending order."""
    position = lists.sorted().position
    discounted = lists.descending(gains) * discount((position + 1).to(gains.dtype))
    return _total(lists, discounted if top_k is None else discounted * (position < top_k))


def _sum_of_largest(lists: Lists, weight: Tensor, top_k: int | None) -> Tensor:
    """``[Q]`` sum of the largest ``top_k`` weights."""
    if top_k is None:
        return _total(lists, weight)
    return _total(lists, lists.descending(weight) * (lists.sorted().position < top_k))
