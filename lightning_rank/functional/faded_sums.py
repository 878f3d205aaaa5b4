"""Logistic sums over all pairs of a sorted list that fade with the distance in rank, in near-linear time.

D(a) - D(a + 1), for the discount D(a) = 1 / log2(1 + a) and a distance a in rank, is completely monotone: a positive
mixture of exp(-b a). With a few of them, each pair is a sum of products exp(-m d) exp(-b a) in the distance d of scores and
a of ranks, which are summed as in ``logistic_sums``: pairs inside a block as they are, all others by moments at the edges
of the blocks. All exponents are negative. A tie stands at its first item; what depends on ranks is the mean over its ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_rank.functional.logistic_sums import Moments, _carry, coefficients_of
from lightning_rank.functional.pairs import Items, PairWeight

BLOCK = 64
# Blocks at a time: what is laid out for them stays in the cache.
CHUNK = 16

# Rates b and shares g of sum g exp(-b a) for D(a) - D(a + 1), within 4.4e-6 of it for a from 1 to 2^20. Fitted by least
# squares of the relative error over log b and log g, at whole a spaced by logarithm, beginning with rates spaced by logarithm
# and non-negative shares; then again with weights that grow where the error is large, until it is even.
# fmt: off
RATES = (
    3.4640347e-07, 5.7097709e-07, 1.1815321e-06, 3.5157468e-06, 8.4978644e-06, 1.7574918e-05, 3.4059202e-05,
    6.4553492e-05, 0.00012155713, 0.00022829392, 0.00042748455, 0.00079707276, 0.0014788945, 0.002732777, 0.005039449,
    0.0092863183, 0.017091897, 0.031371861, 0.057304215, 0.10393504, 0.18677746, 0.33196605, 0.58354832, 1.0191106,
    1.7956706, 3.4045874,
)
SHARES = (
    2.2595654e-09, 5.6313938e-13, 5.0010794e-09, 1.6532355e-08, 3.6283282e-08, 7.4548881e-08, 1.5506042e-07,
    3.2900508e-07, 7.0733833e-07, 1.5329729e-06, 3.3405555e-06, 7.31737e-06, 1.6154277e-05, 3.6148543e-05, 8.2454704e-05,
    0.00019209133, 0.00045701403, 0.0011098351, 0.0027465352, 0.0069012659, 0.017472895, 0.044018901, 0.10869532,
    0.25977759, 0.61000879, 1.7050359,
)
# fmt: on


class FadedSums:
    """For each item weighted sums over the items above it and over those below it, times the mean of D(a) - D(a + 1).

    Args:
        score: ``[N]`` float64, descending within each group.
        group: ``[N]``, equal for the items of a list, which lie together.
        items: ``[N]`` ranks of the items; in order within each group.
        terms: degree of the polynomials for the kernels.
        top_k: a pair counts where its upper item is within the cutoff.
        num_ranks: no rank is larger.
    """

    block = BLOCK

    def __init__(
        self, score: Tensor, group: Tensor, items: Items, *, terms: int, top_k: int | None, num_ranks: int
    ) -> None:
        self.num_items, self.top_k, self.num_ranks = score.numel(), top_k, num_ranks
        self.num_blocks = max(1, -(-self.num_items // BLOCK))
        first = items.rank if items.first is None else items.first
        last = items.rank if items.last is None else items.last
        self.is_tied = items.first is not None
        self.score, self.group = self._cut(score), self._cut(group, -1)
        self.first, self.last = self._cut(first), self._cut(last)
        dtype, device = score.dtype, score.device
        self.rates = torch.tensor(RATES, dtype=dtype, device=device)
        shares = torch.tensor(SHARES, dtype=dtype, device=device)
        powers = torch.arange(terms + 1, dtype=dtype, device=device)
        kernels = [[1.0] + [0.0] * terms] + [[0.0, *coefficients_of(kernel, terms)] for kernel in ("sigmoid", "softplus")]
        self.coefficients = (shares.unsqueeze(1) * torch.tensor(kernels, dtype=dtype, device=device).unsqueeze(1)).flatten(
            1
        )
        self.powers = powers
        # The edge behind each block: the score and the last rank of the tie that it ends in.
        edges = [x.select(1, BLOCK - 1) for x in (self.score, self.last, self.group)]
        self.score_edge, self.rank_edge, self.group_edge = edges
        previous = [
            torch.cat([x.new_full((1,), fill), x.narrow(0, 0, self.num_blocks - 1)])
            for x, fill in zip(edges, (0.0, 0, -2), strict=True)
        ]
        self.score_before, self.rank_before, self.group_before = previous
        self.passed = self._fade(
            self.score_before - self.score_edge, self.rank_edge - self.rank_before, self.group_before == self.group_edge
        )

    def moments(self, weight: Tensor) -> Moments:
        """What ``between`` needs of ``weight``, ``[C, N]``: not 0 only for the first item of a tie."""
        weight = self._cut(weight.T)
        above = weight.new_empty(self.num_blocks, self.coefficients.shape[1], weight.shape[-1])
        below = torch.empty_like(above)
        for piece in self._pieces(0, self.num_blocks):
            upper, lower = self._factors(piece)
            torch.bmm(upper.transpose(1, 2), weight.narrow(0, *piece), out=above.narrow(0, *piece))
            torch.bmm(lower.transpose(1, 2), weight.narrow(0, *piece), out=below.narrow(0, *piece))
        fade = self.passed.T
        above = _carry(above.permute(2, 1, 0), fade).permute(2, 0, 1)
        below = _carry(below.permute(2, 1, 0).flip(-1), fade.flip(-1)).flip(-1).permute(2, 0, 1)
        return Moments(weight, above, below)

    def between(self, moments: Moments, start: int, size: int) -> list[tuple[Tensor, Tensor]]:
        """Sums of 1, sigmoid(-d) and log(1 + exp(-d)) for pairs d apart, over those above and those below.

        Of the ``size`` blocks from ``start`` on, ``[C, size * BLOCK]``; only those of the first item of a tie mean something.
        """
        columns = moments.weight.shape[-1]
        pieces: list[list[Tensor]] = [[] for _ in range(6)]
        for piece in self._pieces(start, size):
            upper, lower = self._factors(piece)
            inside = self._inside(piece)
            own = moments.weight.narrow(0, *piece)
            for side, (edge, factor) in enumerate(((moments.above, lower), (moments.below, upper))):
                # What each kernel makes of a moment.
                wanted = edge.narrow(0, *piece).unsqueeze(1) * self.coefficients.unsqueeze(1)
                far = torch.bmm(factor, wanted.flatten(1, 2).transpose(1, 2))
                for k, matrix in enumerate(inside):
                    near = torch.bmm(matrix if side == 0 else matrix.transpose(1, 2), own)
                    pieces[2 * k + side].append(far.narrow(2, k * columns, columns) + near)
        # Not `.contiguous()`, which fails on fake CUDA tensors.
        sums = [torch.cat(whole).flatten(0, 1).T.clone(memory_format=torch.contiguous_format) for whole in pieces]
        return list(zip(sums[::2], sums[1::2], strict=True))

    def _cut(self, values: Tensor, fill: float = 0) -> Tensor:
        """``[N, ...]`` as ``[blocks, BLOCK, ...]``."""
        missing = self.num_blocks * BLOCK - self.num_items
        if missing:
            values = torch.cat([values, values.new_full((missing, *values.shape[1:]), fill)])
        return values.unflatten(0, (self.num_blocks, BLOCK))

    def _pieces(self, start: int, size: int) -> list[tuple[int, int]]:
        step = CHUNK if self.score.device.type == "cpu" else max(1, size)
        return [(first, min(step, start + size - first)) for first in range(start, start + size, step)]

    def _fade(self, scores: Tensor, ranks: Tensor, same: Tensor) -> Tensor:
        """``[..., rates * powers]`` of exp(-power * scores - rate * ranks), 0 between groups."""
        by_rank = torch.exp(-self.rates * ranks.clamp(min=0).unsqueeze(-1)) * same.unsqueeze(-1)
        by_score = torch.exp(-self.powers * scores.clamp(min=0).unsqueeze(-1))
        return (by_rank.unsqueeze(-1) * by_score.unsqueeze(-2)).flatten(-2)

    def _factors(self, piece: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """``[block, item, moment]``: of an item as the upper one, to the edge below, and as the lower one, from that above."""
        score, first, last, group = (x.narrow(0, *piece) for x in (self.score, self.first, self.last, self.group))
        here, before = (
            [x.narrow(0, *piece).unsqueeze(1) for x in edges]
            for edges in (
                (self.score_edge, self.rank_edge, self.group_edge),
                (self.score_before, self.rank_before, self.group_before),
            )
        )
        upper = self._fade(score - here[0], here[1] - last, group == here[2])
        lower = self._fade(before[0] - score, first - before[1], group == before[2])
        if not self.is_tied and self.top_k is None:
            return upper, lower
        size = last - first + 1
        kept = size if self.top_k is None else torch.minimum(size, self.top_k - first).clamp(min=0)
        # Geometric sums over the ranks of the tie, from its edge that faces the other item.
        each = torch.expm1(-self.rates)
        mean_upper = torch.exp(-self.rates * (size - kept).unsqueeze(-1)) * torch.expm1(-self.rates * kept.unsqueeze(-1))
        mean_lower = torch.expm1(-self.rates * size.unsqueeze(-1))
        scale = each * size.unsqueeze(-1)
        powers = self.powers.numel()
        upper *= (mean_upper / scale).repeat_interleave(powers, -1)
        lower *= (mean_lower / scale).repeat_interleave(powers, -1)
        return upper, lower

    def _inside(self, piece: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        """For each kernel ``[block, lower item, upper item]`` of the pairs inside a block."""
        score, first, last, group = (x.narrow(0, *piece) for x in (self.score, self.first, self.last, self.group))
        items = Items(score, score, first, first=first if self.is_tied else None, last=last if self.is_tied else None)
        a, b = items.map(lambda x: x.unsqueeze(1)), items.map(lambda x: x.unsqueeze(2))
        place = torch.arange(BLOCK, device=score.device)
        counts = (place.unsqueeze(0) < place.unsqueeze(1)) & (group.unsqueeze(1) == group.unsqueeze(2))
        fade = PairWeight("delta", self.top_k).delta(a, b, self.num_ranks) * counts
        t = torch.exp((b.score - a.score).clamp(max=0))
        return fade, fade * (t / (1 + t)), fade * torch.log1p(t)
