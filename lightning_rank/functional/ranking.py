"""Scores to grades in rank order, once for every metric and cutoff; what ties do to them.

Tied items have no order. Under ``ties="average"`` every metric is the exact expectation over all orders of the tied items
(McSherry and Najork, "Computing information retrieval performance measures efficiently in the presence of tied scores", ECIR
2008). A ``Ranking`` offers the expectations that metrics are made of: the mean of a value over the items tied at a rank, the
expected number of relevant items above a relevant one, the distribution of the first relevant rank. Without ties they are the
plain quantities, and a metric is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from lightning_rank.conventions import TIES, Gain, check_choice, discount, gains_of, sum_dtype, value_dtype, values_are_free
from lightning_rank.flags import as_numbers, at_least, below, equals
from lightning_rank.lists import JaggedLists, Lists, PaddedLists, arrange, check_grades, check_scores, run_bounds

# Up to this grade the ideal DCG is counted by levels; beyond it, or with fractions, grades are sorted.
MOST_LEVELS = 16

# Items of a list whose grades NumPy sorts in less time than it takes to count their levels.
SHORT = 512
# Items that are ranked at a time on the CPU: beyond, the cache does not hold them.
BLOCK = 2**17

T = TypeVar("T")


class Judged:
    """The grades of all judged items of each query, retrieved or not: what an ideal order is made of."""

    def __init__(
        self, lists: Lists, grade: Tensor, known: Tensor | None, depth: int | None, value_dtype: torch.dtype
    ) -> None:
        """``grade``: any dtype, below 0 is 0; ``known``: False where nobody judged an item, None if all are judged; ``depth``:
        the largest cutoff to come, None if there is a metric without; ``value_dtype``: of gains."""
        self._lists, self._grade, self._known, self._depth, self.value_dtype = lists, grade, known, depth, value_dtype
        self._memo: dict[Hashable, Tensor] = {}

    def num_relevant(self, min_relevance: float) -> Tensor:
        """``[Q]`` items of at least this grade."""
        if min_relevance not in self._memo:
            # Padding has grade 0, and `min_relevance` is above 0.
            relevant = self._lists.count(at_least(self._grade, min_relevance))
            self._memo[min_relevance] = relevant.to(sum_dtype(self._grade.device))
        return self._memo[min_relevance]

    def has_relevant(self, min_relevance: float) -> Tensor:
        """``[Q]`` bool."""
        key = ("has", min_relevance)
        if key not in self._memo:
            self._memo[key] = self.num_relevant(min_relevance) > 0
        return self._memo[key]

    def num_other(self, min_relevance: float) -> Tensor:
        """``[Q]`` judged items of a lower grade."""
        judged = self._lists.lengths if self._known is None else self._lists.count(self._known)
        return judged - self.num_relevant(min_relevance)

    def beyond(self, gain: Gain) -> Tensor:
        """``[Q]`` bool: an item has no gain, as its grade is beyond the table."""
        gains = gains_on(self._lists, self._grade.to(self.value_dtype).clamp(min=0), gain, None)
        return self._lists.count(torch.isnan(gains)) > 0

    def top_grade(self) -> Tensor:
        """``[Q]`` the largest grade; 0 where nothing is judged."""
        if "top" not in self._memo:
            ranked = self._memo.get("sorted")
            if ranked is None or ranked.ndim == 1 or ranked.shape[1] == 0:
                top = self._lists.top(self._grade)
            else:
                top = ranked.select(1, 0)
            self._memo["top"] = top.to(self.value_dtype)
        return self._memo["top"]

    def ideal_dcg(self, top_k: int | None, gain: Gain, scaled: bool) -> Tensor:
        """``[Q]`` DCG of the items in descending order of their grades."""
        if self._has_few_levels():
            return self._ideal_dcg_of_levels(top_k, gain, scaled)
        lists, grade = self._sorted()
        if top_k is not None and top_k < grade.shape[-1] and isinstance(lists, PaddedLists):
            lists, grade = lists.columns(top_k), grade.narrow(-1, 0, top_k)
        discounted = gains_on(lists, grade, gain, self.top_grade() if scaled else None)
        discounted = discounted * discount((lists.position + 1).to(grade.dtype))
        if top_k is not None and top_k < grade.shape[-1]:
            discounted = discounted * (lists.position < top_k)
        return lists.sum(discounted).to(sum_dtype(grade.device))

    def _has_few_levels(self) -> bool:
        """Whether grades are known to be a few whole numbers, so that counting them is cheaper than a sort."""
        if not values_are_free(self._grade) or self._grade.numel() == 0 or self._sorts_fast():
            return False
        if "few levels" not in self._memo:
            few = self.top_grade().max() <= MOST_LEVELS
            whole = not self._grade.is_floating_point()
            self._memo["few levels"] = few if whole or not few else self._grade.frac().abs_().sum() == 0
        return bool(self._memo["few levels"])

    def _sorts_fast(self) -> bool:
        """Whether NumPy sorts the grades, with vector instructions, in less time than it takes to count levels."""
        of_float32 = self.value_dtype == torch.float32 and values_are_free(self._grade)
        return of_float32 and isinstance(self._lists, PaddedLists) and self._grade.shape[-1] <= SHORT

    def _ideal_dcg_of_levels(self, top_k: int | None, gain: Gain, scaled: bool) -> Tensor:
        # The items of grade v or more fill the first ranks, so that each level adds the step of its gain to all of them.
        device, dtype = self._grade.device, sum_dtype(self._grade.device)
        levels = torch.arange(int(self.top_grade().max()) + 1, dtype=dtype, device=device)
        top = self.top_grade().to(dtype).unsqueeze(1) if scaled else None
        gains = gains_of(levels, gain, top).expand(self._lists.num_queries, -1)
        steps = torch.cat([gains[:, :1], gains.diff(dim=1)], dim=1)
        longest = int(self._lists.lengths.max())
        depth = longest if top_k is None else min(top_k, longest)
        at_least: list[Tensor] = []
        for level in range(len(levels) - 1, 0, -1):
            # Where the better ones fill all ranks, the others need no count.
            full = at_least and at_least[0].min() >= depth
            at_least.insert(0, at_least[0] if full else self.num_relevant(level).long())
        reach = torch.stack([self._lists.lengths, *at_least], dim=1)
        ranks = torch.arange(1, depth + 1, dtype=dtype, device=device)
        summed = torch.cat([ranks.new_zeros(1), discount(ranks).cumsum(0)])
        return (steps * summed[reach.clamp(max=depth)]).sum(1)

    def _sorted(self) -> tuple[Lists, Tensor]:
        """The grades in descending order, at least as many of each query as any cutoff asks for."""
        lists, grade = self._lists.sorted(), self._grade
        width = grade.shape[-1]
        if isinstance(lists, PaddedLists) and self._depth is not None and self._depth < width:
            width = self._depth
            lists = lists.columns(width)
        if "sorted" not in self._memo:
            grade = grade.to(self.value_dtype).clamp(min=0)
            if self._sorts_fast():
                # Padding is 0, so that it comes last.
                key = grade.neg_()
                key.numpy().sort(axis=-1)
                self._memo["sorted"] = key.narrow(-1, 0, width).abs_()
            elif width < grade.shape[-1]:
                self._memo["sorted"] = torch.topk(grade, width, dim=-1).values
            else:
                self._memo["sorted"] = grade.gather(-1, self._lists.order(grade)[0])
        return lists, self._memo["sorted"]


class Ties:
    """The items that share their score with another of their query: runs of tied items in rank order.

    Attributes:
        at: ``[T]`` index of each in the flattened items; None where looking is not free: then every item is here, tied or not.
        run: ``[T]`` number of the run that an item belongs to, below ``num_runs``.
        first: ``[T]`` index, in the flattened items, of the first item of that run.
        size: ``[T]`` items in the run.
        place: ``[T]`` 0-based place of the item in it.
    """

    def __init__(self, at: Tensor | None, run: Tensor, num_runs: int, first: Tensor, size: Tensor, place: Tensor) -> None:
        self.at, self.run, self.num_runs, self.first, self.size, self.place = at, run, num_runs, first, size, place

    def of(self, values: Tensor) -> Tensor:
        """``[T]`` the values of the tied items."""
        values = values.flatten()
        return values if self.at is None else values.index_select(0, self.at)

    def at_first(self, values: Tensor) -> Tensor:
        """``[T]`` the values of the first item of each one's run."""
        return values.flatten().index_select(0, self.first)

    def mean(self, values: Tensor) -> Tensor:
        """``[T]`` the mean of an item value over the run of each."""
        # Sums by run, not differences of a running sum: a huge gain in one query would swallow those of the next.
        own = self.of(values).to(self.size.dtype)
        total = own.new_zeros(self.num_runs).index_add(0, self.run, own)
        return total.index_select(0, self.run) / self.size

    def put(self, values: Tensor, of_tied: Tensor) -> Tensor:
        """The values of all items, with those of the tied ones replaced."""
        return self.put_(values if self.at is None else values.clone(), of_tied)

    def put_(self, values: Tensor, of_tied: Tensor) -> Tensor:
        """The same; the values given may be overwritten."""
        of_tied = of_tied.to(values.dtype)
        if self.at is None:
            return of_tied.view_as(values)
        values.view(-1).index_copy_(0, self.at, of_tied)
        return values


