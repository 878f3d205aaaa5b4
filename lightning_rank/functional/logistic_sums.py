"""Sums of sigmoids and softplus over all pairs of a sorted list, in O(n log n) time and O(n) memory.

With t = exp(-d) for a distance d >= 0 between two scores, sigmoid(-d) = t / (1 + t), log(1 + exp(-d)) = log(1 + t) and their
derivatives are analytic in t on [0, 1], with the nearest singularity at t = -1: a polynomial of degree M in t is as good as
(3 + 2 sqrt 2)^-M = 5.83^-M. And the sum over j of w_j t_ij^m is one running sum over a sorted list, as t_ij^m is a product of
the steps between neighbours. What is computed is the ordinary logistic function to the accuracy of the dtype, no other kernel.

Items are cut into blocks. Pairs inside a block are summed as they are; what lies in other blocks reaches a block as M moments,
each relative to the edge of the block, so that every exponential has a negative exponent: nothing overflows for any scores, and
no value is looked at, on a device either.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import comb

import torch
from torch import Tensor

from lightning_rank.conventions import sum_dtype
from lightning_rank.lists import Lists

# Items of two queries, and neighbours further apart than this, are this far apart: exp(-64) is far below rounding, and no whole
# power of it is a denormal number, which are slow.
GAP = 64.0
# Items per block: all pairs inside a block cost as much as the moments.
BLOCK = 16
# Blocks that a CPU works on at a time, so that intermediate results stay in its cache.
CHUNK = 2048
# Blocks up to which a running sum is made by doubling, which has the fewest steps but not the least work.
MOST_DOUBLED = 1024

KERNELS = ("sigmoid", "slope", "curvature", "softplus")


def terms_for(dtype: torch.dtype) -> int:
    """The degree M that makes a sigmoid as good as scores of this dtype deserve: 6e-10 for float32, 1e-15 for float64."""
    return 20 if dtype == torch.float64 else 12


class LogisticSums:
    """For each item the weighted sums of a kernel of the distance to every item above it, and to every item below it.

    A kernel is a function of the distance d >= 0 of two scores: ``"sigmoid"`` is sigmoid(-d), ``"slope"`` its derivative
    sigmoid(d) sigmoid(-d), ``"curvature"`` the derivative -dslope/dd = slope * (1 - 2 sigmoid(-d)), ``"softplus"``
    log(1 + exp(-d)). What a pair adds beyond it (a 1, or d itself) is a count or a running sum.

    Args:
        score: ``[N]`` float64, query by query, descending within each; equal infinities are tied.
        first: ``[N]`` bool, the first item of each query.
        terms: the degree M of the polynomials, ``terms_for`` the dtype that the scores came in.
    """

    block = BLOCK

    def __init__(self, score: Tensor, first: Tensor, *, terms: int) -> None:
        self.num_items, self.terms = score.numel(), terms
        self.num_blocks = max(1, -(-self.num_items // BLOCK))
        before, after = (score.narrow(0, start, max(0, self.num_items - 1)) for start in (0, min(1, self.num_items)))
        # Padding may lie anywhere; it has weight 0 and ends its query.
        gap = torch.cat([score.new_zeros(min(1, self.num_items)), torch.nan_to_num(before - after, nan=0.0).clamp_(0, GAP)])
        gap.masked_fill_(first, GAP)
        gap = self._cut(gap, GAP)
        # The distance from the first item of the block, and from there to the first item of the next.
        inside = gap.clone()
        inside.narrow(0, 0, 1).zero_()
        self._place = inside.cumsum(0)
        span = self._place.select(0, BLOCK - 1) + torch.cat(
            [gap.select(0, 0).narrow(0, 1, self.num_blocks - 1), gap.new_full((1,), GAP)]
        )
        self._from_start = torch.exp(-self._place)
        self._to_end = torch.exp(self._place - span)
        powers = torch.arange(1, terms + 1, dtype=score.dtype, device=score.device)
        self._passed = torch.exp(powers.unsqueeze(1) * -span)

    def __call__(self, weight: Tensor | None, *kernels: str) -> list[tuple[Tensor, Tensor]]:
        """For each kernel the sums over the items above and over those below, each shaped like ``weight``.

        Args:
            weight: ``[..., N]``, of any sign, 0 in padding; None: 1 for every item.
            kernels: some of ``KERNELS``.
        """
        moments = self.moments(self._place.new_ones(self.num_items) if weight is None else weight)
        parts = [self.between(moments, start, size, kernels) for start, size in self._chunks(moments.weight)]
        return [
            tuple(_join([part[k][side] for part in parts]).narrow(-1, 0, self.num_items) for side in (0, 1))  # type: ignore[misc]
            for k in range(len(kernels))
        ]

    def moments(self, weight: Tensor) -> Moments:
        """What ``between`` needs of ``weight``, ``[..., N]``."""
        weight = self._cut(weight, 0.0)
        above = weight.new_empty((*weight.shape[:-2], self.terms, self.num_blocks))
        below = torch.empty_like(above)
        for start, size in self._chunks(weight):
            for moments, edge in ((above, self._to_end), (below, self._from_start)):
                t = edge.narrow(-1, start, size).contiguous()
                power = weight.narrow(-1, start, size) * t
                rows = moments.narrow(-1, start, size).unbind(-2)
                torch.sum(power, -2, out=rows[0])
                for row in rows[1:]:
                    torch.sum(power.mul_(t), -2, out=row)
        fade = self._passed
        return Moments(weight, _carry(above, fade), _carry(below.flip(-1), fade.flip(-1)).flip(-1))

    def between(
        self, moments: Moments, start: int, size: int, kernels: tuple[str, ...] = ("sigmoid", "softplus")
    ) -> list[tuple[Tensor, Tensor]]:
        """As calling does, for the ``size`` blocks from ``start`` on alone: ``[..., size * BLOCK]``, the last filled up."""
        t_above, t_below, place, own, over, under = (
            x.narrow(-1, start, size).contiguous()
            for x in (self._from_start, self._to_end, self._place, moments.weight, moments.above, moments.below)
        )
        sums = [
            (_evaluate(coefficients, over, t_above), _evaluate(coefficients, under, t_below))
            for coefficients in (coefficients_of(kernel, self.terms) for kernel in kernels)
        ]
        _add_inside(sums, kernels, place, own)
        return [(above.transpose(-1, -2).flatten(-2), below.transpose(-1, -2).flatten(-2)) for above, below in sums]

    def _chunks(self, weight: Tensor) -> list[tuple[int, int]]:
        """Starts and sizes of runs of blocks that fit into the cache of a CPU; on a device, all."""
        size = CHUNK if weight.device.type == "cpu" else self.num_blocks
        return [(start, min(size, self.num_blocks - start)) for start in range(0, self.num_blocks, size)]

    def _cut(self, values: Tensor, fill: float) -> Tensor:
        """``[..., N]`` items as ``[..., BLOCK, blocks]``: blocks lie beside each other, so that every step is contiguous."""
        missing = self.num_blocks * BLOCK - self.num_items
        values = torch.nn.functional.pad(values, (0, missing), value=fill) if missing else values
        return values.unflatten(-1, (self.num_blocks, BLOCK)).transpose(-1, -2).contiguous()


@dataclass(frozen=True)
class Moments:
    """``weight`` cut into blocks, and what lies above each block and below it.

    Attributes:
        weight: ``[..., BLOCK, blocks]``.
        above, below: ``[..., M, blocks]`` sums of weight * exp(-m * distance to the edge of the block).
    """

    weight: Tensor
    above: Tensor
    below: Tensor


def _join(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts, -1) if len(parts) > 1 else parts[0]


def _evaluate(coefficients: tuple[float, ...], moments: Tensor, t: Tensor) -> Tensor:
    """The polynomial in t of each item, by Horner's rule."""
    rows = moments.unsqueeze(-2).unbind(-3)
    total = t * (rows[-1] * coefficients[-1])
    for row, coefficient in zip(rows[-2::-1], coefficients[-2::-1], strict=True):
        total.add_(row, alpha=coefficient).mul_(t)
    return total


