"""Scores to grades in rank order, once for every metric and cutoff; what ties do to them.

Tied items have no order. Under ``ties="average"`` every metric is the exact expectation over all orders of the tied items
(McSherry and Najork, "Computing information retrieval performance measures efficiently in the presence of tied scores", ECIR
2008). A ``Ranking`` offers the expectations that metrics are made of: the mean of a value over the items tied at a rank, the
expected number of relevant items above a relevant one, the distribution of the first relevant rank. Without ties they are the
plain quantities, and a metric is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from lightning_rank.conventions import TIES, Gain, check_choice, discount, gains_of, sum_dtype, value_dtype, values_are_free
from lightning_rank.lists import JaggedLists, Lists, PaddedLists, arrange, check_grades, check_scores

# Up to this grade the ideal DCG is counted by levels; beyond it, or with fractions, grades are sorted.
MOST_LEVELS = 16


class Judged:
    """The grades of all judged items of each query, retrieved or not: what an ideal order is made of."""

    def __init__(self, lists: Lists, grade: Tensor, known: Tensor | None, depth: int | None, *, whole: bool) -> None:
        """``known``: False where nobody judged an item, None if all are judged; ``depth``: the largest cutoff to come, None if
        there is a metric without; ``whole``: grades are whole numbers."""
        self._lists, self._grade, self._known, self._depth, self._whole = lists, grade, known, depth, whole
        self._memo: dict[Hashable, Tensor] = {}

    def num_relevant(self, min_relevance: float) -> Tensor:
        """``[Q]`` items of at least this grade."""
        if min_relevance not in self._memo:
            # Padding has grade 0, and `min_relevance` is above 0.
            relevant = (self._grade >= min_relevance).to(self._grade.dtype)
            self._memo[min_relevance] = self._lists.sum(relevant).to(sum_dtype(self._grade.device))
        return self._memo[min_relevance]

    def num_other(self, min_relevance: float) -> Tensor:
        """``[Q]`` judged items of a lower grade."""
        judged = self._lists.lengths if self._known is None else self._lists.sum(self._known)
        return judged - self.num_relevant(min_relevance)

    def beyond(self, gain: Gain) -> Tensor:
        """``[Q]`` bool: an item has no gain, as its grade is beyond the table."""
        gains = gains_on(self._lists, self._grade, gain, None)
        return self._lists.sum(torch.isnan(gains).long()) > 0

    def top_grade(self) -> Tensor:
        """``[Q]`` the largest grade; 0 where nothing is judged."""
        if "top" not in self._memo:
            self._memo["top"] = self._lists.max(self._grade).clamp(min=0)
        return self._memo["top"]

    def ideal_dcg(self, top_k: int | None, gain: Gain, scaled: bool) -> Tensor:
        """``[Q]`` DCG of the items in descending order of their grades."""
        if self._has_few_levels():
            return self._ideal_dcg_of_levels(top_k, gain, scaled)
        lists, grade = self._sorted()
        discounted = gains_on(lists, grade, gain, self.top_grade() if scaled else None)
        discounted = discounted * discount((lists.position + 1).to(grade.dtype))
        if top_k is not None and top_k < grade.shape[-1]:
            discounted = discounted * (lists.position < top_k)
        return lists.sum(discounted).to(sum_dtype(grade.device))

    def _has_few_levels(self) -> bool:
        """Whether grades are known to be a few whole numbers, so that counting them is cheaper than a sort."""
        if not values_are_free(self._grade) or self._grade.numel() == 0:
            return False
        if "few levels" not in self._memo:
            few = self.top_grade().max() <= MOST_LEVELS
            self._memo["few levels"] = few if self._whole or not few else (self._grade == self._grade.floor()).all()
        return bool(self._memo["few levels"])

    def _ideal_dcg_of_levels(self, top_k: int | None, gain: Gain, scaled: bool) -> Tensor:
        # The items of grade v or more fill the first ranks, so that each level adds the step of its gain to all of them.
        device, dtype = self._grade.device, sum_dtype(self._grade.device)
        levels = torch.arange(int(self.top_grade().max()) + 1, dtype=dtype, device=device)
        top = self.top_grade().to(dtype).unsqueeze(1) if scaled else None
        gains = gains_of(levels, gain, top).expand(self._lists.num_queries, -1)
        steps = torch.cat([gains[:, :1], gains.diff(dim=1)], dim=1)
        at_least = [self._lists.lengths, *(self.num_relevant(level) for level in range(1, len(levels)))]
        reach = torch.stack([count.long() for count in at_least], dim=1)
        longest = int(self._lists.lengths.max())
        depth = longest if top_k is None else min(top_k, longest)
        ranks = torch.arange(1, depth + 1, dtype=dtype, device=device)
        summed = torch.cat([ranks.new_zeros(1), discount(ranks).cumsum(0)])
        return (steps * summed[reach.clamp(max=depth)]).sum(1)

    def _sorted(self) -> tuple[Lists, Tensor]:
        """The grades in descending order, at least as many of each query as any cutoff asks for."""
        lists, grade = self._lists, self._grade
        if isinstance(lists, PaddedLists) and self._depth is not None and self._depth < grade.shape[-1]:
            lists = lists.sorted().head(self._depth)
            if "sorted" not in self._memo:
                self._memo["sorted"] = torch.topk(grade, self._depth, dim=-1).values
        elif "sorted" not in self._memo:
            self._memo["sorted"] = grade.gather(-1, lists.order(grade)[0])
        return lists.sorted(), self._memo["sorted"]


class Ranking:
    """The grades of each query in the order of the scores.

    Attributes:
        lists: the layout of the ranked items, possibly only the first ones of each query.
        grade: grades in rank order, >= 0; 0 in padding. float64, but float32 for float32 scores without ties, whose values
            need no more.
        rank: 1-based ranks, broadcastable to ``grade``.
        known: bool in rank order, False where nobody judged an item; None if all are judged.
        length: ``[Q]`` retrieved items of each query, also where ``grade`` holds only the first ones.
        judged: all judged items.
        invalid: ``[Q]`` bool, a score or grade is NaN or beyond the scale; None where that was already an error.
    """

    def __init__(
        self,
        lists: Lists,
        grade: Tensor,
        known: Tensor | None,
        length: Tensor,
        tied: tuple[Tensor, Tensor] | None,
        judged: Judged,
        invalid: Tensor | None,
    ) -> None:
        self.lists, self.grade, self.known, self.length = lists, grade, known, length
        self.judged, self.invalid = judged, invalid
        self.rank = lists.position + 1
        self._tied = tied
        self._heads: dict[int, Ranking] = {}
        self._memo: dict[Hashable, Tensor] = {}

    def _once(self, key: Hashable, compute: Callable[[], Tensor]) -> Tensor:
        if key not in self._memo:
            self._memo[key] = compute()
        return self._memo[key]

    def mark_beyond(self, bad: Tensor) -> None:
        """Mark queries, ``[Q]`` bool, that have a grade beyond the scale of a metric; where looking is free it has raised."""
        self.invalid = bad if self.invalid is None else self.invalid | bad

    def head(self, top_k: int | None) -> Ranking:
        """The first ``top_k`` ranks as a ranking of their own where no tie can cross the cutoff; otherwise all of it."""
        if top_k is None or self._tied is not None or not isinstance(self.lists, PaddedLists):
            return self
        if top_k >= self.grade.shape[-1]:
            return self
        if top_k not in self._heads:
            known = None if self.known is None else self.known.narrow(1, 0, top_k)
            self._heads[top_k] = Ranking(
                self.lists.head(top_k), self.grade.narrow(1, 0, top_k), known, self.length, None, self.judged, self.invalid
            )
        return self._heads[top_k]

    def sum(self, values: Tensor, top_k: int | None = None) -> Tensor:
        """Sum over the ranks of each query, up to ``top_k`` -> ``[Q]``."""
        if top_k is not None and top_k < self.grade.shape[-1]:
            values = values * (self.rank <= top_k)
        return self.lists.sum(values).to(sum_dtype(values.device))

    def mean_of_tied(self, values: Tensor) -> Tensor:
        """At each rank the mean of an item value over the items tied there."""
        if self._tied is None:
            return values
        # Sums by tie, not differences of a running sum: 2^128 in one query would swallow the gains of the next.
        tie = self._tied[0]
        if tie.ndim == 2:
            tie = tie + tie.shape[1] * torch.arange(tie.shape[0], device=tie.device).unsqueeze(1)
        tie = tie.flatten()
        total = torch.zeros_like(values).flatten().index_add(0, tie, values.flatten())
        return total.index_select(0, tie).view_as(values) / self.tie_size()

    def gain(self, gain: Gain, *, scaled: bool = False) -> Tensor:
        """At each rank the mean gain of the items tied there; ``scaled``: exp2 gains over 2^(largest grade of the query)."""
        return self.mean_of_tied(gains_on(self.lists, self.grade, gain, self.judged.top_grade() if scaled else None))

    def relevant(self, min_relevance: float) -> Tensor:
        """1.0 where an item is relevant, in rank order."""
        return self._once(
            ("relevant", min_relevance),
            lambda: (self.grade >= min_relevance).to(self.grade.dtype),
        )

    def chance(self, min_relevance: float) -> Tensor:
        """At each rank the probability that a relevant item stands there."""
        return self._once(("chance", min_relevance), lambda: self.mean_of_tied(self.relevant(min_relevance)))

    def _found(self, min_relevance: float) -> Tensor:
        """Relevant items down to each, in the order of the sort."""
        return self._once(("found", min_relevance), lambda: self.lists.cumsum(self.relevant(min_relevance)))

    def expected_precision(self, min_relevance: float) -> Tensor:
        """At each rank the precision down to it, if a relevant item stands there, times the chance that one does."""
        found, relevant = self._found(min_relevance), self.relevant(min_relevance)
        if self._tied is None:
            return relevant * found / self.rank
        # Of the r relevant among n tied items, one at place j (from 0) expects j (r - 1) / (n - 1) more of them above it.
        above = (found - relevant).gather(-1, self._tied[0])
        chance, size = self.chance(min_relevance), self.tie_size()
        above = above + self.tie_place() * (chance * size - 1) / (size - 1).clamp(min=1)
        return chance * (above + 1) / self.rank

    def other(self, min_relevance: float, *, known: bool) -> Tensor:
        """1.0 where an item is not relevant, in rank order; ``known``: and somebody judged it."""

        def compute() -> Tensor:
            other = (self.grade < min_relevance) & self.lists.valid
            return (other if self.known is None or not known else other & self.known).to(self.grade.dtype)

        return self._once(("other", min_relevance, known), compute)

    def others_above_and_tied(self, min_relevance: float, *, known: bool) -> tuple[Tensor, Tensor]:
        """At each rank how many not relevant items stand above all items tied there, and how many are among them."""
        other = self.other(min_relevance, known=known)
        above = self.lists.cumsum(other) - other
        if self._tied is None:
            return above, torch.zeros_like(above)
        return above.gather(-1, self._tied[0]), (self.mean_of_tied(other) * self.tie_size()).round()

    def chance_of_first(self, min_relevance: float) -> Tensor:
        """At each rank the probability that the first relevant item stands there."""

        def compute() -> Tensor:
            found, relevant = self._found(min_relevance), self.relevant(min_relevance)
            if self._tied is None:
                return relevant * (found == 1)
            size, place = self.tie_size(), self.tie_place()
            inside = (self.chance(min_relevance) * size).round()
            here = ((found - relevant).gather(-1, self._tied[0]) == 0) & (inside > 0)
            # Of n tied items, r relevant: place j (from 0) is passed without one with probability (n-r-j)/(n-j), while
            # j < n - r; the first comes at place j with r/(n-j) times the product of those before. Sums of logarithms:
            # the binomials of the closed form overflow at a thousand tied items.
            left = size - place
            passing = torch.log1p(torch.where(here & (left > inside), -inside / left, 0.0))
            passed = torch.exp(self.lists.cumsum(passing) - passing)
            return torch.where(here & (left >= inside), inside / left * passed, 0.0)

        return self._once(("first", min_relevance), compute)

    def chance_to_stop(self, satisfied: Tensor, top_k: int | None) -> Tensor:
        """At each rank up to ``top_k`` the probability that a user stops there; each item stops one with that probability."""
        # Where rounding makes an item certain to satisfy, -1000 passes nobody just as -infinity does, and stays a number.
        passing = torch.log1p(-satisfied).clamp(min=-1000)
        if self._tied is None:
            return torch.exp(self.lists.cumsum(passing) - passing) * satisfied
        first, last = self._tied
        size, place = self.tie_size(), self.tie_place()
        reach = torch.exp((self.lists.cumsum(passing) - passing).gather(-1, first))
        longest = size.shape[-1] if isinstance(self.lists, PaddedLists) and not values_are_free(size) else int(size.max())
        if top_k is not None and isinstance(self.lists, PaddedLists):
            width = min(top_k, size.shape[-1])
            first, last, size, place = (x.narrow(1, 0, width) for x in (first, last, size, place))
        # passed[j]: the probability to pass the first j tied items, over all their orders: the elementary symmetric
        # polynomials of the single probabilities over the binomials, built up item by item.
        number = place + 1
        passed = torch.zeros_like(satisfied.narrow(-1, 0, size.shape[-1]))
        for step in range(longest):
            item = 1 - satisfied.gather(-1, (first + step).minimum(last))
            grown = ((step + 1 - number) * passed + number * item * self._passed_before(passed, place)) / (step + 1)
            passed = torch.where((step < size) & (number <= step + 1), grown, passed)
        stops = self._passed_before(passed, place) - passed
        return torch.nn.functional.pad(stops, (0, reach.shape[-1] - stops.shape[-1])) * reach

    @staticmethod
    def _passed_before(passed: Tensor, place: Tensor) -> Tensor:
        return torch.where(place == 0, 1.0, passed.roll(1, -1))

    def tie_size(self) -> Tensor:
        """At each rank the number of items tied there."""
        return torch.ones_like(self.grade) if self._tied is None else self._tied[1] - self._tied[0] + 1

    def tie_place(self) -> Tensor:
        """At each rank the 0-based place within the tied items."""
        if self._tied is None:
            return torch.zeros_like(self.grade)
        return torch.arange(self.grade.shape[-1], device=self.grade.device) - self._tied[0]

    @property
    def is_tied(self) -> bool:
        """Whether ties may matter; False means that every item has a rank of its own."""
        return self._tied is not None

    def discount(self) -> Tensor:
        """1 / log2(rank + 1)."""
        exact = sum_dtype(self.grade.device)
        return self._once("discount", lambda: discount(self.rank.to(exact)).to(self.grade.dtype))

    def num_relevant(self, min_relevance: float) -> Tensor:
        """``[Q]`` relevant items among all judged ones."""
        return self.judged.num_relevant(min_relevance)

    @property
    def is_query(self) -> Tensor:
        """``[Q]`` bool: something was retrieved, or something relevant was missed. False is a fully masked row."""
        return (self.length > 0) | (self.judged.top_grade() > 0)


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
    """Sort each query's items by score, descending.

    Args:
        preds, target, mask, indexes, offsets: as for ``lists.arrange``.
        judged: bool like ``preds``; False is an item that nobody judged, and counts as not relevant.
        ideal: ``[Q, M]`` grades of all judged items of each query, for padded ``preds``; None: the list itself.
        ideal_mask: bool like ``ideal``.
        ties: what tied items do, one of ``conventions.TIES``.
        depth: the largest cutoff that will be asked for; None: the whole list.

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
    order, key = _order(lists, preds, target, ties)
    tied = None
    if ties == "average":
        same = lists.ties_with_above(key)
        if not values_are_free(preds) or same.any():
            tied = _tie_bounds(same.logical_not())
    # Memory traffic is what metrics cost beside the sort.
    is_short = tied is None and isinstance(lists, PaddedLists) and preds.shape[-1] < 2**20
    dtype = value_dtype(preds) if is_short else sum_dtype(preds.device)
    grade = target.to(dtype, copy=True).relu_()
    if items["judged"] is not None:
        grade = grade * items["judged"]
    known = items["judged"]
    judged_items = (lists, grade, known)
    if ideal is not None:
        judged_items = (*_judged_items(lists, ideal, ideal_mask, dtype), None)
        if values_are_free(grade):
            _check_ideal_holds(lists, grade, *judged_items[:2])
    whole = not (target if ideal is None else ideal).is_floating_point()

    length = lists.lengths
    lists = lists.sorted()
    if tied is None and depth is not None and isinstance(lists, PaddedLists) and depth < order.shape[-1]:
        lists, order = lists.head(depth), order.narrow(1, 0, depth)
    known = None if known is None else known.gather(-1, order)
    all_judged = Judged(*judged_items, depth, whole=whole)
    return Ranking(lists, grade.gather(-1, order), known, length, tied, all_judged, invalid)