class Ranking:
    """The grades of each query in the order of the scores.

    Attributes:
        lists: the layout of the ranked items, possibly only the first ones of each query.
        grade: grades in rank order, >= 0, of the dtype of values; 0 in padding.
        rank: 1-based ranks, of its dtype, broadcastable to ``grade``.
        known: bool in rank order, False where nobody judged an item; None if all are judged.
        length: ``[Q]`` retrieved items of each query, also where ``grade`` holds only the first ones.
        ties: what is tied; None: every item has a rank of its own.
        judged: all judged items.
        depth: the largest cutoff that this serves; None: the whole list.
        invalid: ``[Q]`` bool, a score or grade is NaN or beyond the scale; None where that was already an error.
    """

    def __init__(
        self,
        lists: Lists,
        grade: Tensor,
        known: Tensor | None,
        length: Tensor,
        ties: Ties | None,
        judged: Judged,
        depth: int | None,
        invalid: Tensor | None,
    ) -> None:
        self.lists, self.grade, self.known, self.length, self.ties = lists, grade, known, length, ties
        self.judged, self.depth, self.invalid = judged, depth, invalid
        self.rank = (lists.position + 1).to(grade.dtype)
        self._memo: dict[Hashable, Any] = {}

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """What is computed the first time only: several metrics and cutoffs share it."""
        if key not in self._memo:
            self._memo[key] = compute()
        return self._memo[key]

    def mark_beyond(self, bad: Tensor) -> None:
        """Mark queries, ``[Q]`` bool, that have a grade beyond the scale of a metric; where looking is free it has raised."""
        self.invalid = bad if self.invalid is None else self.invalid | bad

    def head(self, top_k: int | None) -> Ranking:
        """What the cutoffs up to ``top_k`` need, where that is less than all."""
        if top_k is None or (self.depth is not None and top_k >= self.depth):
            return self
        return self.once(("head", top_k), lambda: self._head(top_k))

    def _head(self, top_k: int) -> Ranking:
        lists, take, ties = _first_ranks(self.lists, self.ties, top_k, is_free=values_are_free(self.grade))
        known = None if self.known is None else take(self.known)
        return Ranking(lists, take(self.grade), known, self.length, ties, self.judged, top_k, self.invalid)

    def sum(self, values: Tensor, top_k: int | None = None) -> Tensor:
        """Sum over the ranks of each query, up to ``top_k`` -> ``[Q]``."""
        if top_k is not None and isinstance(self.lists, PaddedLists):
            values = values.narrow(-1, 0, min(top_k, values.shape[-1]))
        elif top_k is not None and top_k < values.shape[-1]:
            values = values * (self.rank <= top_k)
        return self.lists.sum(values).to(sum_dtype(values.device))

    def within(self, limit: Tensor) -> Tensor:
        """At each rank 1.0 down to ``limit``, ``[Q]``, else 0."""
        return (self.rank <= self.lists.spread(limit)).to(self.grade.dtype)

    def mean_of_tied(self, values: Tensor) -> Tensor:
        """At each rank the mean of an item value over the items tied there."""
        return values if self.ties is None else self.ties.put(values, self.ties.mean(values))

    def discounted_gain(self, gain: Gain, *, scaled: bool = False) -> Tensor:
        """At each rank the mean gain of the items tied there, over log2(rank + 1); ``scaled``: exp2 gains over 2^(largest
        grade of the query)."""

        def compute() -> Tensor:
            gains = gains_on(self.lists, self.grade, gain, self.judged.top_grade() if scaled else None)
            return self.mean_of_tied(gains) * self.discount()

        key = gain if isinstance(gain, str) or callable(gain) else tuple(gain)
        return self.once(("discounted gain", key, scaled), compute)

    def relevant(self, min_relevance: float) -> Tensor:
        """1.0 where an item is relevant, in rank order."""
        return self.once(
            ("relevant", min_relevance), lambda: as_numbers(at_least(self.grade, min_relevance), self.grade.dtype)
        )

    def chance(self, min_relevance: float) -> Tensor:
        """At each rank the probability that a relevant item stands there."""
        return self.once(("chance", min_relevance), lambda: self.mean_of_tied(self.relevant(min_relevance)))

    def _found(self, min_relevance: float) -> Tensor:
        """Relevant items down to each, in the order of the sort."""
        return self.once(("found", min_relevance), lambda: self.lists.cumsum(self.relevant(min_relevance)))

    def _chance_and_above(self, ties: Ties, min_relevance: float) -> tuple[Tensor, Tensor]:
        """For each tied item the chance that it is relevant, and the relevant items above all that are tied to it."""

        def compute() -> tuple[Tensor, Tensor]:
            relevant = self.relevant(min_relevance)
            return ties.mean(relevant), ties.at_first(self._found(min_relevance)) - ties.at_first(relevant)

        return self.once(("chance and above", min_relevance), compute)

    def expected_precision(self, min_relevance: float) -> Tensor:
        """At each rank the precision down to it, if a relevant item stands there, times the chance that one does."""

        def compute() -> Tensor:
            found, relevant, ties = self._found(min_relevance), self.relevant(min_relevance), self.ties
            precision = relevant * found
            if ties is not None:
                # Of r relevant among n tied items, one at place j (from 0) expects j (r - 1) / (n - 1) more of them above it.
                chance, above = self._chance_and_above(ties, min_relevance)
                more = ties.place * (chance * ties.size - 1) / (ties.size - 1).clamp(min=1)
                precision = ties.put_(precision, chance * (above + more + 1))
            return precision.div_(self.rank)

        return self.once(("precision", min_relevance), compute)

    def other(self, min_relevance: float, *, known: bool) -> Tensor:
        """1.0 where an item is not relevant, in rank order; ``known``: and somebody judged it."""

        def compute() -> Tensor:
            other = below(self.grade, min_relevance) & self.lists.valid
            return as_numbers(other if self.known is None or not known else other & self.known, self.grade.dtype)

        return self.once(("other", min_relevance, known), compute)

    def others_above_and_tied(self, min_relevance: float, *, known: bool) -> tuple[Tensor, Tensor]:
        """At each rank how many not relevant items stand above all items tied there, and how many are among them."""

        def compute() -> tuple[Tensor, Tensor]:
            other = self.other(min_relevance, known=known)
            above = self.lists.cumsum(other) - other
            tied = torch.zeros_like(above)
            if self.ties is not None:
                tied = self.ties.put_(tied, (self.ties.mean(other) * self.ties.size).round())
                above = self.ties.put_(above, self.ties.at_first(above))
            return above, tied

        return self.once(("others", min_relevance, known), compute)

    def chance_of_first(self, min_relevance: float) -> Tensor:
        """At each rank the probability that the first relevant item stands there."""

        def compute() -> Tensor:
            found, relevant, ties = self._found(min_relevance), self.relevant(min_relevance), self.ties
            first = as_numbers(equals(found, 1), relevant.dtype).mul_(relevant)
            if ties is None:
                return first
            chance, above = self._chance_and_above(ties, min_relevance)
            inside = (chance * ties.size).round()
            here = (above == 0) & (inside > 0)
            if values_are_free(here) and not here.any():
                return first
            # Of n tied items, r relevant: place j (from 0) is passed without one with probability (n-r-j)/(n-j), while
            # j < n - r; the first comes at place j with r/(n-j) times the product of those before. Sums of logarithms:
            # the binomials of the closed form overflow at a thousand tied items.
            left = ties.size - ties.place
            passing = torch.log1p(torch.where(here & (left > inside), -inside / left, 0.0))
            passed = torch.exp(self._sum_before(passing))
            return ties.put_(first, torch.where(here & (left >= inside), inside / left * passed, 0.0))

        return self.once(("first", min_relevance), compute)

    def _sum_before(self, of_tied: Tensor) -> Tensor:
        """For each tied item the sum over those before it in its run."""
        ties = self.ties
        assert ties is not None
        if ties.at is None:
            # All items are here, so that runs of different queries do not share a running sum.
            before = self.lists.cumsum(of_tied.view(self.grade.shape)).flatten() - of_tied
            return before - before.index_select(0, ties.first)
        before = of_tied.cumsum(0) - of_tied
        return before - before.index_select(0, torch.arange(len(before)) - ties.place.long())

    def chance_to_stop(self, satisfied: Tensor) -> Tensor:
        """At each rank the probability that a user stops there; each item stops one with that probability."""
        # Where rounding makes an item certain to satisfy, -1000 passes nobody just as -infinity does, and stays a number.
        passing = torch.log1p(-satisfied).clamp(min=-1000)
        reach = torch.exp(self.lists.cumsum(passing) - passing)
        stops = reach * satisfied
        ties = self.ties
        if ties is None:
            return stops
        flat, first, size, place = satisfied.flatten(), ties.first, ties.size, ties.place
        width = satisfied.shape[-1]
        here = ties.at
        if here is None and isinstance(self.lists, PaddedLists) and self.depth is not None and self.depth < width:
            rows = torch.arange(self.lists.num_queries, device=flat.device).unsqueeze(1) * width
            here = (rows + torch.arange(self.depth, device=flat.device)).flatten()
            first, size, place = (x.index_select(0, here) for x in (first, size, place))
        if values_are_free(size):
            longest = int(size.max()) if size.numel() else 0
        else:
            longest = width if isinstance(self.lists, PaddedLists) else int(size.max())
        # passed[j]: the probability to pass the first j tied items, over all their orders: the elementary symmetric
        # polynomials of the single probabilities over the binomials, built up item by item.
        number, last = place + 1, first + size.long() - 1
        passed = torch.zeros_like(size)
        for step in range(longest):
            item = 1 - flat.index_select(0, (first + step).minimum(last)).to(size.dtype)
            grown = ((step + 1 - number) * passed + number * item * _passed_before(passed, place)) / (step + 1)
            passed = torch.where((step < size) & (number <= step + 1), grown, passed)
        of_tied = (_passed_before(passed, place) - passed) * reach.flatten().index_select(0, first)
        if here is None:
            return of_tied.view_as(stops)
        return stops.flatten().index_copy(0, here, of_tied.to(stops.dtype)).view_as(stops)

    def tie_size(self) -> Tensor:
        """At each rank the number of items tied there."""
        size = torch.ones_like(self.grade)
        return size if self.ties is None else self.ties.put_(size, self.ties.size)

    def tie_place(self) -> Tensor:
        """At each rank the 0-based place within the tied items."""
        place = torch.zeros_like(self.grade)
        return place if self.ties is None else self.ties.put_(place, self.ties.place)

    def discount(self) -> Tensor:
        """1 / log2(rank + 1)."""
        exact = sum_dtype(self.grade.device)
        return self.once("discount", lambda: discount(self.rank.to(exact)).to(self.grade.dtype))

    @property
    def is_query(self) -> Tensor:
        """``[Q]`` bool: something was retrieved, or something relevant was missed. False is a fully masked row."""
        return (self.length > 0) | (self.judged.top_grade() > 0)


