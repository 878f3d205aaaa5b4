"""Rates: against statsmodels, by enumeration of all outcomes, and laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import assume, given
from hypothesis import strategies as st
from statsmodels.stats.proportion import confint_proportions_2indep, proportion_confint, proportions_ztest

from lightning_rank.stats import non_inferior, sample_ratio, two_proportions, wilson
from tests.stats import needs_new_scipy

ALPHAS = st.sampled_from((0.01, 0.05, 0.2))
SIDES = ("two-sided", "greater", "less")


@st.composite
def arms(draw: st.DrawFn, least: int = 0) -> tuple[int, int]:
    """Successes and users, ``least`` of each outcome."""
    n = draw(st.integers(1 + 2 * least, 400) | st.integers(1000, 10**6))
    return draw(st.integers(least, n - least)), n


# Wilson ----------------------------------------------------------------------------------------------------------------


@given(arms(), ALPHAS)
def test_wilson_is_that_of_statsmodels(arm, alpha):
    found = wilson(*arm, alpha=alpha)
    low, high = proportion_confint(*arm, alpha=alpha, method="wilson")
    assert (found.low, found.high) == (pytest.approx(low, rel=1e-9, abs=1e-15), pytest.approx(high, rel=1e-9))
    assert 0 <= found.low <= found.estimate <= found.high <= 1


@given(arms(), ALPHAS)
def test_wilson_of_failures_is_the_mirror(arm, alpha):
    (x, n), found = arm, wilson(*arm, alpha=alpha)
    mirror = wilson(n - x, n, alpha=alpha)
    assert (1 - mirror.high, 1 - mirror.low) == pytest.approx((found.low, found.high), abs=1e-14)


@pytest.mark.parametrize("n", [1, 3, 7, 1000, 10**9])
def test_wilson_ends_exactly_at_0_and_1(n):
    assert wilson(0, n).low == 0.0
    assert wilson(n, n).high == 1.0
    assert wilson(0, n).high == pytest.approx(1 - wilson(n, n).low, rel=1e-9)


# Two proportions -------------------------------------------------------------------------------------------------------


@given(arms(), arms(), st.sampled_from(SIDES))
def test_z_is_the_pooled_test_of_statsmodels(a, b, alternative):
    assume(0 < a[0] + b[0] < a[1] + b[1])
    found = two_proportions(*a, *b, alternative=alternative)
    names = {"two-sided": "two-sided", "greater": "larger", "less": "smaller"}
    z, p = proportions_ztest([b[0], a[0]], [b[1], a[1]], alternative=names[alternative])
    # Of nearly equal rates the difference is known to a few units of the rates' last place only.
    assert found.z == pytest.approx(z, rel=1e-8, abs=1e-8)
    assert found.pvalue == pytest.approx(p, rel=1e-6, abs=1e-300)


@given(arms(), arms(), ALPHAS)
def test_interval_is_newcombes_of_statsmodels(a, b, alpha):
    found = two_proportions(*a, *b, alpha=alpha)
    expected = confint_proportions_2indep(*b, *a, method="newcomb", compare="diff", alpha=alpha)
    assert (found.low, found.high) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert -1 <= found.low <= found.difference <= found.high <= 1


@given(arms(least=1), arms(least=1), ALPHAS)
def test_lift_interval_is_that_of_the_log_ratio(a, b, alpha):
    found = two_proportions(*a, *b, alpha=alpha)
    low, high = confint_proportions_2indep(*b, *a, method="log", compare="ratio", alpha=alpha)
    assert (found.relative_low, found.relative_high) == pytest.approx((low - 1, high - 1), rel=1e-9, abs=1e-12)
    assert found.relative_low <= found.relative <= found.relative_high


@given(arms(), arms(), st.sampled_from((0.0, 0.1, -0.3)))
def test_swapped_arms_turn_everything_round(a, b, null):
    forth = two_proportions(*a, *b, null_difference=null)
    back = two_proportions(*b, *a, null_difference=-null)
    assert (back.difference, back.low, back.high) == pytest.approx((-forth.difference, -forth.high, -forth.low), abs=1e-12)
    assert back.z == pytest.approx(-forth.z, rel=1e-6, abs=1e-9)
    assert back.pvalue == pytest.approx(forth.pvalue, rel=1e-6, abs=1e-300)


@given(arms(), arms())
def test_one_sided_tests_share_what_the_two_sided_has(a, b):
    assume(0 < a[0] + b[0] < a[1] + b[1])
    both, up, down = (two_proportions(*a, *b, alternative=side) for side in SIDES)
    assert up.pvalue + down.pvalue == pytest.approx(1, abs=1e-12)
    assert min(up.pvalue, down.pvalue) == pytest.approx(both.pvalue / 2, rel=1e-12)
    # A one-sided level of alpha is the end of a two-sided interval at 2 alpha.
    wide = two_proportions(*a, *b, alpha=0.1)
    assert (up.low, down.high) == (wide.low, wide.high)
    assert (up.high, down.low) == (math.inf, -math.inf)
    assert (up.alternative, down.alternative) == ("greater", "less")
    if a[0] and b[0]:
        assert (up.relative_low, down.relative_high) == (wide.relative_low, wide.relative_high)
        assert (up.relative_high, down.relative_low) == (math.inf, -math.inf)


@pytest.mark.parametrize("successes", [0, 100])
@pytest.mark.parametrize("alternative", SIDES)
def test_no_difference_and_no_variance(successes, alternative):
    found = two_proportions(successes, 100, successes, 100, alternative=alternative)
    assert (found.difference, found.z, found.pvalue) == (0, 0, 1)
    if alternative == "two-sided":
        # Newcombe's interval: the rates are not known to be the same.
        assert found.low < -0.03
        assert found.high > 0.03
        assert math.isnan(found.relative) == (successes == 0)


def test_lift_of_and_over_nothing():
    over = two_proportions(0, 100, 5, 100)
    assert all(math.isnan(x) for x in (over.relative, over.relative_low, over.relative_high))
    of = two_proportions(5, 100, 0, 100)
    assert of.relative == -1
    assert math.isnan(of.relative_low)
    assert math.isnan(of.relative_high)


def log_likelihood(p_a: float, a: tuple[int, int], b: tuple[int, int], null: float) -> float:
    return sum(scipy.special.xlogy(x, p) + scipy.special.xlogy(n - x, 1 - p) for (x, n), p in ((a, p_a), (b, p_a + null)))


@given(arms(least=1), arms(least=1), st.floats(-0.95, 0.95))
def test_z_of_another_null_has_the_most_likely_rates(a, b, null):
    assume(abs(null) > 1e-3)
    found = two_proportions(*a, *b, null_difference=null)
    low, high = max(0.0, -null), min(1.0, 1 - null)
    best = scipy.optimize.minimize_scalar(
        lambda p: -log_likelihood(p, a, b, null), bounds=(low, high), method="bounded", options={"xatol": 1e-12}
    ).x
    error = math.sqrt(best * (1 - best) / a[1] + (best + null) * (1 - best - null) / b[1])
    # The search for a maximum finds its place to half of the digits only.
    assert found.z == pytest.approx((b[0] / b[1] - a[0] / a[1] - null) / error, rel=1e-2, abs=1e-6)


@pytest.mark.parametrize(
    ("a", "b", "null", "rates"),
    [((0, 90), (0, 40), -0.5, (0.5, 0)), ((0, 90), (0, 40), 0.2, (0, 0.2)), ((9, 9), (40, 40), -0.1, (1, 0.9))],
)
def test_most_likely_rates_at_the_border(a, b, null, rates):
    found = two_proportions(*a, *b, null_difference=null)
    error = math.sqrt(sum(p * (1 - p) / n for p, (_, n) in zip(rates, (a, b), strict=True)))
    assert found.z == pytest.approx(-null / error, rel=1e-12)


@given(arms(), arms())
def test_z_falls_as_the_null_rises(a, b):
    z = [two_proportions(*a, *b, null_difference=null).z for null in np.linspace(-0.99, 0.99, 45)]
    assert (np.diff(z) < 1e-9).all()


def test_errors_hold_their_level_and_intervals_their_coverage():
    """By enumeration of all outcomes of 40 against 50 users; a wrong variance or tail falls out of these bounds."""
    n_a, n_b, p_a, p_b = 40, 50, 0.15, 0.3
    chance_a, chance_b = (scipy.stats.binom.pmf(np.arange(n + 1), n, p) for n, p in ((n_a, p_a), (n_b, p_b)))
    null_b = scipy.stats.binom.pmf(np.arange(n_b + 1), n_b, p_a)
    covered = lift_covered = false_alarm = 0.0
    for x_a in np.flatnonzero(chance_a > 1e-5):
        for x_b in np.flatnonzero(chance_b + null_b > 1e-5):
            found = two_proportions(x_a, n_a, x_b, n_b)
            covered += chance_a[x_a] * chance_b[x_b] * (found.low <= p_b - p_a <= found.high)
            lift_covered += chance_a[x_a] * chance_b[x_b] * (found.relative_low <= p_b / p_a - 1 <= found.relative_high)
            false_alarm += chance_a[x_a] * null_b[x_b] * (found.pvalue < 0.05)
    assert covered == pytest.approx(0.95, abs=0.015)
    assert lift_covered == pytest.approx(0.95, abs=0.03)
    assert false_alarm == pytest.approx(0.05, abs=0.012)


BAD_RATES = [
    ((5, 0), "`n_a` must be a whole number >= 1, got 0"),
    ((101, 100), "at most `n_a`, got 101 of 100"),
    ((-1, 100), "`successes_a` must be a whole number >= 0, got -1"),
    ((0.5, 100), "`successes_a` must be a whole number"),
    ((math.nan, 100), "`successes_a` must be a whole number"),
    ((5, math.inf), "`n_a` must be a whole number"),
    (("5", 100), "got '5'"),
    ((True, 100), "got True"),
]


@pytest.mark.parametrize(("bad", "message"), BAD_RATES)
def test_bad_counts(bad, message):
    with pytest.raises(ValueError, match=message):
        two_proportions(*bad, 5, 100)
    with pytest.raises(ValueError, match=message.replace("_a", "_b")):
        two_proportions(5, 100, *bad)
    with pytest.raises(ValueError, match=message):
        non_inferior(*bad, 5, 100, margin=0.1)
    with pytest.raises(ValueError, match=message.replace("_a", "")):
        wilson(*bad)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 5}, "`alpha` must be a finite number above 0 and below 1, got 5. Not per cent: write 0.05."),
        ({"alpha": 0}, "`alpha` must"),
        ({"alpha": 1}, "`alpha` must"),
        ({"alpha": math.nan}, "`alpha` must"),
        ({"alternative": "larger"}, "`alternative` must be one of 'two-sided', 'greater', 'less', got 'larger'"),
        ({"alternative": None}, "`alternative` must"),
        ({"null_difference": 1}, "`null_difference` must be a finite number above -1 and below 1"),
        ({"null_difference": -1}, "`null_difference` must"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        two_proportions(5, 100, 6, 100, **options)


def test_counts_of_numpy_and_whole_floats():
    assert two_proportions(np.int64(5), np.float64(100), 6.0, 100) == two_proportions(5, 100, 6, 100)


# Non-inferiority -------------------------------------------------------------------------------------------------------


@given(arms(), arms(), st.floats(1e-3, 0.9), st.sampled_from((0.01, 0.05, 0.4)), st.booleans())
def test_p_and_bound_agree(a, b, margin, alpha, higher):
    found = non_inferior(*a, *b, margin=margin, alpha=alpha, higher_is_better=higher)
    distance = found.low + margin if higher else margin - found.high
    assume(abs(distance) > 1e-9)
    assert found.non_inferior is (found.pvalue < alpha) is (distance > 0)
    assert (found.high if higher else -found.low) == math.inf


@given(arms(), arms(), st.sampled_from((0.01, 0.05, 0.4)))
def test_the_bound_is_where_p_is_alpha(a, b, alpha):
    bound = non_inferior(*a, *b, margin=0.5, alpha=alpha).low
    assume(abs(bound) < 1 - 1e-9)
    p = two_proportions(*a, *b, null_difference=bound, alternative="greater").pvalue
    assert p == pytest.approx(alpha, rel=1e-5)


@pytest.mark.parametrize("method", ["score", "wald"])
@given(arms(), arms(), st.floats(1e-3, 0.9))
def test_a_success_is_good_or_a_failure_bad(method, a, b, margin):
    good = non_inferior(*a, *b, margin=margin, method=method)
    failures = [count for x, n in (a, b) for count in (n - x, n)]
    bad = non_inferior(*failures, margin=margin, higher_is_better=False, method=method)
    assert (bad.difference, bad.high) == pytest.approx((-good.difference, -good.low), abs=1e-9)
    if math.isinf(good.z):
        assert bad.z == -good.z
    else:
        assert bad.z == pytest.approx(-good.z, rel=1e-6, abs=1e-9)
    assert bad.pvalue == pytest.approx(good.pvalue, rel=1e-5, abs=1e-300)


@given(arms(least=1), arms(least=1), st.floats(1e-3, 0.9))
def test_wald_by_its_closed_form(a, b, margin):
    found = non_inferior(*a, *b, margin=margin, method="wald")
    rates = [x / n for x, n in (a, b)]
    error = math.sqrt(sum(p * (1 - p) / n for p, (_, n) in zip(rates, (a, b), strict=True)))
    assert found.z == pytest.approx((rates[1] - rates[0] + margin) / error)
    assert found.low == pytest.approx(rates[1] - rates[0] - scipy.stats.norm.ppf(0.95) * error)


def test_significantly_worse_within_the_margin_passes():
    counts = 50_000, 100_000, 49_000, 100_000
    assert two_proportions(*counts).high < 0
    assert non_inferior(*counts, margin=0.02).non_inferior
    # And far from significant is not enough where the margin is small.
    assert not non_inferior(500, 1000, 499, 1000, margin=0.01).non_inferior


def test_wald_without_variance():
    assert non_inferior(0, 10, 0, 10, margin=0.1, method="wald").z == math.inf
    worse = non_inferior(10, 10, 0, 10, margin=0.1, method="wald")
    assert (worse.z, worse.pvalue, worse.low) == (-math.inf, 1, -1)


def test_score_bound_at_the_ends():
    assert non_inferior(100, 100, 0, 100, margin=0.1).low == -1
    assert non_inferior(0, 100, 100, 100, margin=0.1).low > 0.9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"margin": 0}, "`margin` must be a finite number above 0 .*largest harm"),
        ({"margin": -0.1}, "`margin` must"),
        ({"margin": 1}, "`margin` must"),
        ({"margin": None}, "`margin` must"),
        ({"margin": 0.1, "method": "exact"}, "`method` must be one of 'score', 'wald', got 'exact'"),
        ({"margin": 0.1, "alpha": 95}, "Not per cent: write 0.95"),
    ],
)
def test_bad_margins(options, message):
    with pytest.raises(ValueError, match=message):
        non_inferior(5, 100, 5, 100, **options)
    with pytest.raises(TypeError):
        non_inferior(5, 100, 5, 100)  # a margin has no default


# Sample ratio ----------------------------------------------------------------------------------------------------------


@needs_new_scipy
@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(0.01, 5)), min_size=2, max_size=5))
def test_sample_ratio_is_the_chi_square_of_scipy(arms):
    counts, weights = zip(*arms, strict=True)
    assume(sum(counts))
    found = sample_ratio(counts, weights)
    expected = np.array(weights) / sum(weights) * sum(counts)
    statistic, p = scipy.stats.chisquare(counts, expected, sum_check=False)
    assert found.statistic == pytest.approx(statistic, rel=1e-9)
    assert found.pvalue == pytest.approx(p, rel=1e-7, abs=1e-300)
    assert found.df == len(arms) - 1
    assert found.expected == pytest.approx(tuple(expected))
    assert sample_ratio(counts, [1e6 * w for w in weights]).pvalue == pytest.approx(found.pvalue, rel=1e-7, abs=1e-300)


def test_arms_are_joined_by_name():
    found = sample_ratio({"new": 1100, "old": 9000}, {"old": 0.9, "new": 0.1})
    assert found.pvalue == sample_ratio([9000, 1100], [9, 1]).pvalue
    assert found.expected == pytest.approx({"old": 9090, "new": 1010})
    assert sample_ratio({"a": 10, "b": 12}).expected == {"a": 11, "b": 11}


def test_an_arm_that_got_nobody_is_a_mismatch():
    assert sample_ratio([3, 0]).mismatch
    assert sample_ratio({"a": 3}, {"a": 1, "b": 1}).mismatch
    # By p alone it would not be.
    assert sample_ratio([3, 0]).pvalue > 0.001


def test_planned_weights_decide():
    assert not sample_ratio([9000, 1100], [0.9, 0.1]).mismatch
    assert sample_ratio([9000, 1100]).mismatch
    assert sample_ratio([44700, 45489], alpha=0.01).mismatch
    assert not sample_ratio([44700, 45489]).mismatch


@pytest.mark.parametrize(
    ("counts", "expected", "message"),
    [
        ([5], None, "`counts` must have at least 2 values, got 1"),
        ([], None, "`counts` must have at least 2"),
        ([0, 0], None, "`counts` must have a user"),
        ([5, -1], None, "`counts` must be a whole number >= 0, got -1"),
        ([5, 1.5], None, "`counts` must be a whole number"),
        ([5, math.nan], None, "`counts` must be finite"),
        ([5, 6], [1, 0], "`expected` must be positive, got 0"),
        ([5, 6], [1], "`counts` and `expected` must be of one length, got 2 and 1"),
        ([5, 6], {"a": 1, "b": 1}, "only `expected` is a mapping"),
        ({"a": 5, "b": 6}, [1, 1], "only `counts` is a mapping"),
        ({"a": 5, "c": 6}, {"a": 1, "b": 1}, "`expected` must name every arm, but it has no 'c'"),
        (7, None, "`counts` must be a sequence of numbers, got int"),
    ],
)
def test_bad_sample_ratios(counts, expected, message):
    with pytest.raises(ValueError, match=message):
        sample_ratio(counts, expected)
