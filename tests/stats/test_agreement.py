"""Rank-biased overlap and Kendall's tau: against brute force over orders and depths, against scipy, and laws."""

from __future__ import annotations

import math
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from lightning_rank.stats import kendall_tau, rank_biased_overlap
from lightning_rank.stats.agreement import overlaps, taus

ITEMS = "abcdefgh"
rankings = st.permutations(ITEMS).flatmap(lambda items: st.integers(0, 8).map(lambda n: list(items[:n])))
scores = st.dictionaries(st.sampled_from(ITEMS[:5]), st.integers(0, 2), min_size=1)


def by_definition(a: list[str], b: list[str], p: float) -> float:
    """Equation 32 of the paper, depth by depth."""
    short, long = sorted((a, b), key=len)
    s, l = len(short), len(long)  # noqa: E741
    x = [len(set(a[:d]) & set(b[:d])) for d in range(l + 1)]
    total = sum(x[d] / d * p**d for d in range(1, l + 1))
    total += sum(x[s] * (d - s) / (s * d) * p**d for d in range(s + 1, l + 1) if s)
    return (1 - p) / p * total + ((x[l] - x[s]) / l + (x[s] / s if s else 0)) * p**l


def orders(scored: dict[str, int]) -> list[list[str]]:
    """All orders of a ranking with ties."""
    groups = [[item for item in scored if scored[item] == level] for level in sorted(set(scored.values()), reverse=True)]
    return [[item for group in choice for item in group] for choice in product(*map(permutations, groups))]


@given(rankings, rankings, st.sampled_from([0.5, 0.9, 0.98]))
def test_overlap_is_the_definition(a, b, p):
    if a or b:
        assert rank_biased_overlap(a, b, p=p) == pytest.approx(by_definition(a, b, p), abs=1e-12)
    else:
        assert math.isnan(rank_biased_overlap(a, b, p=p))


@settings(deadline=None, max_examples=40)
@given(scores, scores)
def test_overlap_under_ties_is_the_mean_over_all_orders(a, b):
    expected = np.mean([by_definition(x, y, 0.8) for x in orders(a) for y in orders(b)])
    assert rank_biased_overlap(a, b, p=0.8) == pytest.approx(expected, abs=1e-12)


@given(rankings, rankings)
def test_overlap_is_symmetric_and_bounded(a, b):
    if a:
        assert rank_biased_overlap(a, a) == pytest.approx(1, abs=1e-12)
    if a or b:
        assert 0 <= rank_biased_overlap(a, b) <= 1
        assert rank_biased_overlap(a, b) == pytest.approx(rank_biased_overlap(b, a), abs=1e-14)


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), max_size=40))
def test_tau_is_scipys(pairs):
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    expected = kendalltau(a, b).statistic if len(set(a)) > 1 and len(set(b)) > 1 else math.nan
    assert kendall_tau(a, b) == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_tau_of_a_long_list_does_not_overflow():
    x = np.arange(200_000)
    assert kendall_tau(x, x) == 1
    assert kendall_tau(x, -x) == -1


def test_tau_of_mappings_joins_on_the_item():
    assert kendall_tau({"a": 3, "b": 2, "c": 1}, {"c": 5, "a": 7, "x": 9, "b": 6}) == 1


def test_many_queries_at_once_are_each_alone():
    generator = np.random.default_rng(0)
    lists = [{item: int(s) for item, s in zip(ITEMS[:n], generator.integers(0, 4, n), strict=True)} for n in (8, 5, 1, 7)]
    others = [{item: int(generator.integers(0, 4)) for item in reversed(of)} for of in lists]
    query = np.repeat(np.arange(4), [len(x) for x in lists])
    x, y = (np.array([s[item] for first, s in zip(lists, of, strict=True) for item in first]) for of in (lists, others))
    expected = [kendall_tau(a, b) for a, b in zip(lists, others, strict=True)]
    assert taus(query, x, y, 4) == pytest.approx(expected, abs=1e-12, nan_ok=True)

    def ranks(values):
        above = (query[:, None] == query) & (values > values[:, None])
        same = (query[:, None] == query) & (values == values[:, None])
        return above.sum(1) + 1, same.sum(1)

    (first_a, size_a), (first_b, size_b) = ranks(x), ranks(y)
    lengths = np.bincount(query)
    values = overlaps(query, (first_a, first_b), (size_a, size_b), (lengths, lengths), 0.9)
    assert values == pytest.approx([rank_biased_overlap(a, b) for a, b in zip(lists, others, strict=True)], abs=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rank_biased_overlap(["a", "a"], ["a"]), "each item once"),
        (lambda: rank_biased_overlap("ab", ["a"]), "got text"),
        (lambda: rank_biased_overlap(["a"], ["a"], p=1), "`p`"),
        (lambda: rank_biased_overlap({"a": math.nan}, ["a"]), "finite"),
        (lambda: kendall_tau([1, 2], [1]), "got 2 and 1"),
        (lambda: kendall_tau({"a": 1}, [1]), "both be mappings"),
    ],
)
def test_bad_input_is_told(call, message):
    with pytest.raises(ValueError, match=message):
        call()