def _passed_before(passed: Tensor, place: Tensor) -> Tensor:
    return torch.where(place == 0, 1.0, passed.roll(1, -1))


def _first_ranks(
    lists: Lists, ties: Ties | None, top_k: int, *, is_free: bool
) -> tuple[Lists, Callable[[Tensor], Tensor], Ties | None]:
    """The layout of the first ``top_k`` ranks with all that is tied to the last of them, what takes them, their ties."""
    if not is_free:
        if ties is None and isinstance(lists, PaddedLists):
            return lists.columns(top_k), lambda values: values.narrow(-1, 0, min(top_k, values.shape[-1])), None
        return lists, lambda values: values, ties
    reach = lists.lengths.clamp(max=top_k)
    if ties is None:
        return *lists.head(reach), None
    first, size, query = ties.first.numpy(), ties.size.long().numpy(), lists.query_of(ties.first).numpy()
    start = lists.starts.numpy()[query]
    begin = first - start
    assert ties.at is not None  # as looking is free
    (split,) = ((begin < top_k) & (begin + size > top_k)).nonzero()
    reach.numpy()[query[split]] = (begin + size)[split]
    new, take = lists.head(reach)
    (keep,) = (begin < top_k).nonzero()
    if not len(keep):
        return new, take, None
    moved, kept = torch.from_numpy((new.starts.numpy()[query] - start)[keep]), torch.from_numpy(keep)
    at, run, first_, size_, place = (
        x.index_select(0, kept) for x in (ties.at, ties.run, ties.first, ties.size, ties.place)
    )
    return new, take, Ties(at + moved, run, ties.num_runs, first_ + moved, size_, place)


