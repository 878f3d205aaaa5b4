"""Losses that compare the items of a query two by two.

A pair is two items of different grades; it counts where its upper item, by score, is within ``top_k``, so that a relevant
item below the cutoff is still lifted. Ranks are those of the scores, as constants; where scores are tied, what depends on a
rank is the exact mean over all orders of the tied items. An item weight multiplies the pairs in which the item is the
better one.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lightning_rank.conventions import Gain, values_are_free
from lightning_rank.functional.batch import Batch
from lightning_rank.functional.levels import WithGradient
from lightning_rank.functional.pair_sums import near_linear
from lightning_rank.functional.pairs import Kernel, PairWeight, by_rows, dense, padded, ranked, rows_of
from lightning_rank.lists import PaddedLists

# Pairs by rows that are worth one item of the near-linear method, and those that it costs in any case: measured.
PAIRS_PER_ITEM = {"count": 120, "drop": 270, "own": 200, "delta": 1500, "both": 1500}
PAIRS_PER_CALL = 500_000
# Up to here all pairs are laid out at once; where they are no more than a few, the gradient may be differentiated again.
VERY_FEW_PAIRS, FEW_PAIRS = 1 << 15, 1 << 20
# On a device, and under transforms: the same by the length of a list.
SHORT = 512
# Lists of float64 up to this length have their pairs of LambdaLoss summed one by one.
LONG = 10_000


def ranknet(
    batch: Batch,
    *,
    top_k: int | None = None,
    sigma: float = 1.0,
    normalize_pairs: bool = False,
    method: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum over the pairs of items of different grades of log(1 + exp(-sigma * (better score - worse score))).

    ``top_k`` keeps the pairs whose upper item, by score, is within the cutoff; ``normalize_pairs`` divides by the number of
    pairs kept. Long lists take O(items log items) time and O(items) memory, short ones all pairs; only the latter may be
    differentiated twice.

    Source: Burges et al., "Learning to rank using gradient descent", ICML 2005.
    """
    return pair_loss(batch, PairWeight("count", top_k), Kernel(slope=sigma), normalize_pairs=normalize_pairs, method=method)


def lambdarank(
    batch: Batch,
    *,
    top_k: int | None = None,
    gain: Gain = "exp2",
    sigma: float = 1.0,
    normalize_pairs: bool = False,
    method: str | None = None,
) -> tuple[Tensor, Tensor]:
    """RankNet whose pairs weigh what swapping them would change in NDCG: difference of gains times difference of discounts.

    The weights are constants; tied scores have the exact mean over their orders. ``top_k`` keeps the pairs whose upper
    item, by score, is within the cutoff, and normalises by the ideal DCG there; ``normalize_pairs`` divides by the number
    of pairs kept. Long lists take O(items log items) time and O(items) memory, short ones all pairs; only the latter may be
    differentiated twice.

    Source: Burges, Ragno and Le, "Learning to rank with nonsmooth cost functions", NIPS 2006.
    """
    return pair_loss(
        batch, PairWeight("drop", top_k), Kernel(slope=sigma), gain, normalize_pairs=normalize_pairs, method=method
    )


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
    """LambdaLoss: RankNet with weights by which it bounds a ranking metric; the scheme says which.

    With G the gain over the ideal DCG, D(r) = 1 / log2(1 + r) and a pair of ranks a apart, ``"ndcg_loss2"`` weighs it by
    the difference of gains times D(a) - D(a + 1), ``"ndcg_loss2pp"`` adds ``mu`` times that to the weight of LambdaRank,
    and ``"ndcg_loss1"`` sums over all ordered pairs, whatever their grades, with G D of the first item. ``top_k`` and
    ``normalize_pairs`` as in LambdaRank. Long lists take near-linear time, where D(a) - D(a + 1) is right within 5e-6 (in
    float64 from 10,000 items on, below that it is exact); short ones all pairs; only the latter may be differentiated
    twice.

    Source: Wang et al., "The LambdaLoss framework for ranking metric optimization", CIKM 2018.
    """
    weight = {
        "ndcg_loss1": PairWeight("own", top_k, every=True),
        "ndcg_loss2": PairWeight("delta", top_k),
        "ndcg_loss2pp": PairWeight("both", top_k, mu=mu),
    }[scheme]
    return pair_loss(batch, weight, Kernel(slope=sigma), gain, normalize_pairs=normalize_pairs, method=method)