def _add_inside(sums: list[tuple[Tensor, Tensor]], kernels: tuple[str, ...], place: Tensor, weight: Tensor) -> None:
    """Add what the pairs inside each block give, all pairs of one distance in positions at a time."""
    for step in range(1, BLOCK):
        rest = BLOCK - step
        left, right = weight.narrow(-2, 0, rest), weight.narrow(-2, step, rest)
        values = _kernels(kernels, place.narrow(0, 0, rest) - place.narrow(0, step, rest))
        for (over, under), value in zip(sums, values, strict=True):
            over.narrow(-2, step, rest).addcmul_(value, left)
            under.narrow(-2, 0, rest).addcmul_(value, right)


def _carry(own: Tensor, fade: Tensor) -> Tensor:
    """The sum of all earlier blocks, each faded by what was passed since; ``[..., M, blocks]``."""
    total = _faded_sum(own, fade)
    return torch.cat([torch.zeros_like(total.narrow(-1, 0, 1)), total.narrow(-1, 0, total.shape[-1] - 1)], -1)


def _faded_sum(own: Tensor, fade: Tensor) -> Tensor:
    """Running sum with total_r = own_r + fade_r * total_(r - 1)."""
    blocks = own.shape[-1]
    if blocks > MOST_DOUBLED:
        return _faded_sum_of_rows(own, fade)
    total, shift = own, 1
    fade = fade.narrow(-1, 1, blocks - 1)
    while shift < blocks:
        # `fade` is what the last `shift` steps to a block leave over, of the blocks from `shift` on.
        rest = blocks - shift
        head, tail = total.narrow(-1, 0, shift), total.narrow(-1, shift, rest)
        total = torch.cat([head, torch.addcmul(tail, fade, total.narrow(-1, 0, rest))], -1)
        rest = max(0, rest - shift)
        fade = fade.narrow(-1, fade.shape[-1] - rest, rest) * fade.narrow(-1, 0, rest)
        shift *= 2
    return total


