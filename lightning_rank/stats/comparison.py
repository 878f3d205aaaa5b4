"""Two rankers on the same queries."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_rank.stats.checks import check_choice, column, probability, whole
from lightning_rank.stats.distributions import critical, cumulative, p_of, special
from lightning_rank.stats.results import Result, show, show_interval, show_p

TESTS = ("t", "randomization", "bootstrap", "wilcoxon")

# Values of a query that are closer than this are tied: 0.1 + 0.2 with 0.3.
TIE = 1e-9
# So many queries have few enough sign flips, 2^20, to take them all.
EXACT_FLIPS = 20
# So many have few enough sums of ranks to count them all.
EXACT_RANKS = 50
# Numbers held at once, so that memory does not grow with queries times resamples.
BLOCK = 2**20


@dataclass(frozen=True)
class PairedComparison(Result):
    """Two rankers compared on the same queries, b - a.

    Attributes:
        n: queries compared.
        value_a, value_b: means over them.
        difference: mean of b - a.
        low, high: interval of the difference.
        pvalue: two-sided, of the test.
        statistic: of the test: t, also for the bootstrap; the difference for randomization; for Wilcoxon the smaller of the
            sums of the ranks of wins and of losses.
        effect_size: mean of the differences / their standard deviation (d_z); 0 where there are none, infinite where all
            are the same.
        wins, ties, losses: queries where b is better, as good (within 1e-9), worse.
        degenerate: whether all differences are the same, so that their spread says nothing.
        dropped: queries left out as only one of the rankers has them.
        test: its name.
        alpha: 1 - the level of the interval.
    """

    n: int
    value_a: float
    value_b: float
    difference: float
    low: float
    high: float
    pvalue: float
    statistic: float
    effect_size: float
    wins: int
    ties: int
    losses: int
    degenerate: bool
    dropped: int
    test: str
    alpha: float

    def __str__(self) -> str:
        dropped = f", {self.dropped} dropped" if self.dropped else ""
        same = ", the same on every query" if self.degenerate else ""
        return (
            f"{show(self.value_a)} -> {show(self.value_b)}: {show(self.difference, True)} "
            f"{show_interval(self.low, self.high, self.alpha)}, d_z = {show(self.effect_size)}, "
            f"wins {self.wins} ties {self.ties} losses {self.losses}{dropped}{same}, {show_p(self.pvalue)} ({self.test})"
        )


def paired(
    a: Any,
    b: Any,
    *,
    test: str = "t",
    alpha: float = 0.05,
    resamples: int = 9999,
    seed: int = 0,
    missing: str = "error",
) -> PairedComparison:
    """The ranker b against the ranker a by their values of a metric on the same queries.

    ===================  ===========================================================================================
    test                 what it is
    ===================  ===========================================================================================
    ``"t"``              Student's paired t. The default: it agrees with randomization on the values of metrics.
    ``"randomization"``  signs of the differences flipped, on the mean: all flips where at most 20 queries differ, so that
                         p is exact; beyond, (b + 1) / (``resamples`` + 1), which is never 0. Interval of t.
    ``"bootstrap"``      studentised, shifted to no difference; p as before. Interval: BCa of the mean.
    ``"wilcoxon"``       signed ranks, of the queries that differ; exact for at most 50 of them, ties among them or not;
                         beyond, the normal approximation. It asks another question than the mean. Interval of t.
    ===================  ===========================================================================================

    A difference of at most 1e-9 is a tie and counts as 0. Where no query differs, p is 1. Where all differ by the same
    (``degenerate``), a t of 1e15 would be no evidence: t and bootstrap then give p = 2 / 2^n, as the flips of n signs do.
    With thousands of queries everything is significant: read the difference, its interval and the effect size; correct
    several comparisons by ``adjust``.

    Args:
        a: a value per query of the old ranker: a sequence in the order of b, or a mapping by query id, on which the two are
            joined. Of a metric with ``per_query=True``: ``dict(zip(*(x.tolist() for x in metric.query_values())))``.
        b: the same of the new ranker.
        test: see the table.
        alpha: 1 - the level of the interval.
        resamples: random flips or bootstrap samples.
        seed: of a private generator; the same seed, the same p, in whatever order the queries come.
        missing: what to do with a query id that only one has: ``"error"``, or ``"drop"`` it (and count it in ``dropped``).

    Raises:
        ValueError: one mapping and one sequence, lengths or ids that differ, fewer than two queries, a value that is not
            finite (a query without relevant items), an option out of range.

    Source: Smucker, Allan and Carterette, "A Comparison of Statistical Significance Tests for Information Retrieval
        Evaluation", CIKM 2007; Phipson and Smyth, "Permutation P-values Should Never Be Zero", 2010; Efron, "Better Bootstrap
        Confidence Intervals", JASA 1987.

    Example:
        >>> old, new = [0.2, 0.5, 0.3, 0.7, 0.6, 0.4], [0.3, 0.5, 0.4, 0.9, 0.6, 0.6]
        >>> print(paired(old, new))
        0.45 -> 0.55: +0.1 [+0.006136, +0.1939] at 95 %, d_z = 1.118, wins 4 ties 2 losses 0, p = 0.0409 (t)
        >>> paired(old, new, test="randomization").pvalue
        0.125
    """
    check_choice("test", test, TESTS)
    check_choice("missing", missing, ("error", "drop"))
    alpha = probability("alpha", alpha)
    resamples, seed = whole("resamples", resamples, least=1), whole("seed", seed)
    values_a, values_b, dropped = _joined(a, b, missing)
    n = len(values_a)
    # In order of size, so that neither sums nor random numbers depend on the order of the queries.
    d = np.sort(values_b - values_a)
    d[np.abs(d) <= TIE] = 0
    wins, losses = int((d > 0).sum()), int((d < 0).sum())
    degenerate = bool(d[-1] - d[0] <= TIE)
    # A constant shift is taken for the number it is; the mean of equal numbers may round.
    mean = float(np.median(d) if degenerate else d.mean())
    sd = 0.0 if degenerate else float(d.std(ddof=1))
    error = sd / math.sqrt(n)
    infinite = math.copysign(math.inf, mean) if mean else 0.0
    t = mean / error if error else infinite
    reach = critical(alpha, "two-sided", n - 1) * error
    low, high = mean - reach, mean + reach

    statistic = t
    if test == "randomization":
        statistic, pvalue = mean, _flip_test(np.abs(d), abs(math.fsum(d)), resamples, seed)
    elif test == "wilcoxon":
        statistic, pvalue = _signed_ranks(d)
    elif degenerate:
        pvalue = math.ldexp(2, -n) if mean else 1.0
    elif test == "bootstrap":
        pvalue, low, high = _bootstrap(d, t, alpha, resamples, seed)
    else:
        pvalue = p_of(t, "two-sided", n - 1)
    return PairedComparison(
        n=n,
        value_a=float(values_a.mean()),
        value_b=float(values_b.mean()),
        difference=mean,
        low=low,
        high=high,
        # A p beyond the range of a float is not 0.
        pvalue=max(pvalue, sys.float_info.min),
        statistic=statistic,
        effect_size=mean / sd if sd else infinite,
        wins=wins,
        ties=n - wins - losses,
        losses=losses,
        degenerate=degenerate,
        dropped=dropped,
        test=test,
        alpha=alpha,
    )


def _joined(a: Any, b: Any, missing: str) -> tuple[np.ndarray, np.ndarray, int]:
    """The values of the queries that both have, and how many ids only one has."""
    of_a, of_b = _by_id("a", a), _by_id("b", b)
    if of_a is None and of_b is None:
        values_a, values_b = column("a", a, least=2), column("b", b, least=2)
        if len(values_a) != len(values_b):
            raise ValueError(
                f"`a` and `b` must have the same queries, got {len(values_a)} and {len(values_b)} values. "
                "Give mappings from query id to value, which are joined."
            )
        return values_a, values_b, 0
    if of_a is None or of_b is None:
        which = "a" if of_b is None else "b"
        raise ValueError(f"`a` and `b` must both be mappings by query id, or both sequences; only `{which}` is a mapping.")
    both = [query for query in of_a if query in of_b]
    only = {"a": [query for query in of_a if query not in of_b], "b": [query for query in of_b if query not in of_a]}
    dropped = len(only["a"]) + len(only["b"])
    if not both:
        raise ValueError(
            f"`a` and `b` must have query ids in common, got {_first(of_a)} and {_first(of_b)}. Are they of the same type?"
        )
    if dropped and missing == "error":
        told = " and ".join(f"{len(ids):,} only in `{name}` ({_first(ids)})" for name, ids in only.items() if ids)
        raise ValueError(
            f"`a` and `b` must have the same query ids, got {told}. Score them, or leave them out by missing='drop'."
        )
    for name, values in (("a", of_a), ("b", of_b)):
        for query in both:
            if not isinstance(values[query], str) and values[query] != values[query]:
                raise ValueError(
                    f"`{name}` must be finite, got NaN for the query {query!r}. A query without relevant items has no value: "
                    "decide its value, or leave it out of both."
                )
    return (
        column("a", [of_a[query] for query in both], least=2),
        column("b", [of_b[query] for query in both], least=2),
        dropped,
    )


def _by_id(name: str, values: Any) -> dict[Any, Any] | None:
    """A mapping, or what has keys as one (a pandas Series), as a dict; None for anything else."""
    if not isinstance(values, Mapping) and not (hasattr(values, "keys") and hasattr(values, "items")):
        return None
    found = dict(values.items())
    if len(found) < len(values):
        raise ValueError(f"`{name}` must have each query id once, got {len(values)} values of {len(found)} ids.")
    return found


def _first(ids: Any) -> str:
    ids = list(ids)
    return ", ".join(map(repr, ids[:3])) + (", …" if len(ids) > 3 else "")


def _flip_test(sizes: np.ndarray, observed: float, resamples: int, seed: int) -> float:
    """p of a sum of differences of these sizes, against the sums with their signs flipped at random."""
    # In order, so that which sign came first, or which ranker, does not matter.
    sizes = np.sort(sizes[sizes > 0])
    # Flips that give the observed sum but for rounding count.
    reached = observed * (1 - 1e-9) - 1e-12 * float(sizes.sum())
    if len(sizes) <= EXACT_FLIPS:
        sums = np.zeros(1)
        for size in sizes:
            sums = np.concatenate([sums - size, sums + size])
        return int((np.abs(sums) >= reached).sum()) / len(sums)
    generator = np.random.default_rng(seed)
    extreme = 0
    for start in range(0, resamples, BLOCK // 8):
        sums = _flipped_sums(sizes, min(BLOCK // 8, resamples - start), generator)
        extreme += int((np.abs(sums) >= reached).sum())
    return (extreme + 1) / (resamples + 1)


def _flipped_sums(sizes: np.ndarray, flips: int, generator: np.random.Generator) -> np.ndarray:
    """[flip] sums with random signs. Sixteen queries at a time have all their sums in a table, in which random bits look up."""
    words = np.zeros((-(-len(sizes) // 16), 2, 8))
    words.reshape(-1)[: len(sizes)] = sizes
    signs = 2.0 * ((np.arange(256)[:, np.newaxis] >> np.arange(8)) & 1) - 1
    total, part = np.zeros(flips), np.empty(flips)
    for left, right in words:
        table = ((signs @ left)[:, np.newaxis] + signs @ right).ravel()
        bits = generator.integers(0, 2**16, flips, dtype=np.uint16)
        # "clip" as the bits are within the table and the default mode copies.
        total += np.take(table, bits, out=part, mode="clip")
    return total


def _signed_ranks(d: np.ndarray) -> tuple[float, float]:
    """Wilcoxon's statistic and p of the differences other than 0."""
    d = np.round(d[d != 0], 12)
    n = len(d)
    if not n:
        return 0.0, 1.0
    _, group, size = np.unique(np.abs(d), return_inverse=True, return_counts=True)
    # Twice the mean rank of each group of equal sizes is a whole number.
    ranks = (2 * np.cumsum(size) - size + 1)[group]
    total = int(ranks.sum())
    wins = int(ranks[d > 0].sum())
    least = min(wins, total - wins)
    if n <= EXACT_RANKS:
        ways = np.zeros(total + 1)
        ways[0] = 1
        for rank in ranks:
            # How many sets of ranks have each sum: those without this rank and those with it.
            ways[rank:] += ways[:-rank].copy()
        return least / 2, min(1.0, 2 * float(ways[: least + 1].sum()) / 2**n)
    variance = (n * (n + 1) * (2 * n + 1) - float((size**3 - size).sum()) / 2) / 24
    return least / 2, 2 * cumulative((least - total / 2) / 2 / math.sqrt(variance))


