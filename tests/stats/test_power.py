"""Planning: against statsmodels, by simulation, and laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from statsmodels.stats.proportion import power_proportions_2indep

from lightning_rank.stats import (
    duration,
    min_detectable_effect,
    power_proportions,
    sample_size_proportions,
    two_proportions,
)

RATES = st.floats(0.01, 0.99)
USERS = st.integers(20, 10**5)
ALPHAS = st.sampled_from((0.01, 0.05, 0.2))
POWERS = st.sampled_from((0.25, 0.8, 0.95))
SIDES = st.sampled_from(("two-sided", "greater", "less"))


@given(RATES, RATES, USERS, USERS, ALPHAS, SIDES)
def test_power_is_that_of_statsmodels(p_a, p_b, n_a, n_b, alpha, alternative):
    found = power_proportions(p_a, p_b, n_a, n_b, alpha=alpha, alternative=alternative)
    side = {"two-sided": "two-sided", "greater": "larger", "less": "smaller"}[alternative]
    # There the difference is that of the first sample to the second, whose rate is the second argument.
    expected = power_proportions_2indep(
        p_b - p_a, p_a, n_b, ratio=n_a / n_b, alpha=alpha, alternative=side, return_results=False
    )
    assert found == pytest.approx(expected, rel=1e-8, abs=1e-12)


@given(RATES, USERS, USERS, ALPHAS)
def test_power_without_a_difference_is_alpha(p, n_a, n_b, alpha):
    for alternative in ("two-sided", "greater", "less"):
        assert power_proportions(p, p, n_a, n_b, alpha=alpha, alternative=alternative) == pytest.approx(alpha)


def test_power_is_how_often_the_test_finds_it():
    generator = np.random.default_rng(2)
    x_a, x_b = generator.binomial(300, 0.2, 1500), generator.binomial(300, 0.28, 1500)
    found = np.mean([two_proportions(a, 300, b, 300).pvalue < 0.05 for a, b in zip(x_a, x_b, strict=True)])
    assert found == pytest.approx(power_proportions(0.2, 0.28, 300), abs=0.04)


@given(RATES, RATES, ALPHAS, st.sampled_from((0.06, 0.3, 0.8, 0.95)))
def test_size_is_the_smallest_that_reaches_the_power(p_a, p_b, alpha, power):
    assume(abs(p_a - p_b) > 1e-6)
    for alternative in ("two-sided", "greater" if p_b > p_a else "less"):
        n = sample_size_proportions(p_a, p_b, alpha=alpha, power=power, alternative=alternative)
        assert type(n) is int
        assert power_proportions(p_a, p_b, n, alpha=alpha, alternative=alternative) >= power
        assert n == 1 or power_proportions(p_a, p_b, n - 1, alpha=alpha, alternative=alternative) < power


@given(RATES, USERS, USERS, ALPHAS, POWERS, SIDES)
def test_effect_has_just_that_power(p_a, n_a, n_b, alpha, power, alternative):
    assume(power > alpha)
    try:
        effect = min_detectable_effect(p_a, n_a, n_b, alpha=alpha, power=power, alternative=alternative)
    except ValueError:
        edge = 1e-9 if alternative == "less" else 1 - 1e-9
        assert power_proportions(p_a, edge, n_a, n_b, alpha=alpha, alternative=alternative) < power
        return
    assert (effect < 0) is (alternative == "less")
    assert 0 < p_a + effect < 1
    assert power_proportions(p_a, p_a + effect, n_a, n_b, alpha=alpha, alternative=alternative) == pytest.approx(power)
    # A smaller one does not have it.
    if abs(effect) > 1e-6:
        less = power_proportions(p_a, p_a + 0.99 * effect, n_a, n_b, alpha=alpha, alternative=alternative)
        assert less < power


@given(RATES, st.integers(100, 10**5), ALPHAS)
def test_effect_and_size_are_inverse(p_a, n, alpha):
    try:
        effect = min_detectable_effect(p_a, n, alpha=alpha)
    except ValueError:
        assume(False)
    assert sample_size_proportions(p_a, p_a + effect, alpha=alpha) in (n, n + 1)


@given(st.integers(1, 10**7), st.floats(0.5, 1e6))
def test_duration_is_whole_weeks(n, per_day):
    found = duration(n, per_day)
    assert found.days == 7 * found.weeks
    assert found.minimum_days - 1 < n / per_day <= found.minimum_days
    assert found.days - 7 < found.minimum_days <= found.days


@pytest.mark.parametrize(
    ("function", "arguments", "options", "message"),
    [
        (power_proportions, (5, 0.06, 100), {}, "`p_a` must be .* got 5. Not per cent: write 0.05."),
        (power_proportions, (0.05, 0, 100), {}, "`p_b` must be a finite number above 0 and below 1, got 0"),
        (power_proportions, (0.05, 0.06, 0), {}, "`n_a` must be a whole number >= 1"),
        (power_proportions, (0.05, 0.06, 10, 2.5), {}, "`n_b` must be a whole number"),
        (power_proportions, (0.05, 0.06, 10), {"alpha": 5}, "`alpha` must"),
        (power_proportions, (0.05, 0.06, 10), {"alternative": "up"}, "`alternative` must"),
        (sample_size_proportions, (0.05, 0.05), {}, "`p_b` must differ from `p_a`"),
        (sample_size_proportions, (0.05, 0.06), {"alternative": "less"}, "`p_b` must be below `p_a` .* 0.06 against 0.05"),
        (sample_size_proportions, (0.06, 0.05), {"alternative": "greater"}, "`p_b` must be above `p_a`"),
        (sample_size_proportions, (0.05, 0.06), {"power": 80}, "`power` must .* write 0.8"),
        (sample_size_proportions, (0.05, math.nan), {}, "`p_b` must"),
        (min_detectable_effect, (0.5, 3), {}, "No rate above 0.5 is found with the power 0.8 by 3 and 3 users"),
        (min_detectable_effect, (0.5, 3), {"alternative": "less"}, "No rate below 0.5"),
        (min_detectable_effect, (0.5, 100), {"power": 0.05}, "`power` must be above `alpha`, got 0.05 and 0.05"),
        (min_detectable_effect, (0.5, 100), {"power": 1}, "`power` must"),
        (duration, (0, 100), {}, "`n_required` must be a whole number >= 1"),
        (duration, (100, 0), {}, "`eligible_per_day` must be a finite number above 0"),
        (duration, (100, -5), {}, "`eligible_per_day` must"),
    ],
)
def test_bad_plans(function, arguments, options, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments, **options)