def check_judgements(judged: Tensor | None, ideal: Tensor | None, ideal_mask: Tensor | None) -> None:
    """Raise for ``judged`` that is no bool tensor, or ``ideal_mask`` without ``ideal``."""
    if isinstance(judged, Tensor) and judged.dtype != torch.bool:
        raise TypeError(f"`judged` must be bool, got {judged.dtype}.")
    if ideal is None and ideal_mask is not None:
        raise ValueError("`ideal_mask` was given without `ideal`.")


def _judged_items(lists: Lists, ideal: Tensor, ideal_mask: Tensor | None, dtype: torch.dtype) -> tuple[Lists, Tensor]:
    if isinstance(lists, JaggedLists):
        raise ValueError("`ideal` needs padded input: give `preds` as [query, item] with a `mask`.")
    if not isinstance(ideal, Tensor) or ideal.ndim != 2 or ideal.shape[0] != lists.num_queries:
        came = list(ideal.shape) if isinstance(ideal, Tensor) else type(ideal).__name__
        raise ValueError(f"`ideal` must be a tensor [{lists.num_queries}, number of judged items], got {came}.")
    judged_lists, ideal, _, _ = arrange(ideal, ideal, mask=ideal_mask)
    if values_are_free(ideal):
        check_grades(judged_lists, ideal)
    return judged_lists, ideal.to(dtype).clamp(min=0)