def _bootstrap(d: np.ndarray, t: float, alpha: float, resamples: int, seed: int) -> tuple[float, float, float]:
    """p of the shifted, studentised bootstrap, and the BCa interval of the mean."""
    n, mean = len(d), float(d.mean())
    centred = d - mean
    generator = np.random.default_rng(seed)
    means = np.empty(resamples)
    extreme = 0
    rows = max(1, BLOCK // n)
    for start in range(0, resamples, rows):
        sample = centred[generator.integers(0, n, (min(rows, resamples - start), n), dtype=np.uint32)]
        shift = sample.mean(axis=1)
        means[start : start + rows] = shift
        variance = np.maximum(np.einsum("rq,rq->r", sample, sample) / n - shift * shift, 0) * (n / (n - 1))
        # Not divided, as a sample may be one query again and again; 1e-9 for rounding.
        extreme += int((np.abs(shift) * math.sqrt(n) >= abs(t) * np.sqrt(variance) * (1 - 1e-9)).sum())
    pvalue = (extreme + 1) / (resamples + 1)

    normal, quantile = special().ndtr, special().ndtri
    below = (np.count_nonzero(means < 0) + np.count_nonzero(means <= 0)) / (2 * resamples)
    bias = float(quantile(min(max(below, 0.5 / resamples), 1 - 0.5 / resamples)))
    # Leaving out query i moves the mean by -centred[i] / (n - 1).
    acceleration = float((centred**3).sum() / (6 * (centred**2).sum() ** 1.5))
    ends = []
    for z in (bias + float(quantile(alpha / 2)), bias - float(quantile(alpha / 2))):
        # Beyond the pole the percentile is as far out as the one that it goes to.
        slope = 1 - acceleration * z
        ends.append(float(normal(bias + z / slope)) if slope > 0 else float(z > 0))
    low, high = np.quantile(means, ends) + mean
    return pvalue, float(low), float(high)
