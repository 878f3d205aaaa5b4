"""Scores to grades in rank order, once for every metric and cutoff; what ties do to them.

Tied items have no order. Under ``ties="average"`` every metric is the exact expectation over all orders of the tied items
(McSherry and Najork, "Computing information retrieval performance measures efficiently in the presence of tied scores", ECIR
2008). A ``Ranking`` offers the expectations that metrics are made of: the mean of a value over the items tied at a rank, the
expected number of relevant items above a relevant one, the distribution of the first relevant rank. Without ties they are the
plain quantities, and a metric is written once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lightning_rank.conventions import Gain, check_choice, gains_of, sum_dtype, values_are_free
from lightning_rank.conventions import TIES, discount
from lightning_rank.lists import JaggedLists, Lists, PaddedLists, arrange, check_grades, check_scores


class Ranking:
    """The grades of each query in the order of the scores.

    Attributes:
        lists: the layout of the ranked items, possibly only the first ``depth`` of each query.
        grade: grades in rank order, >= 0, float64; 0 in padding.
        rank: 1-based ranks, broadcastable to ``grade``.
        length: ``[Q]`` retrieved items of each query, also where ``grade`` holds only the first ``depth``.
        has_nan: ``[Q]`` bool, a score or grade is NaN; None where that was already an error.
    """

    def __init__(
        self,
        lists: Lists,
        grade: Tensor,
        length: Tensor,
        tied: tuple[Tensor, Tensor] | None,
        judged: tuple[Lists, Tensor],
        depth: int | None,
        has_nan: Tensor | None,
    ) -> None:
        self.lists, self.grade, self.length, self.has_nan = lists, grade, length, has_nan
        self.rank = lists.position + 1
        self._tied, self._judged, self._depth = tied, judged, depth
        self._memo: dict[tuple, Tensor] = {}

    def _once(self, key: tuple, compute: Callable[[], Tensor]) -> Tensor:
        if key not in self._memo:
            self._memo[key] = compute()
        return self._memo[key]

    # What a metric is made of -----------------------------------------------------------------------------------------

    def sum(self, values: Tensor, top_k: int | None = None) -> Tensor:
        """Sum over the ranks of each query, up to ``top_k`` -> ``[Q]``."""
        if top_k is not None and top_k < self.grade.shape[-1]:
            values = values * (self.rank <= top_k)
        return self.lists.sum(values)

    def mean_of_tied(self, values: Tensor) -> Tensor:
        """At each rank the mean of an item value over the items tied there."""
        if self._tied is None:
            return values
        first, last = self._tied
        running = values.cumsum(-1)
        return (running.gather(-1, last) - (running - values).gather(-1, first)) / (last - first + 1)

    def relevant(self, min_relevance: float) -> Tensor:
        """1.0 where an item is relevant, in rank order."""
        return self._once(("relevant", min_relevance), lambda: (self.grade >= min_relevance).to(self.grade.dtype))

    def chance(self, min_relevance: float) -> Tensor:
        """At each rank the probability that a relevant item stands there."""
        return self._once(
            ("chance", min_relevance), lambda: self.mean_of_tied(self.relevant(min_relevance))
        )

    def relevant_above(self, min_relevance: float) -> Tensor:
        """At each rank, if a relevant item stands there, the expected number of relevant items above it."""

        def compute() -> Tensor:
            relevant = self.relevant(min_relevance)
            above = self.lists.cumsum(relevant) - relevant
            if self._tied is None:
                return above
            size, place = self.tie_size(), self.tie_place()
            others = self.chance(min_relevance) * size - 1
            return above.gather(-1, self._tied[0]) + place * others / (size - 1).clamp(min=1)

        return self._once(("relevant_above", min_relevance), compute)

    def chance_of_first(self, min_relevance: float) -> Tensor:
        """At each rank the probability that the first relevant item stands there."""

        def compute() -> Tensor:
            relevant = self.relevant(min_relevance)
            above = self.lists.cumsum(relevant) - relevant
            if self._tied is None:
                return relevant * (above == 0)
            first = self._tied[0]
            size, place = self.tie_size(), self.tie_place()
            inside = (self.chance(min_relevance) * size).round()
            here = (above.gather(-1, first) == 0) & (inside > 0)
            # Of n tied items, r relevant: place j (from 0) is passed without one with probability (n-r-j)/(n-j), while
            # j < n - r; the first comes at place j with r/(n-j) times the product of those before. Sums of logarithms:
            # the binomials of the closed form overflow at a thousand tied items.
            left = size - place
            passable = here & (left > inside)
            passing = torch.log1p(torch.where(passable, -inside / left, 0.0))
            passed = torch.exp(self.lists.cumsum(passing) - passing)
            return torch.where(here & (left >= inside), inside / left * passed, 0.0)

        return self._once(("chance_of_first", min_relevance), compute)

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
        return self._once(("discount",), lambda: discount(self.rank.to(self.grade.dtype)))

    def gain(self, gain: Gain, *, scaled: bool = False) -> Tensor:
        """At each rank the mean gain of the items tied there; ``scaled``: of the query's ``exp2`` gains, over 2^top grade."""
        return self.mean_of_tied(self._gains(self.lists, self.grade, gain, scaled))

    def ideal_dcg(self, top_k: int | None, gain: Gain, *, scaled: bool = False) -> Tensor:
        """``[Q]`` DCG of all judged items in descending order of their grades."""
        lists, grade = self._ideal()
        discounted = self._gains(lists, grade, gain, scaled) * discount((lists.position + 1).to(grade.dtype))
        if top_k is not None and top_k < grade.shape[-1]:
            discounted = discounted * (lists.position < top_k)
        return lists.sum(discounted)

    def _gains(self, lists: Lists, grade: Tensor, gain: Gain, scaled: bool) -> Tensor:
        gains = gains_of(grade, gain, lists.spread(self.top_grade()) if scaled else None)
        # Padding has grade 0, whose gain need not be 0 in a table or a callable.
        return gains if isinstance(gain, str) else gains * lists.valid

    # What is judged ---------------------------------------------------------------------------------------------------

    def num_relevant(self, min_relevance: float) -> Tensor:
        """``[Q]`` relevant items among all judged ones."""
        lists, grade = self._judged
        return self._once(
            ("num_relevant", min_relevance), lambda: lists.sum((grade >= min_relevance).to(grade.dtype))
        )

    def _ideal(self) -> tuple[Lists, Tensor]:
        """All judged grades in descending order, at least as many of each query as any cutoff asks for."""
        lists, grade = self._judged
        if isinstance(lists, PaddedLists) and self._depth is not None and self._depth < grade.shape[-1]:
            ideal = self._once(("ideal",), lambda: torch.topk(grade, self._depth, dim=-1).values)
            return lists.sorted().head(self._depth), ideal
        return lists.sorted(), self._once(("ideal",), lambda: grade.gather(-1, lists.order(grade)))

    def top_grade(self) -> Tensor:
        """``[Q]`` the largest judged grade; 0 where nothing is judged."""
        lists, grade = self._judged
        return self._once(("top_grade",), lambda: lists.max(grade).clamp(min=0))

    @property
    def is_query(self) -> Tensor:
        """``[Q]`` bool: something was retrieved, or something relevant was missed. False is a fully masked row."""
        return (self.length > 0) | (self.top_grade() > 0)


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
    lists, preds, target, items = arrange(preds, target, mask=mask, indexes=indexes, offsets=offsets, judged=judged)
    has_nan = None
    if values_are_free(preds):
        check_scores(lists, preds)
        check_grades(lists, target)
    else:
        bad = torch.isnan(preds) | torch.isnan(target)
        has_nan = lists.sum(bad.long()) > 0
    grade = target.to(sum_dtype(preds.device)).clamp(min=0)
    if items["judged"] is not None:
        if items["judged"].dtype != torch.bool:
            raise TypeError(f"`judged` must be bool, got {items['judged'].dtype}.")
        grade = grade * items["judged"]
    judged_items = (lists, grade)
    if ideal is not None:
        judged_items = _judged_items(lists, ideal, ideal_mask)
    elif ideal_mask is not None:
        raise ValueError("`ideal_mask` was given without `ideal`.")

    order, key = _order(lists, preds, grade, ties)
    tied = None
    if ties == "average":
        new = _starts_new_tie(lists, key)
        if not values_are_free(preds) or not new.all():
            tied = _tie_bounds(new)
    length = lists.lengths
    lists = lists.sorted()
    if tied is None and depth is not None and isinstance(lists, PaddedLists) and depth < order.shape[-1]:
        lists, order = lists.head(depth), order[:, :depth]
    return Ranking(lists, grade.gather(-1, order), length, tied, judged_items, depth, has_nan)


