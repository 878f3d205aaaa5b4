"""Sums over all pairs of items of different grades, in near-linear time and linear memory.

The weight of a pair is a sum of products, a function of one item times a function of the other, where one is above the
other in rank: so what an item needs of all others is, for each grade level, sums of weighted kernels over those above it
and those below (``logistic_sums``). Few levels are summed side by side. Of many, the digits of the level are compared: two
levels are told apart by the highest digit in which they differ, so each digit is a pass over groups of items that agree in
the digits before it, and any number of real-valued grades costs a logarithm. Tied items are put into one place, and their
pairs among each other are added.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log

import torch
from torch import Tensor

from lightning_rank.conventions import sum_dtype, values_are_free
from lightning_rank.functional.faded_sums import FadedSums
from lightning_rank.functional.logistic_sums import LogisticSums, Moments, terms_for
from lightning_rank.functional.pairs import Items, Kernel, PairWeight
from lightning_rank.lists import JaggedLists, Lists, run_bounds

# Up to this number of levels sums lie side by side; more are told apart digit by digit.
MOST_LEVELS = 12
BASE = 6
# Numbers that a CPU works on at a time, in the sums of all levels: intermediate results stay in its cache.
WINDOW = 1 << 16

Factor = Tensor | None


@dataclass(frozen=True)
class Term:
    """One product in the weight of a pair of this item and another one: a number of the other times a number of this item.

    Attributes:
        other: ``[N]``, the number of the other item.
        above, below, tied: that of this item where it is the better one and the other is above it, below it, tied; None is
        0.
        worse_above, worse_below, worse_tied: likewise where this item is the worse one.
    """

    other: Tensor
    above: Factor = None
    below: Factor = None
    tied: Factor = None
    worse_above: Factor = None
    worse_below: Factor = None
    worse_tied: Factor = None

    def map(self, function: Callable[[Tensor], Tensor]) -> Term:
        """The same function of every tensor."""
        mapped = (None if x is None else function(x) for x in vars(self).values())
        return Term(*mapped)  # type: ignore[arg-type]  # None where it was


def terms_of(weight: PairWeight, items: Items) -> list[Term]:
    """The weight of a pair as a sum of products; ``items`` are flat float64."""
    one = torch.ones_like(items.score)
    mean, inner, gain = items.discount, items.inner, items.gain
    kept, cut = one if items.kept is None else items.kept, items.kept is not None
    if weight.kind == "count":
        found = [Term(kept, above=one), Term(one, below=kept, tied=inner)] if cut else [Term(one, one, one)]
        return _both_ways(found, 1, items.weight)
    top = items.kept_discount
    assert gain is not None
    assert mean is not None
    assert top is not None
    if weight.kind == "own":
        found = (
            [Term(kept, above=gain * mean), Term(one, below=gain * top, tied=_times(gain, inner))]
            if cut
            else [Term(one, gain * mean, gain * mean, _times(gain, inner))]
        )
        found = [_weighted(term, items.weight) for term in found]
        own = gain if items.weight is None else gain * items.weight
        return [
            *found,
            Term(own * top, worse_above=one),
            Term(own * mean, worse_below=kept),
            *([] if inner is None else [Term(own, worse_tied=inner)]),
        ]
    of_one, of_gain = _times(gain, inner), None if inner is None else -inner
    if weight.kind == "delta":
        return _both_ways([Term(one, gain, gain, of_one), Term(gain, -one, -one, of_gain)], -1, items.weight)
    # (gain - its gain) * (kept_discount of the upper - kept of the upper * discount of the lower), multiplied out.
    if cut:
        found = [
            Term(top, above=gain),
            Term(kept, above=-gain * mean),
            Term(gain * top, above=-one),
            Term(gain * kept, above=mean),
            Term(one, below=gain * top, tied=of_one),
            Term(mean, below=-gain * kept),
            Term(gain, below=-top, tied=of_gain),
            Term(gain * mean, below=kept),
        ]
    else:
        found = [
            Term(mean, gain, -gain),
            Term(one, -gain * mean, gain * mean, of_one),
            Term(gain * mean, -one, one),
            Term(gain, mean, -mean, of_gain),
        ]
    return _both_ways(found, -1, items.weight)


def _times(a: Tensor, b: Tensor | None) -> Tensor | None:
    return None if b is None else a * b


def _weighted(term: Term, weight: Tensor | None) -> Term:
    """The better item's weight, on this item as the better one."""
    if weight is None:
        return term
    above, below, tied = (None if x is None else x * weight for x in (term.above, term.below, term.tied))
    return replace(term, above=above, below=below, tied=tied)