def gains_on(lists: Lists, grade: Tensor, gain: Gain, top: Tensor | None) -> Tensor:
    """The gain of each item, 0 in padding; with ``top``, ``[Q]``, exp2 gains over 2^top."""
    gains = gains_of(grade, gain, None if top is None else lists.spread(top))
    # Padding has grade 0, whose gain need not be 0 in a table or a callable.
    return gains if isinstance(gain, str) else gains * lists.valid


def rank(
    preds: Tensor,
    target: Tensor,
    *,
    mask: Tensor | None = None,
    indexes: Tensor | None = None,
    offsets: Tensor | None = None,
    judged: Tensor | None = None,
    ideal: Tensor | None = None,
    ideal_mask: Tensor | None = None,
    ties: str = "average",
    depth: int | None = None,
) -> Ranking:
    """Sort each query's items by score, descending. Arguments and errors are those of ``rank_in_blocks``."""
    batch = {
        "mask": mask,
        "indexes": indexes,
        "offsets": offsets,
        "judged": judged,
        "ideal": ideal,
        "ideal_mask": ideal_mask,
    }
    (ranking,) = rank_in_blocks(preds, target, **batch, ties=ties, depth=depth, max_items=None)
    return ranking


def rank_in_blocks(
    preds: Tensor,
    target: Tensor,
    *,
    mask: Tensor | None = None,
    indexes: Tensor | None = None,
    offsets: Tensor | None = None,
    judged: Tensor | None = None,
    ideal: Tensor | None = None,
    ideal_mask: Tensor | None = None,
    ties: str = "average",
    depth: int | None = None,
    max_items: int | None = BLOCK,
) -> Iterator[Ranking]:
    """Sort each query's items by score, descending, some queries at a time: what fits the processor's cache is fastest.

    Args:
        preds, target, mask, indexes, offsets: as for ``lists.arrange``.
        judged: bool like ``preds``; False is an item that nobody judged, and counts as not relevant.
        ideal: ``[Q, M]`` grades of all judged items of each query, for padded ``preds``; None: the list itself.
        ideal_mask: bool like ``ideal``.
        ties: what tied items do, one of ``conventions.TIES``.
        depth: the largest cutoff that will be asked for; None: the whole list.
        max_items: about how many items a block has, but for a longer query; None: all. On a device there is one block.

    Raises:
        TypeError, ValueError: as ``lists.arrange``; a NaN score or grade (on the CPU in eager mode); ``ideal`` for flat input.
    """
    check_choice("ties", ties, TIES)
    check_judgements(judged, ideal, ideal_mask)
    lists, preds, target, items = arrange(preds, target, mask=mask, indexes=indexes, offsets=offsets, judged=judged)
    invalid = None
    if values_are_free(preds):
        check_scores(lists, preds)
        check_grades(lists, target)
    else:
        # A grade that is NaN or infinite would reach other queries by a running sum over flat items.
        bad_grade = torch.isnan(target) | (target == torch.inf)
        invalid = lists.sum((torch.isnan(preds) | bad_grade).long()) > 0
        target = torch.where(bad_grade, 0, target)
    known = items["judged"]
    if known is not None:
        target = target.masked_fill(known.logical_not(), 0)
    judged_items: tuple[Lists, Tensor, Tensor | None] = (lists, target, known)
    if ideal is not None:
        judged_items = (*_judged_items(lists, ideal, ideal_mask), None)
        if values_are_free(target):
            _check_ideal_holds(lists, target, *judged_items[:2])
    if max_items is None or preds.numel() <= max_items or not values_are_free(preds):
        yield _rank(lists, preds, target, known, judged_items, ties, depth, invalid)
        return
    for first, number in lists.blocks(max_items, depth):
        part, take = lists.part(first, number)
        judged_part, take_judged = judged_items[0].part(first, number)
        judged_known = judged_items[2]
        of_part = (judged_part, take_judged(judged_items[1]), None if judged_known is None else take_judged(judged_known))
        yield _rank(part, take(preds), take(target), None if known is None else take(known), of_part, ties, depth, None)


