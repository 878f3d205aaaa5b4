"""Losses that compare distributions over the items of a query, or over their orders."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_rank.conventions import Gain, sum_dtype, values_are_free
from lightning_rank.functional.batch import Batch
from lightning_rank.functional.levels import Levels, centred, with_gradient


def softmax(batch: Batch, *, gain: Gain = "linear") -> tuple[Tensor, Tensor]:
    """Cross-entropy between the gains and the softmax of the scores: - sum of gain * log softmax(score).

    Source: Bruch et al., "An analysis of the softmax cost function for learning to rank", ICTIR 2019.
    """
    gains = _finite_gains(batch, gain)
    return _cross_entropy(batch, gains), batch.lists.sum(gains) > 0


def listnet(batch: Batch) -> tuple[Tensor, Tensor]:
    """Cross-entropy between the softmax of the grades and the softmax of the scores (top-one probabilities).

    A constant added to the grades changes nothing; a factor does.

    Source: Cao et al., "Learning to rank: from pairwise approach to listwise approach", ICML 2007.
    """
    return _cross_entropy(batch, _weighted(batch, batch.log_softmax(batch.grade).exp())), batch.relevant()


def xendcg(batch: Batch, *, generator: torch.Generator | None = None, gamma: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Cross-entropy between shares proportional to 2^grade - gamma, gamma uniform on [0, 1), and the softmax of the scores.

    A convex bound of NDCG in expectation. The noise comes from ``generator``, or as ``gamma``, shaped like ``preds``.

    Source: Bruch, "An alternative cross entropy loss for learning-to-rank", WWW 2021.
    """
    lists, grade = batch.lists, batch.grade
    if gamma is None:
        gamma = torch.rand(grade.shape, generator=generator, dtype=grade.dtype, device=grade.device)
    top = lists.spread(lists.max(grade).clamp(min=0))
    wanted = (torch.exp2(grade - top) - gamma * torch.exp2(-top)) * lists.valid
    total = lists.sum(wanted)
    shares = wanted / lists.spread(torch.where(total > 0, total, 1.0))
    return _cross_entropy(batch, _weighted(batch, shares)), batch.relevant()


def unique_softmax(batch: Batch, *, gain: Gain = "exp2") -> tuple[Tensor, Tensor]:
    """Each item against those of lower grades only: sum of gain * log(1 + sum over lower grades of exp(other score - score)).

    Items of one grade do not compete. The gain is not normalised, so that large grades dominate a batch.

    Source: Zhu and Klabjan, "Listwise learning to rank by exploring unique ratings", WSDM 2020.
    """
    gains = _finite_gains(batch, gain)
    levels, score = Levels(batch), centred(batch)
    score, gains_placed = levels.take(score), levels.take(gains.to(score.dtype))
    below = levels.log_sum_below(score)
    total = torch.logaddexp(score, below)
    terms = torch.where(levels.valid, -gains_placed * torch.nn.functional.logsigmoid(score - below), 0.0)
    # An item loses by its own terms what it gains by those of all items above it.
    own = -gains_placed * torch.sigmoid(below - score)
    gradient = own + torch.exp(score + levels.log_sum_above(gains_placed.log() - total))
    return with_gradient(batch, terms, levels.put_back(gradient)), batch.lists.sum(gains) > 0


def listmle(batch: Batch, *, top_k: int | None = None) -> tuple[Tensor, Tensor]:
    """Minus the log likelihood of the order of the grades when items are picked one by one with probability exp(score).

    Items of one grade are picked in random order: a pick sees the expected sum of what is left to choose from (Efron, "The
    efficiency of Cox's likelihood function for censored data", JASA 1977), and their mean score. ``top_k``: the first picks.

    Source: Xia et al., "Listwise approach to learning to rank", ICML 2008; Lan et al., "Top-k consistency", NIPS 2009.
    """
    levels = Levels(batch)
    factor = torch.ones_like(levels.place, dtype=sum_dtype(batch.score.device))
    return _of_picks(batch, levels, factor, top_k), batch.has_pair()


def plistmle(batch: Batch, *, top_k: int | None = None, normalize: bool = True) -> tuple[Tensor, Tensor]:
    """ListMLE whose k-th of n picks has the weight 2^(n - k) - 1, so that the first ones matter most.

    With ``normalize`` the weights of a query sum to 1. Without, they overflow for long lists, which is refused where looking is
    free: from 104 items for float32 scores, from 1000 for float64.

    Source: Lan et al., "Position-aware ListMLE: a sequential learning process for ranking", UAI 2014.
    """
    levels, lists = Levels(batch), batch.lists
    dtype = sum_dtype(batch.score.device)
    # Over 2^n, which no length lets overflow.
    length, place = lists.lengths.to(dtype), levels.place.to(dtype)
    factor = torch.exp2(-1 - place) - levels.lists.spread(torch.exp2(-length))
    if normalize:
        picked = length if top_k is None else length.clamp(max=top_k)
        total = 1 - torch.exp2(-picked) - picked * torch.exp2(-length)
        scale = 1 / torch.where(total > 0, total, 1.0)
    else:
        scale = torch.exp2(length)
        # Room for what the weights are multiplied by.
        if values_are_free(scale) and (scale > torch.finfo(batch.score.dtype).max * 2.0**-24).any():
            raise ValueError(
                f"The weights of plistmle without `normalize` are 2^n: too large for a list of {int(length.max())} items. "
                "Leave `normalize` on."
            )
    return _of_picks(batch, levels, factor * levels.lists.spread(scale), top_k), batch.has_pair()


def _of_picks(batch: Batch, levels: Levels, factor: Tensor, top_k: int | None) -> Tensor:
    """Sum over the picks of factor * (log of the sum of what is left - score of the pick), in the order of the grades."""
    score = levels.take(centred(batch))
    picked = levels.valid if top_k is None else levels.valid & (levels.place < top_k)
    factor = torch.where(picked, factor, 0.0)
    size = levels.size.to(score.dtype)
    weight = torch.ones_like(score) if batch.weight is None else levels.take(batch.weight.to(score.dtype))
    mean_weight = levels.sum_of_group(weight) / size
    left_of_group = torch.log1p(-levels.taken / size)
    left = torch.logaddexp(levels.log_sum_below(score), left_of_group + levels.log_sum_of_group(score))
    terms = torch.where(picked, factor * (mean_weight * left - levels.sum_of_group(weight * score) / size), 0.0)
    # d left / d score = exp(score - left), for the items of the group only in part.
    log_share = (factor * mean_weight).log() - left
    competing = torch.logaddexp(levels.log_sum_of_group(log_share + left_of_group), levels.log_sum_above(log_share))
    gradient = torch.exp(score + competing) - levels.sum_of_group(factor) * weight / size
    return with_gradient(batch, terms, levels.put_back(gradient))


def _weighted(batch: Batch, shares: Tensor) -> Tensor:
    shares = shares * batch.lists.valid
    return shares if batch.weight is None else shares * batch.weight


def _cross_entropy(batch: Batch, shares: Tensor) -> Tensor:
    return -batch.lists.sum(torch.where(shares != 0, shares * batch.log_softmax(batch.score), 0.0))


def _finite_gains(batch: Batch, gain: Gain) -> Tensor:
    gains = batch.gains(gain, scaled=False)
    if values_are_free(gains) and gains.numel() and gains.max() == torch.inf:
        raise ValueError(
            f"The gain of grade {batch.grade.max().item():g} is too large for {gains.dtype}; take gain='linear', or pass "
            "float64 scores."
        )
    return gains
