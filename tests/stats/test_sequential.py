"""Looking more than once: published bounds, simulated walks, and laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from lightning_rank.stats import always_valid, group_sequential_bounds
from tests.stats import needs_new_scipy

# Jennison and Turnbull, "Group Sequential Methods", 2000, tables 2.1 and 2.3: constants.
POCOCK = {0.05: {2: 2.178, 3: 2.289, 4: 2.361, 5: 2.413, 10: 2.555, 20: 2.672}, 0.01: {2: 2.772, 5: 2.986, 10: 3.117}}
OBRIEN = {0.05: {2: 1.977, 3: 2.004, 4: 2.024, 5: 2.040, 10: 2.087, 20: 2.126}}


@pytest.mark.parametrize(
    ("kind", "alpha", "looks", "constant"),
    [
        (kind, alpha, looks, constant)
        for kind, table in (("pocock", POCOCK), ("obrien-fleming", OBRIEN))
        for alpha, row in table.items()
        for looks, constant in row.items()
    ],
)
def test_published_constants(kind, alpha, looks, constant):
    bounds = group_sequential_bounds(looks, alpha, kind)
    shape = np.ones(looks) if kind == "pocock" else np.sqrt(looks / np.arange(1, looks + 1))
    np.testing.assert_allclose(bounds.z, constant * shape, atol=6e-4 * shape.max())
    np.testing.assert_allclose(bounds.nominal, 2 * scipy.stats.norm.sf(bounds.z), rtol=1e-9)


@pytest.mark.parametrize("kind", ["pocock", "obrien-fleming"])
@pytest.mark.parametrize("alpha", [0.2, 0.05, 1e-6])
def test_one_look_is_the_fixed_test(kind, alpha):
    bounds = group_sequential_bounds(1, alpha, kind)
    assert bounds.z == pytest.approx([scipy.stats.norm.isf(alpha / 2)], rel=1e-9)
    assert bounds.nominal == pytest.approx([alpha])


@needs_new_scipy
@pytest.mark.parametrize("kind", ["pocock", "obrien-fleming"])
@pytest.mark.parametrize(("looks", "alpha"), [(3, 0.1), (5, 0.01)])
def test_looks_by_the_multivariate_normal(kind, looks, alpha):
    bounds = group_sequential_bounds(looks, alpha, kind).z
    look = np.arange(1, looks + 1)
    correlation = np.sqrt(np.minimum.outer(look, look) / np.maximum.outer(look, look))
    normal = scipy.stats.multivariate_normal(cov=correlation, maxpts=200_000, abseps=1e-8, releps=1e-8, seed=0)
    stays = normal.cdf(bounds, lower_limit=-bounds)
    assert 1 - stays == pytest.approx(alpha, abs=1e-5)


def test_walks_without_drift_leave_as_often_as_promised():
    steps = np.random.default_rng(4).standard_normal((40_000, 10))
    z = np.abs(steps.cumsum(axis=1)) / np.sqrt(np.arange(1, 11))
    for kind in ("pocock", "obrien-fleming"):
        errors = (z >= group_sequential_bounds(10, 0.05, kind).z).any(axis=1).mean()
        assert errors == pytest.approx(0.05, abs=0.005)
    # The fixed bound at every look is the classic mistake.
    assert (z >= 1.96).any(axis=1).mean() == pytest.approx(0.19, abs=0.01)


def test_a_small_level_is_not_lost_to_rounding():
    bounds = group_sequential_bounds(4, 1e-12, "pocock").z
    assert scipy.stats.norm.isf(1e-12 / 2) < bounds[0] < scipy.stats.norm.isf(1e-12 / 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "`looks` must be a whole number >= 1, got 0"),
        ((2.5,), "`looks` must be a whole number"),
        ((5, 5), "`alpha` must"),
        ((5, 0.05, "haybittle"), "`kind` must be one of 'pocock', 'obrien-fleming', got 'haybittle'"),
    ],
)
def test_bad_bounds(arguments, message):
    with pytest.raises(ValueError, match=message):
        group_sequential_bounds(*arguments)


# Always-valid ----------------------------------------------------------------------------------------------------------

DIFFERENCES = st.floats(-1, 1)
VARIANCES = st.floats(1e-4, 1)


@given(DIFFERENCES, VARIANCES, st.floats(0.05, 2))
def test_likelihood_ratio_is_that_of_the_mixture(difference, variance, tau):
    # d is N(0, V) without an effect, N(0, V + tau²) with one drawn from N(0, tau²).
    expected = scipy.stats.norm.logpdf(difference, scale=math.sqrt(variance + tau**2)) - scipy.stats.norm.logpdf(
        difference, scale=math.sqrt(variance)
    )
    found = always_valid(difference, variance, tau=tau)
    if expected < 700:
        assert math.log(found.likelihood_ratio) == pytest.approx(expected, abs=1e-9, rel=1e-9)
    assert found.pvalue == pytest.approx(min(1.0, math.exp(-expected)), rel=1e-7, abs=1e-300)


@given(DIFFERENCES, VARIANCES, st.floats(0.05, 2), st.sampled_from((0.01, 0.05, 0.3)))
def test_the_interval_is_what_the_test_does_not_reject(difference, variance, tau, alpha):
    found = always_valid(difference, variance, tau=tau, alpha=alpha)
    assert found.low < difference < found.high
    # Shifted so that the end is no difference, the p is alpha.
    for end in (found.low, found.high):
        assert always_valid(difference - end, variance, tau=tau).pvalue == pytest.approx(alpha, rel=1e-6)


@given(st.lists(st.tuples(DIFFERENCES, VARIANCES), min_size=1, max_size=8))
def test_looks_are_looks_one_by_one_but_for_the_running_minimum(looks):
    d, v = zip(*looks, strict=True)
    found = always_valid(d, v, tau=0.3)
    single = [always_valid(*look, tau=0.3) for look in looks]
    for name in ("likelihood_ratio", "low", "high"):
        np.testing.assert_allclose(getattr(found, name), [getattr(one, name) for one in single], rtol=1e-12)
    np.testing.assert_allclose(found.pvalue, np.minimum.accumulate([one.pvalue for one in single]), rtol=1e-12)


def test_a_ratio_beyond_floats():
    found = always_valid([1.0, 0.0], [1e-6, 1e-6], tau=1.0)
    assert found.likelihood_ratio[0] == math.inf
    assert found.pvalue.tolist() == [0.0, 0.0]
    assert np.isfinite([found.low, found.high]).all()


def test_looking_all_the_time_errs_less_than_alpha():
    """2,000 tests without an effect, looked at 200 times: the fixed p errs often, the always-valid one seldom."""
    look = np.arange(1, 201)
    walks = np.random.default_rng(8).standard_normal((2000, 200)).cumsum(axis=1) / look
    errors = np.mean([always_valid(walk, 1 / look, tau=0.3).pvalue[-1] < 0.05 for walk in walks])
    assert 0.005 < errors < 0.05
    assert (np.abs(walks) * np.sqrt(look) > 1.96).any(axis=1).mean() > 0.35
    # And with one it is found.
    assert np.mean([always_valid(walk + 0.4, 1 / look, tau=0.3).pvalue[-1] < 0.05 for walk in walks[:200]]) > 0.9


@pytest.mark.parametrize(
    ("arguments", "tau", "message"),
    [
        ((0.1, 0.0), 0.1, "`variance` must be above 0, got 0"),
        ((0.1, -1.0), 0.1, "`variance` must be above 0, got -1"),
        ((0.1, 0.1), 0.0, "`tau` must be a finite number above 0"),
        ((math.nan, 0.1), 0.1, "`difference` must be finite, got nan"),
        (([0.1, 0.2], [0.1]), 0.1, "`difference` and `variance` must be of one length, got 2 and 1"),
        (([0.1, 0.2], 0.1), 0.1, "must both be numbers, or sequences"),
        (([], []), 0.1, "`difference` must have at least 1 value, got 0"),
    ],
)
def test_bad_looks(arguments, tau, message):
    with pytest.raises(ValueError, match=message):
        always_valid(*arguments, tau=tau)
    with pytest.raises(TypeError):
        always_valid(0.1, 0.1)  # tau has no default