def _rank(
    lists: Lists,
    preds: Tensor,
    target: Tensor,
    known: Tensor | None,
    judged_items: tuple[Lists, Tensor, Tensor | None],
    ties: str,
    depth: int | None,
    invalid: Tensor | None,
) -> Ranking:
    is_free = values_are_free(preds)
    order, key = _order(lists, preds, target, ties, depth)
    ranked = lists.sorted()
    if isinstance(ranked, PaddedLists):
        ranked = ranked.columns(order.shape[-1])
    tied = None
    if ties == "average":
        same = ranked.ties_with_above(key)
        tied = _tied_items(same) if is_free else _all_items(same)
    if depth is not None:
        ranked, take, tied = _first_ranks(ranked, tied, depth, is_free=is_free)
        order = take(order)

    def in_order(values: Tensor) -> Tensor:
        if values.ndim == order.ndim:
            return values.gather(-1, order)
        return values[order].masked_fill(ranked.valid.logical_not(), 0)  # flat lists cut to rows, where looking is free

    del key
    # Memory traffic is what metrics cost beside the sort: float32 but for sums.
    grade = in_order(target).to(value_dtype(preds)).relu_()
    known = None if known is None else in_order(known)
    all_judged = Judged(*judged_items, depth, grade.dtype)
    return Ranking(ranked, grade, known, lists.lengths, tied, all_judged, depth, invalid)


