"""What a pair of items weighs by its ranks, as an exact expectation where scores are tied; sums over pairs laid out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lightning_rank.conventions import Gain, discount, sum_dtype, values_are_free
from lightning_rank.functional.batch import Batch
from lightning_rank.functional.ranking import Judged, gains_on
from lightning_rank.lists import Lists, PaddedLists, run_bounds

# Numbers in one piece of a matrix that is computed piece by piece: it stays in the cache.
PIECE = 2**18


@dataclass(frozen=True)
class Items:
    """Items in descending order of their scores, within each query; every tensor is shaped like ``score``.

    Ranks count from 0 here. Where scores are tied, what depends on a rank is the mean over all orders of the tied items, in
    which an item is equally likely to have any of their ranks.

    Attributes:
        score: on the graph.
        grade: NaN in padding, which compares with nothing.
        rank: rank in the order of the sort, int64.
        weight: item weights, or None.
        gain: gains over the ideal DCG, or None.
        discount: mean discount of the tied ranks.
        kept: chance of a rank within the cutoff, or None without one.
        kept_discount: mean of the discount, 0 beyond the cutoff.
        first, last: ranks of the first and the last tied item, int64; None: no ties.
        inner: mean weight of a pair of items that are both tied here.
    """

    score: Tensor
    grade: Tensor
    rank: Tensor
    weight: Tensor | None = None
    gain: Tensor | None = None
    discount: Tensor | None = None
    kept: Tensor | None = None
    kept_discount: Tensor | None = None
    first: Tensor | None = None
    last: Tensor | None = None
    inner: Tensor | None = None

    def map(self, function: Callable[[Tensor], Tensor]) -> Items:
        """The same function of every tensor."""
        mapped = (None if x is None else function(x) for x in vars(self).values())
        return Items(*mapped)  # type: ignore[arg-type]  # None where it was


class PairWeight:
    """The weight of a pair, without the weight of its better item.

    Args:
        kind: ``"count"`` 1 for a pair; ``"drop"`` difference of gains times difference of discounts; ``"delta"`` difference
        of
            gains times D(a) - D(a + 1) for ranks a apart; ``"both"`` the sum of these two, the latter times ``mu``;
            ``"own"`` gain times discount of the first item.
        top_k: a pair counts where its upper item is within the cutoff.
        every: a pair counts in both directions, whatever the grades.
    """

    def __init__(self, kind: str, top_k: int | None = None, *, mu: float = 1.0, every: bool = False) -> None:
        self.kind, self.top_k, self.mu, self.every = kind, top_k, mu, every

    @property
    def needs_ranks(self) -> bool:
        """Whether a weight depends on ranks."""
        return self.kind != "count" or self.top_k is not None

    def complete(self, items: Items, tied: tuple[Tensor, Tensor] | None) -> Items:
        """The items with all that the weights are made of; ``tied`` as ``ranking`` has it, or None without ties."""
        dtype = items.score.dtype
        exact = (items.rank + 1).to(sum_dtype(items.rank.device))
        value = discount(exact)
        kept: Tensor | None = None if self.top_k is None else (items.rank < self.top_k).to(exact.dtype)
        kept_value = value if kept is None else value * kept
        first = last = inner = None
        if tied is not None:
            tie, size = _tie_of(tied), (tied[1] - tied[0] + 1).to(exact.dtype)
            place = torch.arange(items.rank.shape[-1], device=items.rank.device)
            first, last = items.rank - (place - tied[0]), items.rank + (tied[1] - place)
            pairs = torch.where(size > 1, size * (size - 1) / 2, 1.0)
            inner = (_sum_of_tied(self._inner(first + 1.0, exact, last + 1.0, value), tie) / pairs).to(dtype)
            value, kept_value = (_sum_of_tied(v, tie) / size for v in (value, kept_value))
            kept = None if kept is None else _sum_of_tied(kept, tie) / size
        return replace(
            items,
            discount=value.to(dtype),
            kept=None if kept is None else kept.to(dtype),
            kept_discount=kept_value.to(dtype),
            first=first,
            last=last,
            inner=inner,
        )

    def _inner(self, first: Tensor, rank: Tensor, last: Tensor, value: Tensor) -> Tensor:
        """At each of the tied ranks a term of the sum over their pairs of the weight by ranks."""
        inside = torch.ones_like(rank) if self.top_k is None else (rank <= self.top_k).to(rank.dtype)
        lower = inside * (last - rank)
        # Items of the tie that are within the cutoff: above this rank, and all of them.
        cutoff = last if self.top_k is None else last.clamp(max=self.top_k)
        kept_above = (torch.minimum(rank - 1, cutoff) - first + 1).clamp(min=0)
        if self.kind == "count":
            return lower
        if self.kind == "own":
            # Half, as a pair counts in both directions.
            return value * torch.where(inside > 0, last - first, (cutoff - first + 1).clamp(min=0)) / 2
        drop = value * (lower - kept_above)
        if self.kind == "drop":
            return drop
        delta = inside * (1 - discount(last - rank + 1))
        return delta if self.kind == "delta" else drop + self.mu * delta

    def __call__(self, a: Items, b: Items) -> Tensor:
        """The weights of the pairs of a and b, which must broadcast, where a is the better item."""
        weight = self.by_rank(a, b)
        if self.kind == "count":
            return weight
        assert a.gain is not None
        assert b.gain is not None
        return weight * (a.gain if self.kind == "own" else a.gain - b.gain)

    def by_rank(self, a: Items, b: Items) -> Tensor:
        """The part of the weights that ranks decide."""
        if self.kind == "both":
            weight = self._drop(a, b) + self.mu * self.delta(a, b)
        else:
            weight = {"count": self._count, "drop": self._drop, "delta": self.delta, "own": self._own}[self.kind](a, b)
        if a.first is None or b.first is None or a.inner is None:
            return weight
        if self.top_k is None and self.kind in ("count", "own"):
            return weight
        return torch.where(a.first == b.first, a.inner, weight)

    def _count(self, a: Items, b: Items) -> Tensor:
        if a.kept is None or b.kept is None:
            return torch.ones((), dtype=a.score.dtype, device=a.score.device)
        return torch.maximum(a.kept, b.kept)  # that of the upper item

    def _drop(self, a: Items, b: Items) -> Tensor:
        if a.kept is None or b.kept is None:
            return (a.discount - b.discount).abs()  # type: ignore[operator]  # complete
        upper = a.rank < b.rank
        above = a.kept_discount - a.kept * b.discount  # type: ignore[operator]  # complete
        return torch.where(upper, above, b.kept_discount - b.kept * a.discount)  # type: ignore[operator]  # complete

    def _own(self, a: Items, b: Items) -> Tensor:
        if a.kept is None or b.kept is None:
            return a.discount  # type: ignore[return-value]  # complete
        below = b.kept * a.discount  # type: ignore[operator]  # complete
        return torch.where(a.rank < b.rank, a.kept_discount, below)  # type: ignore[arg-type]  # complete

    def delta(self, a: Items, b: Items, num_ranks: int | None = None) -> Tensor:
        """The mean of D(d) - D(d + 1) for ranks d apart, of items that are not tied with each other."""
        upper = torch.minimum(a.rank, b.rank)
        apart = (a.rank - b.rank).abs()
        num_ranks = (num_ranks or max(a.rank.shape[-1], b.rank.shape[-1], 1)) + 2
        exact = torch.arange(1, num_ranks + 1, dtype=sum_dtype(a.rank.device), device=a.rank.device)
        if a.first is None or b.first is None or a.last is None or b.last is None:
            steps = torch.cat([exact.new_zeros(1), discount(exact) - discount(exact + 1)]).to(a.score.dtype)
            weight = steps.index_select(0, apart.flatten()).view_as(apart)
            return weight if self.top_k is None else weight * (upper < self.top_k)
        # The sum over all ranks p, q of two ties telescopes once over q, and leaves sums of discounts over p.
        summed = torch.cat([exact.new_zeros(1), discount(exact).cumsum(0)])
        above = a.rank < b.rank
        start, end = torch.where(above, a.first, b.first), torch.where(above, a.last, b.last)
        low_start, low_end = torch.where(above, b.first, a.first), torch.where(above, b.last, a.last)
        size = ((a.last - a.first + 1) * (b.last - b.first + 1)).to(exact.dtype)
        if self.top_k is not None:
            end = end.clamp(max=self.top_k - 1)

        def total(distance: Tensor) -> Tensor:
            # Sums over p of D(distance + 1 - p), p from 0 to end - start.
            upto, down = distance.clamp(0, num_ranks), (distance - (end - start) - 1).clamp(0, num_ranks)
            both = summed.index_select(0, torch.cat([upto.flatten(), down.flatten()])).view(2, *upto.shape)
            return both.select(0, 0) - both.select(0, 1)

        weight = (total(low_start - start) - total(low_end + 1 - start)) / size
        return torch.where(end >= start, weight, 0.0).to(a.score.dtype)


def _tie_of(tied: tuple[Tensor, Tensor]) -> Tensor:
    """The flat index of the first item of each item's tie."""
    tie = tied[0]
    if tie.ndim == 2:
        tie = tie + tie.shape[1] * torch.arange(tie.shape[0], device=tie.device).unsqueeze(1)
    return tie.flatten()


