"""How alike two rankings are: rank-biased overlap and Kendall's tau, with ties, of many queries at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lightning_rank.stats.checks import column, number

# Numbers held at once for tied items.
BLOCK = 2**20


def rank_biased_overlap(a: Any, b: Any, *, p: float = 0.9) -> float:
    """How much two rankings overlap, the top ranks most: a user who goes on to the next rank with probability ``p`` sees it.

    It is extrapolated beyond the lists' ends, which need not be equally long. Items of equal score have no order: the value is
    then the exact expectation over all their orders, of both rankings independently, so that a ranking full of ties is not
    wholly like itself.

    Args:
        a: items from the best down, or a mapping of items to scores, higher is better.
        b: the other one.
        p: 0.9 puts 86 % of the weight on the first ten ranks.

    Returns:
        In [0, 1]; 1 for equal rankings without ties, 0 for disjoint ones; NaN where both are empty.

    Raises:
        ValueError: an item is there twice, a score is not finite, p is not between 0 and 1.

    Source: Webber, Moffat and Zobel, "A Similarity Measure for Indefinite Rankings", TOIS 2010, equation 32; ties: Corsi and
        Urbano, "The Treatment of Ties in Rank-Biased Overlap", SIGIR 2024.

    Example:
        >>> round(rank_biased_overlap(["a", "b", "c"], ["b", "a", "c"]), 4)
        0.9
    """
    p = number("p", p, above=0, below=1)
    ranks_a, ranks_b = _ranks("a", a), _ranks("b", b)
    both = [item for item in ranks_a if item in ranks_b]
    first_a, size_a = np.array([ranks_a[item] for item in both], dtype=np.int64).reshape(-1, 2).T
    first_b, size_b = np.array([ranks_b[item] for item in both], dtype=np.int64).reshape(-1, 2).T
    lengths = (np.array([len(ranks_a)]), np.array([len(ranks_b)]))
    return float(overlaps(np.zeros(len(both), np.int64), (first_a, first_b), (size_a, size_b), lengths, p)[0])


def kendall_tau(a: Any, b: Any) -> float:
    """Kendall's tau-b: pairs in the same order minus pairs in opposite order, over the pairs that neither ranking ties.

    Args:
        a: a number per item, higher is better, or a mapping of items to numbers, joined with b on the items both have.
        b: the same of the other ranking.

    Returns:
        In [-1, 1]; NaN where either has no two different numbers.

    Raises:
        ValueError: lengths differ, a number is not finite, a mapping beside a sequence.

    Source: Kendall, "The Treatment of Ties in Ranking Problems", Biometrika 1945; counted in n log n as Knight, "A Computer Method
        for Calculating Kendall's Tau with Ungrouped Data", JASA 1966.

    Example:
        >>> round(kendall_tau([3, 2, 1, 0], [3, 1, 2, 0]), 4)
        0.6667
    """
    if isinstance(a, Mapping) != isinstance(b, Mapping):
        raise ValueError("`a` and `b` must both be mappings of items to numbers, or both sequences of numbers.")
    if isinstance(a, Mapping):
        both = [item for item in a if item in b]
        a, b = [a[item] for item in both], [b[item] for item in both]
    x, y = (column(name, values, least=0) for name, values in (("a", a), ("b", b)))
    if len(x) != len(y):
        raise ValueError(f"`a` and `b` must have a number for each item, got {len(x)} and {len(y)}.")
    return float(taus(np.zeros(len(x), np.int64), x, y, 1)[0])


def _ranks(name: str, ranking: Any) -> dict[Any, tuple[int, int]]:
    """The first rank, from 1, that an item shares with those tied with it, and how many they are."""
    if not isinstance(ranking, Mapping):
        if isinstance(ranking, (str, bytes)) or not isinstance(ranking, Sequence):
            ranking = None if isinstance(ranking, (str, bytes)) else list(ranking)
        if ranking is None:
            raise ValueError(f"`{name}` must be a sequence of items or a mapping of items to scores, got text.")
        ranks = {item: (rank, 1) for rank, item in enumerate(ranking, 1)}
        if len(ranks) < len(ranking):
            raise ValueError(f"`{name}` must have each item once, got {len(ranking)} items of which {len(ranks)} differ.")
        return ranks
    scores = column(name, list(ranking.values()), least=0)
    _, group, sizes = np.unique(-scores, return_inverse=True, return_counts=True)
    first = (np.cumsum(sizes) - sizes + 1)[group]
    return dict(zip(ranking, zip(first.tolist(), sizes[group].tolist(), strict=True), strict=True))


def overlaps(
    query: np.ndarray,
    first: tuple[np.ndarray, np.ndarray],
    size: tuple[np.ndarray, np.ndarray],
    lengths: tuple[np.ndarray, np.ndarray],
    p: float,
) -> np.ndarray:
    """Rank-biased overlap of many pairs of rankings, from the items that both have.

    Args:
        query: ``[item]`` which pair of rankings an item belongs to.
        first: in either ranking, ``[item]`` the first rank, from 1, of those tied with it.
        size: in either ranking, ``[item]`` how many they are; 1 without a tie.
        lengths: ``[query]`` of either ranking.
        p: chance to go on to the next rank.

    Returns:
        ``[query]``; NaN where both are empty.
    """
    number = len(lengths[0])
    short, long = np.minimum(*lengths), np.maximum(*lengths)
    depth = int(long.max(initial=0))
    shared = np.zeros((number, depth + 1))
    alone = (size[0] == 1) & (size[1] == 1)
    np.add.at(shared, (query[alone], np.maximum(*first)[alone]), 1.0)
    shared = np.cumsum(shared, axis=1)
    tied = np.flatnonzero(~alone)
    ranks = np.arange(depth + 1)
    rows = max(1, BLOCK // (depth + 1))
    for start in range(0, len(tied), rows):
        at = tied[start : start + rows]
        inside = np.ones((len(at), depth + 1))
        for of_first, of_size in zip(first, size, strict=True):
            # Of n tied items on ranks t, t + 1, ..., each is among the first d with probability (d - t + 1) / n.
            inside *= np.clip((ranks - of_first[at, None] + 1) / of_size[at, None], 0, 1)
        np.add.at(shared, query[at], inside)

    weight = p**ranks / np.maximum(ranks, 1)
    weight[0] = 0
    within = ranks <= long[:, None]
    beyond = within & (ranks > short[:, None])
    at_short, at_long = shared[np.arange(number), short], shared[np.arange(number), long]
    share = at_short / np.maximum(short, 1)
    total = (shared * weight * within).sum(1) + share * ((ranks - short[:, None]) * weight * beyond).sum(1)
    value = (1 - p) / p * total + ((at_long - at_short) / np.maximum(long, 1) + share) * p**long
    # All weights together are 1 but for rounding.
    return np.where(long > 0, np.clip(value, 0, 1), math.nan)


def taus(query: np.ndarray, x: np.ndarray, y: np.ndarray, number: int) -> np.ndarray:
    """Kendall's tau-b of ``x`` and ``y`` within each of ``number`` queries -> ``[query]``; NaN where undefined."""
    order = np.lexsort((y, x, query))
    query, x, y = query[order], x[order], y[order]
    count = np.bincount(query, minlength=number)
    pairs = _pairs(count)
    same_x, same_both = _tied_pairs(query, number, x), _tied_pairs(query, number, x, y)
    discordant = _inversions(query, y, count)
    by_y = np.lexsort((y, query))
    same_y = _tied_pairs(query, number, y[by_y])
    excess = pairs - same_x - same_y + same_both - 2 * discordant
    divisor = np.sqrt((pairs - same_x) * (pairs - same_y))
    return np.where(divisor > 0, np.clip(excess / np.where(divisor > 0, divisor, 1), -1, 1), math.nan)