def check_judgements(judged: Tensor | None, ideal: Tensor | None, ideal_mask: Tensor | None) -> None:
    """Raise for ``judged`` that is no bool tensor, or ``ideal_mask`` without ``ideal``."""
    if isinstance(judged, Tensor) and judged.dtype != torch.bool:
        raise TypeError(f"`judged` must be bool, got {judged.dtype}.")
    if ideal is None and ideal_mask is not None:
        raise ValueError("`ideal_mask` was given without `ideal`.")


def _judged_items(lists: Lists, ideal: Tensor, ideal_mask: Tensor | None) -> tuple[Lists, Tensor]:
    if isinstance(lists, JaggedLists):
        raise ValueError("`ideal` needs padded input: give `preds` as [query, item] with a `mask`.")
    if not isinstance(ideal, Tensor) or ideal.ndim != 2 or ideal.shape[0] != lists.num_queries:
        came = list(ideal.shape) if isinstance(ideal, Tensor) else type(ideal).__name__
        raise ValueError(f"`ideal` must be a tensor [{lists.num_queries}, number of judged items], got {came}.")
    judged_lists, ideal, _, _ = arrange(ideal, ideal, mask=ideal_mask)
    if values_are_free(ideal):
        check_grades(judged_lists, ideal)
    return judged_lists, ideal


