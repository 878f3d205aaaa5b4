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

# What one item of the near-linear method costs, and any call of it, in pairs: measured on a CPU, forward and backward.
PAIRS_PER_ITEM, PAIRS_PER_CALL = 100, 1_000_000
# Pairs up to which all are kept for the gradient: on a CPU, where they should fit into its cache, and on a device.
DENSE, DENSE_ON_DEVICE = 1 << 20, 1 << 26
# Pairs that are laid out at a time where they are not kept.
CHUNK = 1 << 18


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
        wanted: bool like ``score``, the items whose rank is asked for; others may get any number > 0. None: all.
        counted: like ``score``, what each item counts in the second result; None: 1, where both results are the rank.
        method: ``"dense"`` keeps all pairs of a query: for short lists, and under transforms and compilation of padded ones.
            ``"rows"`` lays out the pairs of wanted items, a chunk at a time: O(wanted * items) time, O(items) memory.
            ``"near_linear"`` takes O(items log items) time and O(items) memory, and never pads flat lists. None: by size,
            without a wait on a device, where flat lists are near-linear. All give the same numbers and two derivatives.

    Returns:
        Two tensors like ``score``; their gradients are with respect to ``score`` alone.
    """
    if method is None:
        method = _method_for(lists, score, wanted)
    if method == "near_linear":
        return _near_linear(lists, score, counted, temperature)
    # Nothing ranks below padding. Infinite scores tie with each other, and beat or lose to all others; their gradient is 0.
    most = torch.finfo(score.dtype).max / 4
    padded = lists.pad((score / temperature).clamp(-most, most))
    if not isinstance(lists, PaddedLists):
        padded = padded.masked_fill(lists.pad(torch.ones_like(score)) == 0, -2 * most)
    elif lists.mask is not None:
        padded = padded.masked_fill(lists.mask.logical_not(), -2 * most)
    weight = None if counted is None else lists.pad(counted)
    if method == "rows":
        return _by_rows(lists, padded, weight, score, wanted)
    if torch.compiler.is_compiling() or _is_transformed(score):
        rank, found = _counts(_beats(padded), weight)
    else:
        rank, found = _Pairs.apply(padded, weight)
    rank = _unpad(lists, rank)
    return rank, rank if weight is None else _unpad(lists, found)


def _is_transformed(score: Tensor) -> bool:
    return torch._C._functorch.is_functorch_wrapped_tensor(score)


def _method_for(lists: Lists, score: Tensor, wanted: Tensor | None) -> str:
    padded = isinstance(lists, PaddedLists)
    if torch.compiler.is_compiling():
        return "dense" if padded else "near_linear"
    if score.numel() == 0 or _is_transformed(score):
        return "dense"
    if not values_are_free(score):
        return "dense" if padded and score.numel() * score.shape[-1] <= DENSE_ON_DEVICE else "near_linear"
    longest = score.shape[-1] if padded else int(lists.lengths.max())
    places = lists.num_queries * longest
    near_linear = score.numel() * PAIRS_PER_ITEM + PAIRS_PER_CALL
    if places > near_linear:  # flat lists of very different lengths
        return "near_linear"
    rows = places if wanted is None else int(torch.count_nonzero(wanted))
    # Picking rows costs a copy of them.
    if 3 * rows > places and places * longest <= min(DENSE, near_linear):
        return "dense"
    return "rows" if rows * longest <= near_linear else "near_linear"


def _unpad(lists: Lists, padded: Tensor) -> Tensor:
    """The inverse of ``lists.pad``."""
    if not isinstance(lists, JaggedLists):
        return padded
    return padded.flatten().index_select(0, _place(lists, padded.shape[1]))


def _place(lists: Lists, longest: int) -> Tensor:
    """Where each item lies in the flattened ``lists.pad``."""
    if isinstance(lists, JaggedLists):
        return lists.query * longest + lists.position
    return torch.arange(lists.num_queries * longest, device=lists.lengths.device)


# All pairs ------------------------------------------------------------------------------------------------------------


def _beats(padded: Tensor) -> Tensor:
    """``[query, j, i]``: how far item j beats item i. A sum over j is then a product from the left, which is the fast one."""
    return torch.sigmoid(padded.unsqueeze(2) - padded.unsqueeze(1))


def _counts(beats: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    # The item itself adds sigmoid(0) = 1/2 to its sum.
    rank = beats.sum(1) + 0.5
    return rank, rank if weight is None else (weight.unsqueeze(1) @ beats).squeeze(1) + weight / 2


class _Pairs(torch.autograd.Function):
    """Ranks of all items of ``[Q, L]`` scores, and counts with given weights."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        # In place: memory is what costs.
        beats = (padded.unsqueeze(2) - padded.unsqueeze(1)).sigmoid_()
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(padded, weight, beats)
        rank, found = _counts(beats, weight)
        return rank, rank.new_empty(0) if weight is None else found

    @staticmethod
    def backward(ctx: Any, up: Tensor, up_found: Tensor) -> tuple[Tensor | None, ...]:
        padded, weight, beats = ctx.saved_tensors
        if torch.is_grad_enabled():
            beats = _beats(padded)
        # A pair's slope is that of both its items.
        slope = torch.addcmul(beats, beats, beats, value=-1)
        if weight is None:
            return (up.unsqueeze(1) @ slope).squeeze(1) - up * slope.sum(1), None
        sides = torch.stack([up, torch.ones_like(up), up_found, weight], 1)
        of_up, of_one, of_up_found, of_weight = (sides @ slope).unbind(1)
        return of_up - up * of_one + weight * of_up_found - up_found * of_weight, None