def _sum_of_tied(values: Tensor, tie: Tensor) -> Tensor:
    total = torch.zeros_like(values).flatten().index_add(0, tie, values.flatten())
    return total.index_select(0, tie).view_as(values)


def padded(batch: Batch) -> Batch:
    """The batch as ``[query, longest]``."""
    lists = batch.lists
    if isinstance(lists, PaddedLists):
        return batch
    if lists.num_queries == 1:
        score = batch.score.unsqueeze(0)
        weight = None if batch.weight is None else batch.weight.unsqueeze(0)
        return Batch(PaddedLists(score.shape, None, score.device), score, batch.grade.unsqueeze(0), weight)
    score, grade = lists.pad(batch.score), lists.pad(batch.grade)
    mask = torch.arange(score.shape[1], device=score.device) < lists.lengths.unsqueeze(1)
    weight = None if batch.weight is None else lists.pad(batch.weight)
    return Batch(PaddedLists(score.shape, mask, score.device), score, grade, weight)


def ranked(batch: Batch, weight: PairWeight, gain: Gain | None, *, in_order: bool) -> tuple[Lists, Items]:
    """The items by descending score with what their pairs weigh, and their layout.

    ``in_order``: also where ranks do not matter; otherwise the items may stay where they are.
    """
    lists, grade = batch.lists, batch.grade.detach()
    # Infinite scores tie with each other, and have no gradient. Below, a difference times a slope stays finite.
    most = torch.finfo(batch.score.dtype).max / 2**20
    score = batch.score.clamp(-most, most)
    rank = lists.position.expand(score.shape)
    items = Items(score, grade.masked_fill(lists.valid.logical_not(), torch.nan), rank, batch.weight)
    if gain is not None:
        judged = Judged(lists, grade, None, None, grade.dtype)
        best = judged.ideal_dcg(weight.top_k, gain, scaled=True)
        gains = gains_on(lists, grade, gain, judged.top_grade())
        items = replace(items, gain=gains / lists.spread(torch.where(best > 0, best, 1.0).to(gains.dtype)))
    if not (in_order or weight.needs_ranks):
        return lists, items
    order, key = lists.order(score.detach())
    after = lists.sorted()
    items = items.map(lambda x: x if x is rank else x.gather(-1, order))
    if not weight.needs_ranks:
        return after, items
    same = after.ties_with_above(key)
    tied = run_bounds(same.logical_not()) if not values_are_free(score) or bool(same.any()) else None
    return after, weight.complete(items, tied)


