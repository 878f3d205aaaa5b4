"""Smooth ranks: 1 + the sum over the other items of a query of sigmoid((their score - the item's) / temperature).

Source: Qin, Liu and Li, "A general approximation framework for direct optimization of information retrieval measures",
Information Retrieval 2010.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lightning_rank.conventions import sum_dtype, values_are_free
from lightning_rank.functional.logistic_sums import LogisticSums, terms_for
from lightning_rank.lists import JaggedLists, Lists, PaddedLists

METHODS = ("dense", "rows", "near_linear")

# Pairs that are worth one item of the near-linear method, and those that it costs in any case: measured, forward and backward.
PAIRS_PER_ITEM, PAIRS_PER_CALL = 100, 1_000_000
# Pairs that are laid out at a time.
CHUNK = 1 << 18
# On a device, and under transforms, where the items that are wanted cannot be counted: lists up to here are laid out as pairs.
SHORT = 512


def soft_ranks(
    lists: Lists,
    score: Tensor,
    *,
    temperature: float = 1.0,
    wanted: Tensor | None = None,
    counted: Tensor | None = None,
    method: str | None = None,
) -> tuple[Tensor, Tensor]:
    """The smooth rank of each item, and the smooth number of counted items down to it, the item itself included.

    Args:
        lists: the layout.
        score: scores, float32 or float64, laid out so.
        temperature: the smaller, the closer to the rank.
        wanted: bool like ``score``, the items whose rank is asked for; others may get any number >= 0. None: all.
        counted: like ``score``, what each item counts in the second result; None: 1, where both results are the rank.
        method: ``"dense"`` lays out all pairs of a query and may be differentiated any number of times, transformed and
            compiled; ``"rows"`` lays out the pairs of wanted items, a chunk at a time: O(wanted * items) time; in
            ``"near_linear"`` O(items log items) time and O(items) memory, flat lists are never padded. None: by size, which
            takes no look at a value on a device: flat lists are near-linear there, padded ones if longer than ``SHORT``.
            All give the same numbers, and all but ``"dense"`` two derivatives.

    Returns:
        Two tensors like ``score``; their gradients are with respect to ``score`` alone.
    """
    # Infinite scores tie with each other, and beat or lose to all others; their gradient is 0.
    most = torch.finfo(score.dtype).max / 4
    score = score.clamp(-most, most)
    if method is None:
        method = _method_for(lists, score, wanted)
    if method == "dense":
        return _dense(lists, score, counted, temperature)
    if method == "rows":
        return _by_rows(lists, score, wanted, counted, temperature)
    return _near_linear(lists, score, counted, temperature)


def _method_for(lists: Lists, score: Tensor, wanted: Tensor | None) -> str:
    padded = isinstance(lists, PaddedLists)
    if torch.compiler.is_compiling():
        return "dense" if padded else "near_linear"
    if score.numel() == 0 or torch._C._functorch.is_functorch_wrapped_tensor(score):
        return "dense"
    if not values_are_free(score):
        return "rows" if padded and score.shape[-1] <= SHORT else "near_linear"
    longest = int(lists.lengths.max())
    rows = score.numel() if wanted is None else int(wanted.sum())
    near_linear = score.numel() * PAIRS_PER_ITEM + PAIRS_PER_CALL
    # Laying out the rows of flat lists pads the lists.
    return "rows" if rows * longest + lists.num_queries * longest <= near_linear else "near_linear"


def _beyond(lists: Lists, score: Tensor) -> Tensor:
    """``[Q, longest]`` scores, -inf where no item is: nothing ranks below it, and its sigmoid has no slope."""
    padded = lists.pad(score)
    if isinstance(lists, PaddedLists) and lists.mask is None:
        return padded
    return padded.masked_fill(lists.pad(torch.ones_like(score) * lists.valid) == 0, -torch.inf)


def _dense(lists: Lists, score: Tensor, counted: Tensor | None, temperature: float) -> tuple[Tensor, Tensor]:
    padded = lists.pad(score) / temperature
    item = lists.pad(torch.ones_like(score) * lists.valid)
    beats = torch.sigmoid(padded.unsqueeze(1) - padded.unsqueeze(2))
    # The item itself adds sigmoid(0) = 1/2 to its sum.
    rank = _unpad(lists, (beats * item.unsqueeze(1)).sum(-1)) + 0.5
    if counted is None:
        return rank, rank
    found = (beats * lists.pad(counted).unsqueeze(1)).sum(-1)
    return rank, _unpad(lists, found) + counted / 2


def _unpad(lists: Lists, padded: Tensor) -> Tensor:
    """The inverse of ``lists.pad``."""
    if not isinstance(lists, JaggedLists):
        return padded
    return padded.flatten().index_select(0, lists.query * padded.shape[1] + lists.position)


# Rows -----------------------------------------------------------------------------------------------------------------


def _by_rows(
    lists: Lists, score: Tensor, wanted: Tensor | None, counted: Tensor | None, temperature: float
) -> tuple[Tensor, Tensor]:
    padded = _beyond(lists, score) / temperature
    weight = None if counted is None else lists.pad(counted)
    if wanted is not None and values_are_free(score):
        rows = _unpadded_index(lists, padded.shape[1]).masked_select(wanted)
        rank, found = _Rows.apply(padded, weight, rows)
        at = torch.nonzero(wanted.flatten()).squeeze(1)
        ones = torch.ones_like(score).flatten()
        rank = ones.index_copy(0, at, rank).view_as(score)
        found = rank if weight is None else ones.index_copy(0, at, found).view_as(score)
        return rank, found
    rows = torch.arange(padded.numel(), device=score.device)
    rank, found = (_unpad(lists, x.view_as(padded)) for x in _Rows.apply(padded, weight, rows))
    return rank, rank if weight is None else found


def _unpadded_index(lists: Lists, longest: int) -> Tensor:
    """Where each item lies in the flattened ``lists.pad``."""
    if isinstance(lists, JaggedLists):
        return lists.query * longest + lists.position
    return torch.arange(lists.num_queries * longest, device=lists.lengths.device).view(lists.num_queries, longest)


class _Rows(torch.autograd.Function):
    """Ranks of some items of ``[Q, L]`` scores, and counts with given weights; the sigmoids are made again for the gradient."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, weight: Tensor | None, rows: Tensor) -> tuple[Tensor, Tensor]:
        rank = torch.empty_like(rows, dtype=padded.dtype)
        found = rank if weight is None else torch.empty_like(rank)
        for at, own, query in _chunks_of_rows(padded, rows):
            beats = padded.index_select(0, query).sub_(own).sigmoid_()
            rank.narrow(0, *at).copy_(beats.sum(-1)).add_(0.5)
            if weight is not None:
                part = (beats * weight.index_select(0, query)).sum(-1)
                itself = weight.flatten().index_select(0, rows.narrow(0, *at))
                found.narrow(0, *at).copy_(part).add_(itself, alpha=0.5)
        ctx.save_for_backward(padded, weight, rows)
        if weight is None:
            return rank, rank.new_empty(0)
        return rank, found

    @staticmethod
    def backward(ctx: Any, up: Tensor, up_found: Tensor) -> tuple[Tensor | None, ...]:
        padded, weight, rows = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _slopes(padded, weight, rows, up, up_found), None, None
        gradient = torch.zeros_like(padded)
        flat = gradient.view(-1)
        for at, own, query in _chunks_of_rows(padded, rows):
            beats = padded.index_select(0, query).sub_(own).sigmoid_()
            pull = torch.addcmul(beats, beats, beats, value=-1)
            if weight is None:
                pull.mul_(up.narrow(0, *at).unsqueeze(1))
            else:
                pull.mul_(_pull_of(weight.index_select(0, query), up, up_found, at))
            flat.index_add_(0, rows.narrow(0, *at), pull.sum(-1), alpha=-1)
            gradient.index_add_(0, query, pull)
        return gradient, None, None