def _faded_sum_of_rows(own: Tensor, fade: Tensor) -> Tensor:
    """The same by rows of ``BLOCK``: step by step within all rows, then over the rows, which are few."""
    blocks = own.shape[-1]
    rows = -(-blocks // BLOCK)
    own, fade = (
        torch.nn.functional.pad(x, (0, rows * BLOCK - blocks)).unflatten(-1, (rows, BLOCK)).transpose(-1, -2).contiguous()
        for x in (own, fade)
    )
    for k in range(1, BLOCK):
        own.select(-2, k).addcmul_(fade.select(-2, k), own.select(-2, k - 1))
        fade.select(-2, k).mul_(fade.select(-2, k - 1))
    before = _carry(own.select(-2, BLOCK - 1), fade.select(-2, BLOCK - 1))
    own.addcmul_(fade, before.unsqueeze(-2))
    return own.transpose(-1, -2).flatten(-2).narrow(-1, 0, blocks)


def sums_of(lists: Lists, score: Tensor, order: Tensor, *, terms: int) -> LogisticSums:
    """``LogisticSums`` of a batch in any layout, its items flattened in the rank order that ``lists.order`` gave.

    Args:
        lists: the layout before the order was applied.
        score: scores in their own order, of any floating dtype.
        order: indices on the last axis that rank the items.
        terms: as for ``LogisticSums``.
    """
    ranked = score.to(sum_dtype(score.device)).gather(-1, order).flatten()
    first = (lists.sorted().position == 0).expand(score.shape).flatten()
    return LogisticSums(ranked, first, terms=terms)


def _kernels(kernels: tuple[str, ...], distance: Tensor) -> list[Tensor]:
    """Kernels of minus the distance, which is overwritten."""
    values: dict[str, Tensor] = {}
    if "softplus" in kernels:
        values["softplus"] = torch.exp(distance).log1p_()
    if kernels != ("softplus",):
        sigmoid = values["sigmoid"] = distance.sigmoid_()
        if "slope" in kernels or "curvature" in kernels:
            values["slope"] = torch.addcmul(sigmoid, sigmoid, sigmoid, value=-1)
        if "curvature" in kernels:
            values["curvature"] = torch.addcmul(values["slope"], values["slope"], sigmoid, value=-2)
    return [values[kernel] for kernel in kernels]


@lru_cache
def coefficients_of(kernel: str, terms: int) -> tuple[float, ...]:
    """The coefficients of t, t^2, ..., t^M of the polynomial for a kernel.

    t times the interpolant of kernel / t in the Chebyshev points of [0, 1], in rational arithmetic: large integers cancel.
    That of log(1 + t) is the integral of the one for 1 / (1 + t), so that its derivative is exactly the sigmoid's.
    """
    once = _reciprocal_power(1, terms)
    if kernel == "sigmoid":
        exact = once
    elif kernel == "softplus":
        exact = [c / (m + 1) for m, c in enumerate(once)]
    elif kernel == "slope":
        exact = _reciprocal_power(2, terms)
    elif kernel == "curvature":  # t (1 - t) / (1 + t)^3
        exact = [2 * c - b for c, b in zip(_reciprocal_power(3, terms), _reciprocal_power(2, terms), strict=True)]
    else:
        raise ValueError(f"`kernel` must be one of {', '.join(KERNELS)}, got {kernel!r}.")
    return tuple(map(float, exact))


def _reciprocal_power(power: int, points: int) -> list[Fraction]:
    """The interpolant of (1 + t)^-power in the Chebyshev points of [0, 1], the zeros of T_points(2t - 1).

    It is (1 - T S) / u^power with u = 1 + t, where S is the series of 1 / T at u = 0, cut so that the division leaves no rest.
    """
    # T_n(2t - 1) = T_n(2u - 3) as coefficients of u.
    before, chebyshev = [1], [-3, 2]
    for _ in range(points - 1):
        twice = [0, *(4 * c for c in chebyshev)]
        following = [a - 6 * b for a, b in zip(twice, [*chebyshev, 0], strict=True)]
        before, chebyshev = chebyshev, [a - b for a, b in zip(following, [*before, 0, 0], strict=True)]
    series: list[Fraction] = []
    for n in range(power):
        known = sum((chebyshev[n - k] * series[k] for k in range(n)), Fraction(0))
        series.append(((1 if n == 0 else 0) - known) / chebyshev[0])
    product = [Fraction(0)] * (points + power)
    for k, s in enumerate(series):
        for n, c in enumerate(chebyshev):
            product[n + k] += s * c
    quotient = [-c for c in product[power:]]
    return [sum((quotient[n] * comb(n, m) for n in range(m, points)), Fraction(0)) for m in range(points)]