def pairwise_hinge(
    batch: Batch,
    *,
    top_k: int | None = None,
    margin: float = 1.0,
    normalize_pairs: bool = False,
    method: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum over the pairs of items of different grades of max(0, margin - (better score - worse score)).

    ``top_k`` keeps the pairs whose upper item, by score, is within the cutoff; ``normalize_pairs`` divides by the number of
    pairs kept. Long lists take O(items log items) time and O(items) memory.

    Source: Joachims, "Optimizing search engines using clickthrough data", KDD 2002.
    """
    return pair_loss(
        batch, PairWeight("count", top_k), Kernel(margin=margin), normalize_pairs=normalize_pairs, method=method
    )


def pair_loss(
    batch: Batch,
    weight: PairWeight,
    kernel: Kernel,
    gain: Gain | None = None,
    *,
    normalize_pairs: bool = False,
    method: str | None = None,
) -> tuple[Tensor, Tensor]:
    """The weighted sum over the pairs of each query, ``[query]``, and its signal.

    Args:
        weight, kernel: of a pair.
        gain: of items, where the weight has gains.
        normalize_pairs: divide by the number of pairs that count.
        method: ``"dense"`` lays out all pairs of a query and may be differentiated any number of times, transformed and
            compiled; ``"rows"`` lays out the pairs of the better items, or of those within the cutoff, a piece at a time:
            O(rows * items) time; ``"near_linear"`` takes O(items log items) time. The last two take O(items) memory and
            have one derivative. None: by size. All give the same numbers.
    """
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
    counted = PairWeight("count", weight.top_k, every=weight.every)
    return _sum(unweighted, counted, Kernel(constant=True), None, method)


def _sum(batch: Batch, weight: PairWeight, kernel: Kernel, gain: Gain | None, method: str) -> Tensor:
    """``[query]``, the sum over its pairs."""
    if method == "near_linear" and weight.kind == "both":
        drop, delta = PairWeight("drop", weight.top_k), PairWeight("delta", weight.top_k)
        return _sum(batch, drop, kernel, gain, method) + weight.mu * _sum(batch, delta, kernel, gain, method)
    lists, items = ranked(batch, weight, gain, in_order=method == "near_linear")
    if method == "dense":
        return dense(weight, kernel, items)
    again = None
    with torch.no_grad():
        fixed = items.map(Tensor.detach)
        if method == "rows":
            terms, gradient = by_rows(weight, kernel, fixed, *rows_of(weight, fixed))
            if terms.numel() * terms.shape[-1] <= FEW_PAIRS:

                def again(score: Tensor) -> Tensor:
                    return dense(
                        weight,
                        kernel,
                        replace(fixed.map(lambda x: x.to(score.dtype) if x.is_floating_point() else x), score=score),
                    )
        else:
            terms, gradient = near_linear(weight, kernel, fixed, lists)
    value = lists.sum(WithGradient.apply(items.score.to(terms.dtype), terms, gradient, again))
    return value.to(items.score.dtype)


def _fastest(batch: Batch, weight: PairWeight) -> str:
    """The method by size; on a device this takes no look at a value."""
    lists, score = batch.lists, batch.score
    is_padded = isinstance(lists, PaddedLists)
    if not values_are_free(score):
        transformed = torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(score)
        return "dense" if is_padded and (transformed or score.shape[-1] <= SHORT) else "near_linear"
    if score.numel() == 0:
        return "dense"
    longest = score.shape[-1] if is_padded else int(lists.lengths.max())
    room = lists.num_queries * longest
    if room * longest <= VERY_FEW_PAIRS:
        return "dense"
    lowest = -lists.max(-batch.grade)
    rows = score.numel() if weight.every else int(((batch.grade > lists.spread(lowest)) & lists.valid).sum())
    if weight.top_k is not None:
        rows = min(rows, lists.num_queries * weight.top_k)
    if rows * longest + room <= score.numel() * PAIRS_PER_ITEM[weight.kind] + PAIRS_PER_CALL:
        return "rows"
    # The steps of the discount are exact within 4e-6 only.
    exact = weight.kind in ("delta", "both") and score.dtype == torch.float64
    return "rows" if exact and longest <= LONG else "near_linear"