class Kernel:
    """What a pair costs by the difference d of its scores, better - worse: softplus(-slope d), max(0, margin - d), or 1."""

    def __init__(self, slope: float = 1.0, *, margin: float | None = None, constant: bool = False) -> None:
        self.slope, self.margin, self.constant = slope, margin, constant

    def __call__(self, difference: Tensor) -> Tensor:
        if self.constant:
            return torch.ones_like(difference)
        if self.margin is not None:
            return torch.relu(self.margin - difference)
        return -logsigmoid(difference if self.slope == 1 else self.slope * difference)

    def fall(self, difference: Tensor) -> Tensor:
        """Minus the derivative."""
        if self.constant:
            return torch.zeros_like(difference)
        if self.margin is not None:
            return (difference < self.margin).to(difference.dtype)
        return self.slope * torch.sigmoid(-self.slope * difference)


def is_pair(weight: PairWeight, a: Items, b: Items) -> Tensor:
    """Whether a should be above b."""
    # Padding has the grade NaN.
    return (a.rank != b.rank) & (a.grade >= 0) & (b.grade >= 0) if weight.every else a.grade > b.grade


def dense(weight: PairWeight, kernel: Kernel, items: Items) -> Tensor:
    """The sum over all pairs of each query, ``[query]``, from matrices of all of them; ``items`` are padded."""
    a, b = items.map(lambda x: x.unsqueeze(-1)), items.map(lambda x: x.unsqueeze(-2))
    each = weight(a, b) if a.weight is None else weight(a, b) * a.weight
    # A product, as `where` takes several times as long on a CPU.
    return (each * is_pair(weight, a, b) * kernel(a.score - b.score)).sum((-1, -2))