def _pairs(count: np.ndarray) -> np.ndarray:
    return count * (count - 1.0) / 2


def _tied_pairs(query: np.ndarray, number: int, *values: np.ndarray) -> np.ndarray:
    """``[query]`` pairs of items that are equal in all values, which are in order."""
    if not len(query):
        return np.zeros(number)
    new = np.ones(len(query), bool)
    new[1:] = (query[1:] != query[:-1]) | np.any([v[1:] != v[:-1] for v in values], axis=0)
    starts = np.flatnonzero(new)
    sizes = np.diff(np.append(starts, len(query)))
    return np.bincount(query[starts], weights=_pairs(sizes), minlength=number)


def _inversions(query: np.ndarray, y: np.ndarray, count: np.ndarray) -> np.ndarray:
    """``[query]`` pairs of items, in the order given, of which the first has the larger ``y``."""
    total = np.zeros(len(count))
    place = np.arange(len(query)) - (np.cumsum(count) - count)[query]
    values = np.unique(y, return_inverse=True)[1]
    width = 1
    while width < count.max(initial=0):
        # Halves of a block are merged; of an item in the right half, those on its left that are larger come after it.
        block, right = place // (2 * width), place // width % 2
        order = np.lexsort((right, values, block, query))
        is_left = right[order] == 0
        of_query, of_block = query[order], block[order]
        new = np.ones(len(order), bool)
        new[1:] = (of_query[1:] != of_query[:-1]) | (of_block[1:] != of_block[:-1])
        run = np.cumsum(new) - 1
        lefts = np.cumsum(is_left)
        in_block = np.bincount(run, weights=is_left)
        before = lefts - (np.cumsum(in_block) - in_block)[run]
        total += np.bincount(of_query, weights=np.where(is_left, 0, in_block[run] - before), minlength=len(count))
        width *= 2
    return total
