"""Two rankers on the same queries: against scipy and full enumeration, laws, and what must never come out."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given
from hypothesis import strategies as st

from lightning_rank.stats import paired
from tests.stats import needs_new_scipy

TESTS = ("t", "randomization", "bootstrap", "wilcoxon")
every_test = pytest.mark.parametrize("test", TESTS)
# Values of metrics on a grid, so that ties and equal differences are many; fractions of 64 have no rounding.
VALUES = st.integers(0, 64).map(lambda x: x / 64)


def rankers(least: int = 2, most: int = 10) -> st.SearchStrategy[list[list[float]]]:
    rows = st.lists(st.tuples(VALUES, VALUES), min_size=least, max_size=most)
    return rows.map(lambda rows: [list(column) for column in zip(*rows, strict=True)])


def few(test: str) -> dict[str, object]:
    return {"test": test, "resamples": 199}


def normal_rankers(n: int, shift: float = 0.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    a = generator.random(n)
    return a, a + generator.normal(shift, 0.1, n)


# What all tests share ---------------------------------------------------------------------------------------------------


@every_test
@given(rankers())
def test_summary(test, rankers):
    a, b = map(np.array, rankers)
    found = paired(a, b, **few(test))
    assert found.n == len(a) == found.wins + found.ties + found.losses
    assert (found.wins, found.losses) == ((b > a).sum(), (b < a).sum())
    assert (found.value_a, found.value_b) == (a.mean(), b.mean())
    assert found.difference == pytest.approx((b - a).mean(), abs=1e-15)
    assert (found.test, found.alpha, found.dropped) == (test, 0.05, 0)
    assert found.degenerate is bool(np.ptp(b - a) == 0)
    if not found.degenerate:
        assert found.effect_size == pytest.approx((b - a).mean() / (b - a).std(ddof=1), abs=1e-15)
    assert 0 < found.pvalue <= 1
    assert not any(math.isnan(x) for x in found.to_dict().values() if isinstance(x, float))


@every_test
@given(rankers(), st.randoms(use_true_random=False))
def test_order_of_the_queries_does_not_matter(test, rankers, random):
    order = random.sample(range(len(rankers[0])), len(rankers[0]))
    found = paired(*rankers, **few(test))
    shuffled = paired(*([column[i] for i in order] for column in rankers), **few(test))
    for name in ("pvalue", "low", "high", "statistic", "effect_size", "difference"):
        assert getattr(shuffled, name) == getattr(found, name)


@pytest.mark.parametrize("test", ["t", "randomization", "wilcoxon"])
@given(rankers(most=30))
def test_swapped_rankers_have_the_same_p(test, rankers):
    a, b = rankers
    forth, back = paired(a, b, **few(test)), paired(b, a, **few(test))
    assert back.pvalue == pytest.approx(forth.pvalue, rel=1e-12)
    assert (back.difference, back.low, back.high) == pytest.approx((-forth.difference, -forth.high, -forth.low), abs=1e-15)
    assert (back.wins, back.ties, back.losses) == (forth.losses, forth.ties, forth.wins)


@pytest.mark.parametrize("test", ["t", "randomization", "wilcoxon"])
@given(rankers(most=30))
def test_interval_contains_the_difference(test, rankers):
    found = paired(*rankers, **few(test))
    assert found.low <= found.difference <= found.high


@every_test
@pytest.mark.parametrize("n", [2, 10, 25, 1000])
def test_a_ranker_against_itself(test, n):
    a = np.random.default_rng(0).random(n)
    # Rounding of a sum is no difference either.
    for b in (a, a + 1e-10, np.where(np.arange(n) % 2, a, (a + 0.1) + 0.2 - 0.3)):
        found = paired(a, b, **few(test))
        assert (found.pvalue, found.difference, found.low, found.high) == (1, 0, 0, 0)
        assert (found.effect_size, found.statistic, found.ties) == (0, 0, n)
        assert found.degenerate


@every_test
@pytest.mark.parametrize("n", [3, 12, 40, 3000])
def test_a_constant_shift_is_marked_and_no_overwhelming_evidence(test, n):
    a = np.random.default_rng(0).random(n)
    found = paired(a, a - 0.1, test=test)
    assert found.degenerate
    assert (found.low, found.high) == (found.difference, found.difference)
    assert found.difference == pytest.approx(-0.1)
    assert found.effect_size == -math.inf
    if test in ("t", "bootstrap"):
        assert found.statistic == -math.inf
    if n <= 20:
        assert found.pvalue == 2 / 2**n
    assert 0 < found.pvalue < 0.5


def test_swapped_rankers_have_the_same_random_flips():
    a, b = normal_rankers(60, 0.02)
    assert paired(a, b, test="randomization").pvalue == paired(b, a, test="randomization").pvalue


def test_ties_within_rounding():
    found = paired([0.3, 0.5, 0.5, 0.5], [0.1 + 0.2, 0.5 + 5e-10, 0.6, 0.4])
    assert (found.wins, found.ties, found.losses) == (1, 2, 1)


# t ---------------------------------------------------------------------------------------------------------------------


@given(rankers(most=30), st.sampled_from((0.01, 0.05, 0.3)))
def test_t_is_that_of_scipy(rankers, alpha):
    a, b = map(np.array, rankers)
    assume(np.ptp(b - a) > 0)
    found, expected = paired(a, b, alpha=alpha), scipy.stats.ttest_rel(b, a)
    assert found.statistic == pytest.approx(expected.statistic, rel=1e-9, abs=1e-12)
    assert found.pvalue == pytest.approx(expected.pvalue, rel=1e-8)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(1 - alpha)), rel=1e-8, abs=1e-12)


# Randomization ---------------------------------------------------------------------------------------------------------


@given(rankers(most=9))
def test_exact_p_by_enumeration_in_fractions(rankers):
    d = [Fraction(y) - Fraction(x) for x, y in zip(*rankers, strict=True)]
    sums = [abs(sum(s * x for s, x in zip(signs, d, strict=True))) for signs in itertools.product((1, -1), repeat=len(d))]
    expected = sum(total >= abs(sum(d)) for total in sums) / len(sums)
    assert paired(*rankers, test="randomization").pvalue == expected
    # The same differences in tenths, whose sums round.
    tenths = paired([0.0] * len(d), [float(x) * 6.4 for x in d], test="randomization")
    assert tenths.pvalue == expected


@pytest.mark.parametrize("n", [19, 20])
def test_all_flips_are_taken_up_to_twenty(n):
    a = np.zeros(n)
    assert paired(a, 2.0 ** np.arange(n), test="randomization").pvalue == 2 / 2**n
    # Queries that tie have nothing to flip.
    assert paired(np.zeros(n + 30), [*2.0 ** np.arange(n), *[0.0] * 30], test="randomization").pvalue == 2 / 2**n


@pytest.mark.parametrize("n", [21, 31, 32, 33, 48, 500])
@pytest.mark.parametrize("shift", [0.0, 0.03])
def test_random_flips_agree_with_the_normal_limit(n, shift):
    """Given |d|, the sum of flips is near normal with variance Σ d²; a group of queries left out would show."""
    a, b = normal_rankers(n, shift, seed=n)
    found = paired(a, b, test="randomization", resamples=40_000)
    z = abs((b - a).sum()) / math.sqrt(((b - a) ** 2).sum())
    assert found.pvalue == pytest.approx(2 * scipy.stats.norm.sf(z), abs=0.015)


def test_random_flips_agree_with_all_flips():
    """24 queries that differ, whose 2^24 flips are counted by their halves."""
    generator = np.random.default_rng(1)
    d = generator.normal(0.1, 1, 24)
    halves = [np.array([0.0]), np.array([0.0])]
    for i, size in enumerate(np.abs(d)):
        halves[i % 2] = np.concatenate([halves[i % 2] - size, halves[i % 2] + size])
    right = np.sort(halves[1])
    reached = abs(d.sum()) * (1 - 1e-12)
    exact = 2 * (len(right) - np.searchsorted(right, reached - halves[0])).sum() / 2**24
    assert 0.02 < exact < 0.5
    resamples = 99_999
    found = paired(np.zeros(24), d, test="randomization", resamples=resamples).pvalue
    assert found == pytest.approx(exact, abs=4.5 * math.sqrt(exact * (1 - exact) / resamples))


@given(st.integers(21, 60), st.sampled_from((1, 9, 199)))
def test_p_is_never_zero(n, resamples):
    found = paired(np.zeros(n), 1 + np.arange(n) / n, test="randomization", resamples=resamples)
    assert found.pvalue == 1 / (resamples + 1)


@pytest.mark.parametrize("test", ["randomization", "bootstrap"])
def test_seeds(test):
    a, b = normal_rankers(60, 0.02)
    first, again, other = (paired(a, b, test=test, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first.pvalue != other.pvalue
    assert first.pvalue == pytest.approx(other.pvalue, abs=0.03)
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    paired(a, b, test=test)
    # The generator is private.
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


def test_p_does_not_depend_on_how_the_flips_are_cut(monkeypatch):
    a, b = normal_rankers(50, 0.02)
    whole = paired(a, b, test="randomization", resamples=4000).pvalue
    monkeypatch.setattr("lightning_rank.stats.comparison.BLOCK", 8 * 700)
    cut = paired(a, b, test="randomization", resamples=4000).pvalue
    # Other random numbers, the same p.
    assert cut == pytest.approx(whole, abs=0.03)
    assert round(cut * 4001) == pytest.approx(cut * 4001, abs=1e-9)


@pytest.mark.parametrize(("test", "resamples"), [("randomization", 20_000), ("bootstrap", 2000)])
def test_memory_does_not_grow_with_queries_times_resamples(test, resamples):
    a, b = normal_rankers(7000, 0.001)
    tracemalloc.start()
    paired(a, b, test=test, resamples=resamples)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64e6 < resamples * 7000 * 8


def test_equal_rankers_are_found_different_as_often_as_alpha():
    generator = np.random.default_rng(6)
    draws = generator.laplace(0, 0.1, (600, 12))
    for test, tolerance in (("t", 0.025), ("randomization", 0.025), ("wilcoxon", 0.025)):
        errors = np.mean([paired(np.zeros(12), d, test=test).pvalue <= 0.05 for d in draws])
        assert errors == pytest.approx(0.05, abs=tolerance), test


# Wilcoxon --------------------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.floats(-1, 1).filter(lambda x: abs(x) > 1e-3), min_size=2, max_size=50, unique_by=lambda x: round(abs(x), 9)
    )
)
def test_wilcoxon_is_that_of_scipy_without_ties(d):
    expected = scipy.stats.wilcoxon(d, method="exact")
    found = paired([0.0] * len(d), d, test="wilcoxon")
    assert (found.statistic, found.pvalue) == (expected.statistic, pytest.approx(expected.pvalue, rel=1e-9))


@given(st.lists(st.integers(-4, 4), min_size=2, max_size=9))
def test_wilcoxon_is_exact_with_ties(d):
    """Signed ranks of all sign flips, by enumeration; queries that tie are left out."""
    found = paired([0.0] * len(d), [x / 10 for x in d], test="wilcoxon")
    d = [x for x in d if x]
    if not d:
        assert found.pvalue == 1
        return
    ranks = scipy.stats.rankdata(np.abs(d))
    flips = np.array(list(itertools.product((0, 1), repeat=len(d)))) @ ranks
    wins = ranks[np.array(d) > 0].sum()
    assert found.statistic == min(wins, ranks.sum() - wins)
    assert found.pvalue == pytest.approx(min(1, 2 * min((flips <= wins).mean(), (flips >= wins).mean())))


@needs_new_scipy
@given(st.lists(st.integers(-12, 12), min_size=60, max_size=90))
def test_wilcoxon_of_many_is_that_of_scipy(d):
    nonzero = [x / 10 for x in d if x]
    assume(len(nonzero) > 50)
    expected = scipy.stats.wilcoxon(nonzero, method="asymptotic")
    found = paired([0.3] * len(d), [0.3 + x / 10 for x in d], test="wilcoxon")
    assert (found.statistic, found.pvalue) == (expected.statistic, pytest.approx(expected.pvalue, rel=1e-9))


@needs_new_scipy
def test_wilcoxon_joins_its_two_ways():
    """The normal limit and the exact count hardly differ where one follows the other."""
    d = np.random.default_rng(3).normal(0.02, 0.1, 51)
    exact, limit = (paired(np.zeros(n), d[:n], test="wilcoxon").pvalue for n in (50, 51))
    assert exact == pytest.approx(scipy.stats.wilcoxon(d[:50], method="asymptotic").pvalue, abs=0.01)
    assert limit == pytest.approx(scipy.stats.wilcoxon(d, method="exact").pvalue, abs=0.01)


# Bootstrap -------------------------------------------------------------------------------------------------------------


@needs_new_scipy
@pytest.mark.parametrize("skewed", [False, True])
def test_bootstrap_interval_is_bca_as_in_scipy(skewed):
    generator = np.random.default_rng(9)
    d = generator.exponential(0.1, 40) if skewed else generator.normal(0.03, 0.1, 40)
    found = paired(np.zeros(40), d, test="bootstrap", resamples=40_000)
    expected = scipy.stats.bootstrap(
        (d,), np.mean, n_resamples=40_000, method="BCa", rng=np.random.default_rng(0)
    ).confidence_interval
    # Ends of two sets of resamples agree within a few of their errors, far less than BCa differs from percentiles.
    tolerance = 0.02 * d.std()
    assert (found.low, found.high) == (
        pytest.approx(expected.low, abs=tolerance),
        pytest.approx(expected.high, abs=tolerance),
    )
    if skewed:
        percentile = scipy.stats.bootstrap(
            (d,), np.mean, n_resamples=40_000, method="percentile", rng=np.random.default_rng(0)
        ).confidence_interval
        assert found.high - percentile.high > tolerance


def test_bootstrap_p_is_near_that_of_t():
    for seed, shift in enumerate((0.0, 0.01, 0.02, 0.03)):
        a, b = normal_rankers(80, shift, seed=seed)
        assert paired(a, b, test="bootstrap").pvalue == pytest.approx(paired(a, b).pvalue, abs=0.03)


@pytest.mark.parametrize("seed", [1, 2, 5])
def test_bootstrap_p_by_enumeration_of_all_samples(seed):
    """All 4^4 samples of four queries, whose t is taken in the textbook way."""
    d = np.random.default_rng(seed).normal(0.5, 1, 4)
    samples = d[np.array(list(itertools.product(range(4), repeat=4)))]
    shift, spread = samples.mean(axis=1) - d.mean(), samples.std(axis=1, ddof=1)
    t = d.mean() / d.std(ddof=1)
    exact = np.mean(np.abs(shift) >= abs(t) * spread * (1 - 1e-12))
    assert 0.02 < exact < 0.98
    resamples = 40_000
    found = paired(np.zeros(4), d, test="bootstrap", resamples=resamples).pvalue
    assert found == pytest.approx(exact, abs=4.5 * math.sqrt(exact * (1 - exact) / resamples))


def test_bootstrap_p_is_never_zero():
    a, b = normal_rankers(50, 1.0)
    assert paired(a, b, test="bootstrap", resamples=99).pvalue == 0.01


@given(st.lists(st.sampled_from((0.0, 0.1, 0.9)), min_size=2, max_size=5), st.sampled_from((1, 2, 20, 300)))
def test_bootstrap_of_few_queries_or_samples_has_values(d, resamples):
    found = paired([0.0] * len(d), d, test="bootstrap", resamples=resamples, alpha=1e-9)
    assert -1e-12 <= found.low <= found.high <= 0.9 + 1e-12
    assert 0 < found.pvalue <= 1


# Queries ---------------------------------------------------------------------------------------------------------------


def test_mappings_are_joined():
    a, b = {"x": 0.1, "y": 0.5, "z": 0.9}, {"z": 0.7, "y": 0.5, "x": 0.4}
    assert paired(a, b) == paired([0.1, 0.5, 0.9], [0.4, 0.5, 0.7])
    pandas = pytest.importorskip("pandas")
    assert paired(pandas.Series(a), pandas.Series(b)) == paired(a, b)
    assert paired(a, pandas.Series(b)) == paired(a, b)


def test_queries_of_one_ranker():
    a, b = {"x": 0.1, "y": 0.5, "z": 0.9}, {"z": 0.7, "y": 0.5, "v": 0.4, "w": 0.1}
    with pytest.raises(ValueError, match=r"1 only in `a` \('x'\) and 2 only in `b` \('v', 'w'\).*missing='drop'"):
        paired(a, b)
    found = paired(a, b, missing="drop")
    assert (found.n, found.dropped) == (2, 3)
    assert "3 dropped" in str(found)
    assert found.difference == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("a", "b", "options", "message"),
    [
        ([0.1, 0.2, 0.3], [0.1, 0.2], {}, "`a` and `b` must have the same queries, got 3 and 2 values"),
        ([0.1], [0.2], {}, "`a` must have at least 2 values, got 1"),
        ([0.1, math.nan], [0.1, 0.2], {}, "`a` must be finite, got nan at position 1"),
        ([0.1, 0.2], [0.1, math.inf], {}, "`b` must be finite"),
        ({"x": 0.1, "y": 0.2}, [0.1, 0.2], {}, "only `a` is a mapping"),
        ([0.1, 0.2], {"x": 0.1, "y": 0.2}, {}, "only `b` is a mapping"),
        (
            {1: 0.1, 2: 0.2},
            {"1": 0.1, "2": 0.2},
            {},
            "query ids in common, got 1, 2 and '1', '2'. Are they of the same type",
        ),
        ({}, {}, {}, "query ids in common"),
        ({"x": 0.1, "y": 0.2}, {"x": 0.1, "z": 0.2}, {"missing": "drop"}, "`a` must have at least 2 values"),
        ({"x": 0.1, "y": 0.2}, {"x": 0.1, "y": math.nan}, {}, "`b` must be finite, got NaN for the query 'y'"),
        ([0.1, 0.2], [0.1, 0.3], {"test": "anova"}, "`test` must be one of 't', 'randomization'"),
        ([0.1, 0.2], [0.1, 0.3], {"missing": "ignore"}, "`missing` must be one of 'error', 'drop'"),
        ([0.1, 0.2], [0.1, 0.3], {"alpha": 5}, "`alpha` must"),
        ([0.1, 0.2], [0.1, 0.3], {"resamples": 0}, "`resamples` must be a whole number >= 1"),
        ([0.1, 0.2], [0.1, 0.3], {"seed": None}, "`seed` must be a whole number >= 0, got None"),
        ([[0.1], [0.2]], [[0.1], [0.3]], {}, "`a` must have one axis"),
    ],
)
def test_bad_queries(a, b, options, message):
    with pytest.raises(ValueError, match=message):
        paired(a, b, **options)


def test_ids_that_come_twice():
    pandas = pytest.importorskip("pandas")
    twice = pandas.Series([0.1, 0.2, 0.3], index=["x", "y", "x"])
    with pytest.raises(ValueError, match="`a` must have each query id once, got 3 values of 2 ids"):
        paired(twice, {"x": 0.1, "y": 0.2})