def _both_ways(found: list[Term], sign: int, weight: Tensor | None) -> list[Term]:
    """Products that are the same, or change their sign, when the better and the worse item change places."""

    def signed(x: Tensor | None) -> Tensor | None:
        return x if x is None or sign > 0 else -x

    if weight is None:
        return [
            replace(t, worse_above=signed(t.above), worse_below=signed(t.below), worse_tied=signed(t.tied)) for t in found
        ]
    worse = [Term(t.other * weight, None, None, None, signed(t.above), signed(t.below), signed(t.tied)) for t in found]
    return [_weighted(t, weight) for t in found] + worse


def near_linear(weight: PairWeight, kernel: Kernel, items: Items, lists: Lists) -> tuple[Tensor, Tensor]:
    """Terms of the sum over all pairs of each query, and its gradient, for the ranked items and shaped like them; float64.

    On a device it waits once, for the number of levels.
    """
    shape, exact = items.score.shape, sum_dtype(items.score.device)
    terms_needed = terms_for(items.score.dtype)
    middle = lists.sum(torch.where(items.rank == lists.spread((lists.lengths - 1) // 2), items.score.to(exact), 0.0))
    # Around the middle item of the query: what does not depend on a shift then is not lost beside it.
    centred = items.score.to(exact) - lists.spread(middle)
    level, num_levels = (None, 1) if weight.every else _levels(items, lists)
    real = lists.valid.expand(shape).flatten()
    query = lists.query if isinstance(lists, JaggedLists) else _rows(shape, items.rank.device)
    flat = replace(items, score=centred, grade=items.grade.nan_to_num(0.0)).map(
        lambda x: x.to(exact).flatten() if x.is_floating_point() else x.flatten()
    )
    found = terms_of(weight, flat)
    if real.numel() and not isinstance(lists, JaggedLists):
        found = [replace(t, other=t.other * real) for t in found]
        # Padding is a list of its own.
        query = query * 2 + real.logical_not()
    tie = None if flat.first is None else torch.arange(query.numel(), device=query.device) - (flat.rank - flat.first)
    value, gradient = torch.zeros_like(flat.score), torch.zeros_like(flat.score)
    base, digits = (num_levels, 1) if num_levels <= MOST_LEVELS else (BASE, _digits(num_levels))
    for digit in range(digits):
        if level is None:
            own, group = torch.zeros_like(query), query
        else:
            flat_level = level.flatten()
            own = torch.div(flat_level, base**digit, rounding_mode="floor") % base
            group = query
        if digits > 1 and level is not None and digit < digits - 1:
            group = query * base ** (digits - 1 - digit) + torch.div(flat_level, base ** (digit + 1), rounding_mode="floor")
            group, order = torch.sort(group, stable=True)

            def ordered(x: Tensor, order: Tensor = order) -> Tensor:
                return x.index_select(0, order)

            here = _Pass(
                weight,
                kernel,
                flat.map(ordered),
                group,
                ordered(own),
                base,
                None if tie is None else ordered(tie),
                terms=terms_needed,
                num_ranks=shape[-1],
            )
            here.add([t.map(ordered) for t in found])
            value.index_add_(0, order, here.value)
            gradient.index_add_(0, order, here.gradient)
        else:
            here = _Pass(weight, kernel, flat, group, own, base, tie, terms=terms_needed, num_ranks=shape[-1])
            here.add(found)
            value += here.value
            gradient += here.gradient
    return torch.where(real, value, 0.0).view(shape), torch.where(real, gradient, 0.0).view(shape)


class _Pass:
    """Sums over the pairs of one digit: ``value`` and ``gradient`` of each item, which add up over digits.

    Args:
        weight, kernel: of a pair.
        items: ``[N]``, descending within each group.
        group: ``[N]`` ascending; only pairs of one group are summed.
        level: ``[N]`` int64; only pairs of different levels are summed, or all if the weight is so.
        num_levels: above all levels.
        tie: ``[N]``, equal for tied items that are next to each other; None: no ties.
        terms: degree of the polynomials.
        num_ranks: no rank is larger.
    """

    def __init__(
        self,
        weight: PairWeight,
        kernel: Kernel,
        items: Items,
        group: Tensor,
        level: Tensor,
        num_levels: int,
        tie: Tensor | None,
        *,
        terms: int,
        num_ranks: int,
    ) -> None:
        score = self.score = items.score
        self.every, self.level, self.num_levels = weight.every, level, num_levels
        first = _changes(group)
        self.start, self.end = run_bounds(first)
        self.slot = None if tie is None else run_bounds(first | _changes(tie))[0]
        self.is_hinge, self.is_count = kernel.margin is not None, kernel.constant
        self.slope, self.margin = (
            (1.0, 1.0 if kernel.margin is None else kernel.margin) if self.is_hinge else (kernel.slope, 1.0)
        )
        self.logistic: LogisticSums | None = None
        self.faded: FadedSums | None = None
        if self.is_hinge:
            self.reach = _reach(score, group, self.end, self.margin)
        elif weight.kind == "delta":
            self.faded = FadedSums(score * self.slope, group, items, terms=terms, top_k=weight.top_k, num_ranks=num_ranks)
        elif not self.is_count:
            self.logistic = LogisticSums(score * self.slope, first, terms=terms)
        self.value, self.gradient, self.linear = torch.zeros_like(score), torch.zeros_like(score), torch.zeros_like(score)

    def add(self, found: list[Term]) -> None:
        """Add the pairs whose weight is a sum of products."""
        windows = [_Window(self, start, size) for start, size in self._windows()]
        if self.faded is not None:
            self._add_faded(self.faded, found, windows)
        else:
            for term in found:
                self._add_term(term, windows)
        if not self.is_count:
            # The part of the cost that is linear in the scores is what its slope says.
            self.value += self.score * self.linear * self.slope
            self.gradient *= self.slope

    def _add_term(self, term: Term, windows: list[_Window]) -> None:
        placed = self._placed(term)
        running = moments = None
        if self.is_count or self.is_hinge or term.above is not None or term.worse_below is not None:
            running = torch.nn.functional.pad(placed.cumsum(-1), (1, 0))
        if self.logistic is not None:
            moments = self.logistic.moments(placed)
        for window in windows:
            here = term.map(window.narrow)
            window.add_tied(here, placed)
            if running is not None:
                window.add_whole(here, running)
                if self.is_hinge:
                    window.add_band(here, running)
            if self.logistic is not None and moments is not None:
                window.add_kernel(here, *window.of_blocks(self.logistic, moments))

    def _add_faded(self, sums: FadedSums, found: list[Term], windows: list[_Window]) -> None:
        """All terms together, as what a block is multiplied with costs more than the products."""
        placed = [self._placed(term) for term in found]
        moments = sums.moments(torch.cat(placed))
        for window in windows:
            sides = [x.tensor_split(len(found)) for pair in window.of_blocks(sums, moments) for x in pair]
            for term, other, above, below, *kernels in zip(found, placed, *sides, strict=True):
                here = term.map(window.narrow)
                window.add_tied(here, other)
                window.add_wrong(here, above, below)
                window.add_kernel(here, (kernels[0], kernels[1]), (kernels[2], kernels[3]))

    def _windows(self) -> list[tuple[int, int]]:
        """Starts and sizes of runs of items that end where no tie is cut; one where values cannot be looked at for nothing."""
        size, total = WINDOW // (1 if self.every else self.num_levels), self.score.numel()
        if total <= size or not values_are_free(self.score):
            return [(0, total)]
        starts = torch.arange(0, total, size)
        if self.slot is not None:
            starts = self.slot.index_select(0, starts).unique_consecutive()
        bounds = [*starts.tolist(), total]
        return [(start, end - start) for start, end in pairwise(bounds)]

    def _placed(self, term: Term) -> Tensor:
        """``[level, N]``: what an item counts on its level; of tied items, all at the first."""
        size = self.score.numel()
        if self.every and self.slot is None:
            return term.other.unsqueeze(0)
        place = torch.arange(size, device=self.score.device) if self.slot is None else self.slot
        if self.every:
            return term.other.new_zeros(size).index_add_(0, place, term.other).unsqueeze(0)
        sums = term.other.new_zeros(self.num_levels * size).index_add_(0, place + size * self.level, term.other)
        return sums.unflatten(0, (self.num_levels, size))


class _Window:
    """The items from ``start`` on of a pass, whose sums over pairs are added to those of the pass."""

    def __init__(self, whole: _Pass, start: int, size: int) -> None:
        self.start, self.size, self.whole = start, size, whole
        self.every, self.is_hinge, self.is_count, self.margin = whole.every, whole.is_hinge, whole.is_count, whole.margin
        self.value, self.gradient, self.linear = map(self.narrow, (whole.value, whole.gradient, whole.linear))
        self.slot = None if whole.slot is None else self.narrow(whole.slot) - start
        self.place = self.slot
        if not self.every:
            place = torch.arange(size, device=self.value.device) if self.slot is None else self.slot
            self.place = place + size * self.narrow(whole.level)

    def narrow(self, x: Tensor) -> Tensor:
        """The part of ``[..., N]``."""
        return x.narrow(-1, self.start, self.size)

    def of_blocks(self, sums: LogisticSums | FadedSums, moments: Moments) -> list[tuple[Tensor, Tensor]]:
        """What ``sums`` has for the items of the window."""
        first = self.start // sums.block
        # Without an item too there is a block.
        found = sums.between(moments, first, max(1, -(-(self.start + self.size) // sums.block) - first))
        skipped = self.start - first * sums.block
        return [(above.narrow(-1, skipped, self.size), below.narrow(-1, skipped, self.size)) for above, below in found]

    def add_whole(self, term: Term, running: Tensor) -> None:
        """All pairs, by running sums: ``[level, N + 1]``, at each item that of the items before it."""
        start, end = self.narrow(self.whole.start), self.narrow(self.whole.end)
        above = self.narrow(running) - running.index_select(-1, start)
        below = running.index_select(-1, end + 1) - running.narrow(-1, self.start + 1, self.size)
        self.add_wrong(term, above, below)
        if self.is_count and term.below is not None:
            self.value += self._lower(below) * term.below

    def add_wrong(self, term: Term, number_above: Tensor, number_below: Tensor) -> None:
        """What all pairs in the wrong order share: 1 in the slope."""
        if term.above is not None:
            above = self._lower(number_above) * term.above
            self.linear -= above
            self.gradient -= above
            if self.is_hinge or self.is_count:
                self.value += above * self.margin
        if term.worse_below is not None and not self.is_count:
            below = self._higher(number_below) * term.worse_below
            self.linear += below
            self.gradient += below

    def add_kernel(self, term: Term, sigmoid: tuple[Tensor, Tensor], softplus: tuple[Tensor, Tensor]) -> None:
        """What is left of the slope and of the cost, the closer two scores the more."""
        (above, below), (cost_above, cost_below) = sigmoid, softplus
        if term.above is not None:
            self.value += self._lower(cost_above) * term.above
            self.gradient += self._lower(above) * term.above
        if term.worse_above is not None:
            self.gradient += self._higher(above) * term.worse_above
        if term.below is not None:
            self.value += self._lower(cost_below) * term.below
            self.gradient -= self._lower(below) * term.below
        if term.worse_below is not None:
            self.gradient -= self._higher(below) * term.worse_below

    def add_band(self, term: Term, running: Tensor) -> None:
        """The hinge of pairs in the right order, but within the margin."""
        up, down = map(self.narrow, self.whole.reach)
        if term.below is not None:
            within = (
                self._lower(running.index_select(-1, down) - running.narrow(-1, self.start + 1, self.size)) * term.below
            )
            self.linear -= within
            self.gradient -= within
            self.value += within * self.margin
        if term.worse_above is not None:
            within = self._higher(self.narrow(running) - running.index_select(-1, up)) * term.worse_above
            self.linear += within
            self.gradient += within

    def add_tied(self, term: Term, placed: Tensor) -> None:
        """Pairs of tied items."""
        if self.slot is None:
            return
        placed = self.narrow(placed)
        slope, cost = (1.0, self.margin) if self.is_hinge or self.is_count else (0.5, log(2))
        if term.tied is not None:
            lower = (self._at(placed) - term.other if self.every else self._lower(placed)) * term.tied
            self.value += cost * lower
            self.gradient -= slope * lower
        if term.worse_tied is not None:
            higher = (self._at(placed) - term.other if self.every else self._higher(placed)) * term.worse_tied
            self.gradient += slope * higher

    def _lower(self, sums: Tensor) -> Tensor:
        """``[level, N]`` sums of each item's place, over the levels below the item's own -> ``[N]``."""
        return self._at(sums if self.every else sums.cumsum(0) - sums)

    def _higher(self, sums: Tensor) -> Tensor:
        return self._at(sums if self.every else sums.sum(0) - sums.cumsum(0))

    def _at(self, sums: Tensor) -> Tensor:
        return sums.flatten() if self.place is None else sums.flatten().index_select(0, self.place)


def _reach(score: Tensor, group: Tensor, end: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """For each item the first one above it that is nearer than the margin, and the first one below it that is not."""
    num_items = score.numel()
    # Thresholds first: an item at the margin itself is out of reach.
    order = torch.sort(torch.cat([score - margin, score]), descending=True, stable=True).indices
    order = order.index_select(0, torch.sort(group.index_select(0, order % max(1, num_items)), stable=True).indices)
    passed = (order >= num_items).cumsum(0)
    down = torch.empty_like(passed).scatter_(0, order, passed).narrow(0, 0, num_items)
    # The other way round, so that both see the same pairs.
    up = torch.searchsorted(down, torch.arange(num_items, device=down.device), right=True)
    return up, down


def _changes(ascending: Tensor) -> Tensor:
    """Where a value differs from the one before it; the first does."""
    if ascending.numel() == 0:
        return torch.zeros_like(ascending, dtype=torch.bool)
    size = ascending.numel() - 1
    differs = ascending.narrow(0, 1, size) != ascending.narrow(0, 0, size)
    return torch.cat([torch.ones_like(ascending.narrow(0, 0, 1), dtype=torch.bool), differs])


def _rows(shape: torch.Size, device: torch.device) -> Tensor:
    return torch.arange(shape[0], device=device).unsqueeze(1).expand(shape).flatten()


def _digits(num_levels: int) -> int:
    digits, reached = 1, BASE
    while reached < num_levels:
        digits, reached = digits + 1, reached * BASE
    return digits


def _levels(items: Items, lists: Lists) -> tuple[Tensor, int]:
    """For each item how many different lower grades its query has, or another number in that order; and a bound of them."""
    grade = items.grade.nan_to_num(0.0)
    if values_are_free(grade) and grade.numel():
        top = grade.max()
        if top < MOST_LEVELS and bool((grade == grade.floor()).all()):
            return grade.long(), int(top) + 1
    order, key = lists.order(-grade)
    step = lists.ties_with_above(key).logical_not() & (lists.position > 0)
    rank = lists.cumsum(step.long())
    level = torch.zeros_like(rank).scatter(-1, order, rank)
    level = torch.where(lists.valid, level, 0)
    if not can_wait(level):
        return level, max(1, level.shape[-1])
    return level, int(level.max()) + 1 if level.numel() else 1


def can_wait(tensor: Tensor) -> bool:
    """Whether a value can be looked at, though a device would be waited for."""
    return values_are_free(tensor) or (
        tensor.device.type not in ("cpu", "meta")
        and not torch.compiler.is_compiling()
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not isinstance(tensor, torch._subclasses.FakeTensor)
    )