def _judged_items(lists: Lists, ideal: Tensor, ideal_mask: Tensor | None) -> tuple[Lists, Tensor]:
    if isinstance(lists, JaggedLists):
        raise ValueError("`ideal` needs padded input: give `preds` as [query, item] with a `mask`.")
    if not isinstance(ideal, Tensor) or ideal.ndim != 2 or ideal.shape[0] != lists.num_queries:
        came = list(ideal.shape) if isinstance(ideal, Tensor) else type(ideal).__name__
        raise ValueError(f"`ideal` must be a tensor [{lists.num_queries}, number of judged items], got {came}.")
    judged_lists, ideal, _, _ = arrange(ideal, ideal, mask=ideal_mask)
    if values_are_free(ideal):
        check_grades(judged_lists, ideal)
    return judged_lists, ideal.to(sum_dtype(ideal.device)).clamp(min=0)


def _order(lists: Lists, preds: Tensor, grade: Tensor, ties: str) -> tuple[Tensor, Tensor]:
    """Indices that rank the items, and the scores in that order."""
    if ties in ("optimistic", "pessimistic"):
        # Grades first, scores second and stable: tied items then stand in the order of their grades.
        by_grade = lists.order(grade if ties == "optimistic" else -grade)
        order = by_grade.gather(-1, lists.sorted().order(preds.gather(-1, by_grade), stable=True))
    else:
        order = lists.order(preds, stable=ties == "stable")
    return order, preds.gather(-1, order)


def _starts_new_tie(lists: Lists, score: Tensor) -> Tensor:
    """True where an item's score differs from the one above it; every item of the padding counts as different."""
    differs = torch.ones_like(score, dtype=torch.bool)
    ranked = lists.sorted()
    same = (score[..., 1:] == score[..., :-1]) & ((ranked.position > 0) & ranked.valid)[..., 1:]
    return torch.cat([differs[..., :1], ~same], dim=-1)


def _tie_bounds(new: Tensor) -> tuple[Tensor, Tensor]:
    """First and last index, on the last axis, of the tied items at each rank."""
    index = torch.arange(new.shape[-1], device=new.device).expand(new.shape)
    first = torch.where(new, index, 0).cummax(-1).values
    closes = torch.cat([new[..., 1:], torch.ones_like(new[..., :1])], dim=-1)
    last = torch.where(closes, index, new.shape[-1]).flip(-1).cummin(-1).values.flip(-1)
    return first, last