def _check_ideal_holds(lists: Lists, grade: Tensor, judged_lists: Lists, ideal: Tensor) -> None:
    """Raise unless every retrieved grade above 0 is among the judged ones."""
    for level in torch.unique(grade[grade > 0]):
        missing = lists.count(grade == level) > judged_lists.count(ideal == level)
        if missing.any():
            query = int(missing.nonzero()[0])
            raise ValueError(
                f"`ideal` must hold the grades of all judged items, the retrieved ones too: in {lists.name(query)} the grade "
                f"{level.item():g} was retrieved more often than `ideal` has it."
            )


def _order(lists: Lists, preds: Tensor, target: Tensor, ties: str, depth: int | None) -> tuple[Tensor, Tensor]:
    """Indices that rank the items, and keys in that order that are equal where scores are; see ``Lists.order``."""
    if ties not in ("optimistic", "pessimistic"):
        return lists.order(preds, stable=ties == "stable", depth=depth)
    # Grades first, scores second and stable: tied items then stand in the order of their grades.
    grade = target.to(sum_dtype(target.device)).clamp(min=0)
    by_grade, _ = lists.order(grade if ties == "optimistic" else -grade)
    by_score, key = lists.sorted().order(preds.gather(-1, by_grade), stable=True)
    return by_grade.gather(-1, by_score), key