def _check_ideal_holds(lists: Lists, grade: Tensor, judged_lists: Lists, ideal: Tensor) -> None:
    """Raise unless every retrieved grade above 0 is among the judged ones."""
    for level in torch.unique(grade[grade > 0]):
        missing = lists.sum(grade == level) > judged_lists.sum(ideal == level)
        if missing.any():
            query = int(missing.nonzero()[0])
            raise ValueError(
                f"`ideal` must hold the grades of all judged items, the retrieved ones too: in {lists.name(query)} the grade "
                f"{level.item():g} was retrieved more often than `ideal` has it."
            )


def _order(lists: Lists, preds: Tensor, target: Tensor, ties: str) -> tuple[Tensor, Tensor]:
    """Indices that rank the items, and keys in that order that are equal where scores are."""
    if ties not in ("optimistic", "pessimistic"):
        return lists.order(preds, stable=ties == "stable")
    # Grades first, scores second and stable: tied items then stand in the order of their grades.
    grade = target.to(sum_dtype(target.device)).clamp(min=0)
    by_grade, _ = lists.order(grade if ties == "optimistic" else -grade)
    by_score, key = lists.sorted().order(preds.gather(-1, by_grade), stable=True)
    return by_grade.gather(-1, by_score), key


def _tie_bounds(new: Tensor) -> tuple[Tensor, Tensor]:
    """First and last index, on the last axis, of the tied items at each rank."""
    index = torch.arange(new.shape[-1], device=new.device).expand(new.shape)
    if new.shape[-1] == 0:
        return index, index
    first = torch.where(new, index, 0).cummax(-1).values
    closes = torch.cat([new.narrow(-1, 1, new.shape[-1] - 1), torch.ones_like(new.narrow(-1, 0, 1))], dim=-1)
    last = torch.where(closes, index, new.shape[-1]).flip(-1).cummin(-1).values.flip(-1)
    return first, last
