"""Losses that compare the items of a query two by two."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lightning_rank.conventions import Gain
from lightning_rank.functional.batch import Batch
from lightning_rank.functional.pair_sums import near_linear
from lightning_rank.functional.pairs import Kernel, Known, PairWeight, by_rows, dense, padded, ranked, rows_of

METHODS = ("dense", "rows", "near_linear")


def ranknet(
    batch: Batch,
    *,
    top_k: int | None = None,
    sigma: float = 1.0,
    normalize_pairs: bool = False,
    method: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum over the pairs of items of different grades of log(1 + exp(-sigma * (better score - worse score))).

    Source: Burges et al., "Learning to rank using gradient descent", ICML 2005.
    """
    return _loss(batch, PairWeight("count", top_k), Kernel(slope=sigma), None, normalize_pairs, method)


def lambdarank(
    batch: Batch,
    *,
    top_k: int | None = None,
    gain: Gain = "exp2",
    sigma: float = 1.0,
    normalize_pairs: bool = False,
    method: str | None = None,
) -> tuple[Tensor, Tensor]:
    """RankNet whose pairs weigh by how much NDCG changes when they are swapped.

    Source: Burges, Ragno and Le, "Learning to rank with nonsmooth cost functions", NIPS 2006.
    """
    return _loss(batch, PairWeight("drop", top_k), Kernel(slope=sigma), gain, normalize_pairs, method)


def lambda_(
    batch: Batch,
    *,
    top_k: int | None = None,
    gain: Gain = "exp2",
    scheme: str = "ndcg_loss2pp",
    mu: float = 10.0,
    sigma: float = 1.0,
    normalize_pairs: bool = False,
    method: str | None = None,
) -> tuple[Tensor, Tensor]:
    """The LambdaLoss framework.

    Source: Wang et al., "The LambdaLoss framework for ranking metric optimization", CIKM 2018.
    """
    weight = {
        "ndcg_loss1": PairWeight("own", top_k, every=True),
        "ndcg_loss2": PairWeight("delta", top_k),
        "ndcg_loss2pp": PairWeight("both", top_k, mu=mu),
    }[scheme]
    return _loss(batch, weight, Kernel(slope=sigma), gain, normalize_pairs, method)


def pairwise_hinge(
    batch: Batch,
    *,
    top_k: int | None = None,
    margin: float = 1.0,
    normalize_pairs: bool = False,
    method: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum over the pairs of items of different grades of max(0, margin - (better score - worse score)).

    Source: Joachims, "Optimizing search engines using clickthrough data", KDD 2002.
    """
    return _loss(batch, PairWeight("count", top_k), Kernel(margin=margin), None, normalize_pairs, method)


def _loss(
    batch: Batch, weight: PairWeight, kernel: Kernel, gain: Gain | None, normalize_pairs: bool, method: str | None
) -> tuple[Tensor, Tensor]:
    if weight.every:
        assert gain is not None
        signal = (batch.lists.max(batch.gains(gain, scaled=True)) > 0) & (batch.lists.lengths > 1)
    else:
        signal = batch.has_pair()
    method = method or _fastest(batch, weight)
    if method in ("dense", "rows"):
        batch = padded(batch)
    value = _sum(batch, weight, kernel, gain, method)
    if normalize_pairs:
        with torch.no_grad():
            number = _num_pairs(batch, weight, method)
        value = value / torch.where(number > 0, number, 1.0).to(value.dtype)
    return value, signal


def _num_pairs(batch: Batch, weight: PairWeight, method: str) -> Tensor:
    """``[query]``, the expected number of pairs that count."""
    unweighted = replace(batch, score=batch.score.detach(), weight=None)
    return _sum(unweighted, PairWeight("count", weight.top_k, every=weight.every), Kernel(constant=True), None, method)


def _sum(batch: Batch, weight: PairWeight, kernel: Kernel, gain: Gain | None, method: str) -> Tensor:
    """``[query]``, the sum over its pairs."""
    if method == "near_linear" and weight.kind == "both":
        drop, delta = PairWeight("drop", weight.top_k), PairWeight("delta", weight.top_k)
        return _sum(batch, drop, kernel, gain, method) + weight.mu * _sum(batch, delta, kernel, gain, method)
    lists, items = ranked(batch, weight, gain)
    if method == "dense":
        return dense(weight, kernel, items)
    with torch.no_grad():
        fixed = items.map(Tensor.detach)
        if method == "rows":
            value, gradient = by_rows(weight, kernel, fixed, *rows_of(weight, fixed))
        else:
            value, gradient = near_linear(weight, kernel, fixed, lists)
        dtype = items.score.dtype
    return Known.apply(items.score, value.to(dtype), gradient.to(dtype), lists)  # type: ignore[no-untyped-call]


def _fastest(batch: Batch, weight: PairWeight) -> str:
    return "dense"