def _tied_items(same: Tensor) -> Ties | None:
    """From where an item is tied with the one above it, on the CPU; None where none is."""
    # What is tied is little, as a rule, and NumPy has less to do before it begins.
    (later,) = same.numpy().ravel().nonzero()
    if not len(later):
        return None
    starts = np.ones(len(later) + 1, dtype=bool)
    np.not_equal(later[1:], later[:-1] + 1, out=starts[1:-1])
    (begin,) = starts.nonzero()
    size = np.diff(begin) + 1
    run = np.repeat(np.arange(len(size)), size)
    # Each run has an item more than there are later ones in it.
    place = np.arange(len(run)) - (begin[:-1] + np.arange(len(size)))[run]
    first = (later[begin[:-1]] - 1)[run]
    exact = np.float64
    at, run_, first_, size_, place_ = (
        torch.from_numpy(x) for x in (first + place, run, first, size.astype(exact)[run], place.astype(exact))
    )
    return Ties(at, run_, len(size), first_, size_, place_)


def _all_items(same: Tensor) -> Ties:
    """The same without a look at a value: every item, also one that is alone."""
    start, end = run_bounds(same.logical_not())
    size = (end - start + 1).flatten().to(sum_dtype(same.device))
    place = torch.arange(same.shape[-1], device=same.device) - start
    first = torch.arange(same.numel(), device=same.device) - place.flatten()
    return Ties(None, first, same.numel(), first, size, place.flatten().to(size.dtype))