# Rows -----------------------------------------------------------------------------------------------------------------


def _by_rows(
    lists: Lists, padded: Tensor, weight: Tensor | None, score: Tensor, wanted: Tensor | None
) -> tuple[Tensor, Tensor]:
    place = _place(lists, padded.shape[1])
    if wanted is None or not values_are_free(score):
        rank, found = (x.view_as(score) if x.numel() else x for x in _Rows.apply(padded, weight, place))
        return rank, rank if weight is None else found
    at = torch.nonzero(wanted.flatten()).squeeze(1)
    rank, found = _Rows.apply(padded, weight, place.index_select(0, at))
    ones = torch.ones_like(score).flatten()
    rank = ones.index_copy(0, at, rank).view_as(score)
    return rank, rank if weight is None else ones.index_copy(0, at, found).view_as(score)


class _Rows(torch.autograd.Function):
    """Ranks of some items of ``[Q, L]`` scores, and counts with given weights; the sigmoids are made again for the gradient."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, weight: Tensor | None, rows: Tensor) -> tuple[Tensor, Tensor]:
        ranks, counts = [padded.new_empty(0)], [padded.new_empty(0)]
        for at, own, query in _chunks_of_rows(padded, rows):
            beats = padded.index_select(0, query).sub_(own).sigmoid_()
            ranks.append(beats.sum(-1).add_(0.5))
            if weight is not None:
                itself = weight.flatten().index_select(0, rows.narrow(0, *at))
                counts.append(beats.mul_(weight.index_select(0, query)).sum(-1).add_(itself, alpha=0.5))
        ctx.save_for_backward(padded, weight, rows)
        return torch.cat(ranks), torch.cat(counts)

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
    if isinstance(lists, PaddedLists) and lists.mask is not None:
        # What a caller makes of the rank of padding must not be NaN, nor have a gradient.
        results = [torch.where(lists.mask, result, 1.0) for result in results]
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
        return torch.atleast_2d(gradient).flatten(0, -2).sum(0), None, None, None


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
        gradient = torch.atleast_2d(up * of_weight + weight * of_up).flatten(0, -2).sum(0)
        return gradient, (slope_above + slope_below).select(0, 1), None, None