def rows_of(weight: PairWeight, items: Items) -> tuple[Tensor, bool]:
    """The fewest items, as flat indices, that have a part in every pair: all better ones, or (True) all upper ones.

    Where looking is not free, all items.
    """
    if not values_are_free(items.rank) or not items.rank.numel():
        return torch.arange(items.rank.numel(), device=items.rank.device), False
    real = items.grade >= 0
    if weight.every:
        return real.flatten().nonzero().squeeze(1), False
    lowest = items.grade.nan_to_num(torch.inf).amin(-1, keepdim=True)
    better = items.grade > lowest
    if weight.top_k is not None:
        upper = real & ((items.rank if items.first is None else items.first) < weight.top_k)
        if upper.sum() < better.sum():
            return upper.flatten().nonzero().squeeze(1), True
    return better.flatten().nonzero().squeeze(1), False


def by_rows(weight: PairWeight, kernel: Kernel, items: Items, rows: Tensor, upper: bool) -> tuple[Tensor, Tensor]:
    """The sum over the pairs of some items with all others, a few rows at a time: O(rows * items) time, O(items) memory.

    Args:
        weight, kernel: of a pair.
        items: ``[query, item]``.
        rows: ``[R]`` flat indices of items.
        upper: a pair belongs to the row of its upper item; otherwise to that of its better one.

    Returns:
        The sums of each row, 0 for other items, and the gradient of all; ``[query, item]``.
    """
    num_queries, length = items.rank.shape
    value = torch.zeros(num_queries * length, dtype=sum_dtype(rows.device), device=rows.device)
    gradient = torch.zeros_like(value)
    table = gradient.view(num_queries, length)
    flat = items.map(torch.flatten)
    for piece in rows.split(max(1, PIECE // max(1, length))):
        query = piece // length
        a = flat.map(lambda x, piece=piece: x.index_select(0, piece).unsqueeze(1))  # type: ignore[misc]
        b = items if num_queries == 1 else items.map(lambda x, query=query: x.index_select(0, query))  # type: ignore[misc]
        sign = None
        mask = is_pair(weight, a, b)
        if upper and not weight.every:
            below = b.rank > a.rank
            sign = mask.to(a.score.dtype) - (a.grade < b.grade).to(a.score.dtype)
            mask = below & (sign != 0)
        each = weight(a, b)
        if sign is not None and weight.kind != "count":
            each = each * sign
        if a.weight is not None:
            each = each * (a.weight if sign is None else torch.where(sign > 0, a.weight, b.weight))  # type: ignore[arg-type]
        each = each * mask
        difference = a.score - b.score if sign is None else (a.score - b.score) * sign
        value.index_add_(0, piece, (each * kernel(difference)).sum(1).to(value.dtype))
        pull = each.mul_(kernel.fall(difference))
        if sign is not None:
            pull = pull * sign
        gradient.index_add_(0, piece, -pull.sum(1).to(value.dtype))
        if num_queries == 1:
            table += pull.sum(0)
        else:
            table.index_add_(0, query, pull.to(value.dtype))
    return value.view_as(table), table