def _pull_of(weight: Tensor, up: Tensor, up_found: Tensor, at: tuple[int, int]) -> Tensor:
    return torch.addcmul(up.narrow(0, *at).unsqueeze(1), weight, up_found.narrow(0, *at).unsqueeze(1))


def _slopes(padded: Tensor, weight: Tensor | None, rows: Tensor, up: Tensor, up_found: Tensor) -> Tensor:
    """The gradient once more, in operations that can be differentiated."""
    query, own = rows // padded.shape[1], padded.flatten().index_select(0, rows).unsqueeze(1)
    beats = torch.sigmoid(padded.index_select(0, query) - own)
    pull = beats * (1 - beats) * up.unsqueeze(1)
    if weight is not None:
        pull = beats * (1 - beats) * (up.unsqueeze(1) + weight.index_select(0, query) * up_found.unsqueeze(1))
    gradient = torch.zeros_like(padded).index_add(0, query, pull)
    return gradient.flatten().index_add(0, rows, -pull.sum(-1)).view_as(padded)


def _chunks_of_rows(padded: Tensor, rows: Tensor) -> list[tuple[tuple[int, int], Tensor, Tensor]]:
    """Place and size of each chunk of rows, the scores of its items, ``[rows, 1]``, and their queries."""
    query = rows // max(1, padded.shape[1])
    own = padded.flatten().index_select(0, rows).unsqueeze(1)
    size = max(1, CHUNK // max(1, padded.shape[1]))
    if padded.device.type != "cpu":
        size *= 64
    chunks = [(start, min(size, rows.numel() - start)) for start in range(0, rows.numel(), size)]
    return [(at, own.narrow(0, *at), query.narrow(0, *at)) for at in chunks]


# Near-linear ----------------------------------------------------------------------------------------------------------


def _near_linear(lists: Lists, score: Tensor, counted: Tensor | None, temperature: float) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        order, _ = lists.order(score)
    ranked_lists, exact = lists.sorted(), sum_dtype(score.device)
    weight = (torch.ones_like(score) * lists.valid).gather(-1, order).to(exact)
    # What stands above adds 1 - sigmoid(-distance); an item counts itself.
    down_to = [ranked_lists.cumsum(weight)]
    if counted is not None:
        counted = counted.gather(-1, order).to(exact)
        down_to.append(ranked_lists.cumsum(counted))
        weight = torch.stack([weight, counted])
    first = (ranked_lists.position == 0).expand(score.shape).flatten()
    x = score.gather(-1, order).flatten().to(exact) / temperature
    sums = _Beaten.apply(x, weight.flatten(-score.ndim), first, terms_for(score.dtype)).view_as(weight)
    parts = [sums] if counted is None else sums.unbind(0)
    results = [
        torch.zeros_like(score).scatter(-1, order, (part + count).to(score.dtype))
        for part, count in zip(parts, down_to, strict=True)
    ]
    return results[0], results[-1]


class _Beaten(torch.autograd.Function):
    """Sum over the other items j of weight_j * sigmoid(x_j - x_i), less the weight above; ``[N]`` x, ``[..., N]`` weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, first: Tensor, terms: int) -> Tensor:
        sums, ctx.terms = LogisticSums(x, first, terms=terms), terms
        if not ctx.needs_input_grad[0]:
            ((above, below),) = sums(weight, "sigmoid")
            return below - above
        (above, below), (slope_above, slope_below) = sums(weight, "sigmoid", "slope")
        ctx.save_for_backward(x, weight, first, slope_above + slope_below)
        return below - above

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, first, slopes = ctx.saved_tensors
        if torch.is_grad_enabled():
            slopes = _Slopes.apply(x, weight, first, ctx.terms)
        gradient = weight * _Slopes.apply(x, up, first, ctx.terms) - up * slopes
        return gradient.reshape(-1, x.numel()).sum(0), None, None, None


class _Slopes(torch.autograd.Function):
    """Sum over the other items j of weight_j * sigmoid'(x_j - x_i)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, first: Tensor, terms: int) -> Tensor:
        ctx.terms = terms
        ctx.save_for_backward(x, weight, first)
        ((above, below),) = LogisticSums(x, first, terms=terms)(weight, "slope")
        return above + below

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, first = ctx.saved_tensors
        sums = LogisticSums(x, first, terms=ctx.terms)
        # The slope falls with the distance: as an item rises, it grows for what is above and falls for what is below.
        (above, below), (slope_above, slope_below) = sums(torch.stack([weight, up]), "curvature", "slope")
        of_weight, of_up = (above - below).unbind(0)
        gradient = (up * of_weight + weight * of_up).reshape(-1, x.numel()).sum(0)
        return gradient, (slope_above + slope_below).select(0, 1), None, None
