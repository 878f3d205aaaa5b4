"""Means, ratios and CUPED: against scipy, by simulation, and laws; moments that do not cancel."""

from __future__ import annotations

import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given
from hypothesis import strategies as st

from lightning_rank.stats import (
    Moments,
    cuped,
    cuped_from_moments,
    ratio_from_moments,
    ratio_of_means,
    two_proportions,
    welch,
    welch_from_moments,
)

SIDES = ("two-sided", "greater", "less")
NUMBERS = st.integers(-40, 40).map(lambda x: x / 4)
COLUMN = st.lists(NUMBERS, min_size=2, max_size=12)
POSITIVE = st.lists(st.integers(1, 40).map(lambda x: x / 4), min_size=2, max_size=12)
PAIRS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=12)


def pairs(values: list[tuple[float, float]]) -> list[list[float]]:
    return [list(column) for column in zip(*values, strict=True)]


def same(found, expected, rel=1e-7, skip=()):
    """All fields of two results, but those named."""
    found, expected = found.to_dict(), expected.to_dict()
    assert found.keys() == expected.keys()
    for name in found.keys() - set(skip):
        if isinstance(found[name], str):
            assert found[name] == expected[name]
        else:
            assert found[name] == pytest.approx(expected[name], rel=rel, abs=1e-11, nan_ok=True), name


# Welch -----------------------------------------------------------------------------------------------------------------


@given(COLUMN, COLUMN, st.sampled_from(SIDES))
def test_welch_is_that_of_scipy(a, b, alternative):
    assume(np.ptp(a) + np.ptp(b) > 0)
    found = welch(a, b, alternative=alternative)
    with warnings.catch_warnings():
        # scipy takes a constant arm for a loss of precision.
        warnings.simplefilter("ignore", RuntimeWarning)
        expected = scipy.stats.ttest_ind(b, a, equal_var=False, alternative=alternative)
    assert found.statistic == pytest.approx(expected.statistic, rel=1e-9, abs=1e-12)
    assert found.pvalue == pytest.approx(expected.pvalue, rel=1e-9)
    assert found.df == pytest.approx(expected.df)
    interval = expected.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-8, abs=1e-9)
    assert found.low <= found.difference <= found.high


@given(COLUMN, COLUMN, st.sampled_from(SIDES))
def test_welch_from_moments_is_welch(a, b, alternative):
    moments = [f(x) for x in (a, b) for f in (np.mean, lambda x: np.var(x, ddof=1), len)]
    same(welch_from_moments(*moments, alternative=alternative), welch(a, b, alternative=alternative))


@given(COLUMN, COLUMN)
def test_swapped_arms_turn_the_difference_round(a, b):
    forth, back = welch(a, b), welch(b, a)
    assert (back.difference, back.low, back.high, back.pvalue) == pytest.approx(
        (-forth.difference, -forth.high, -forth.low, forth.pvalue), abs=1e-12
    )


@given(POSITIVE, POSITIVE)
def test_lift_of_swapped_arms_is_the_inverse(a, b):
    forth, back = welch(a, b), welch(b, a)
    assert 1 + back.relative == pytest.approx(1 / (1 + forth.relative))
    assert 1 + forth.relative_low == pytest.approx(1 / (1 + back.relative_high), rel=1e-6)
    assert forth.relative_low <= forth.relative <= forth.relative_high


@given(COLUMN, COLUMN, st.sampled_from(SIDES))
def test_lift_does_not_depend_on_the_unit(a, b, alternative):
    plain, hundred = (welch([c * x for x in a], [c * x for x in b], alternative=alternative) for c in (1, 100))
    same(hundred, plain, skip=("value_a", "value_b", "difference", "se", "low", "high"))


def test_among_negative_values_the_larger_has_the_smaller_ratio():
    losses, gains = [-4.0, -5.0, -6.0], [4.0, 5.0, 6.0]
    less = [x / 2 for x in losses]
    found = welch(losses, less, alternative="greater")
    assert found.difference == 2.5
    assert found.relative == -0.5
    # b > a bounds the ratio from above.
    assert found.relative_low == -math.inf
    assert found.relative_high == welch(gains, [x / 2 for x in gains], alternative="less").relative_high


@pytest.mark.parametrize("a", [[0.0, 0.0], [1.0, -1.0], [1.0, 2.0]])
def test_lift_that_is_undefined(a):
    found = welch(a, [-2.0, -3.0])
    assert math.isnan(found.relative) == (sum(a) == 0)
    assert math.isnan(found.relative_low)
    assert math.isnan(found.relative_high)


@pytest.mark.parametrize("alternative", SIDES)
@pytest.mark.parametrize(
    ("a", "b"),
    [([2.0] * 3, [2.0] * 5), ([0.1] * 3, [0.1] * 10), ([0.1 + 0.2] * 4, [0.3] * 4), ([1e9 + 0.1] * 7, [1e9 + 0.1] * 3)],
)
def test_no_variance_and_no_difference(a, b, alternative):
    found = welch(a, b, alternative=alternative)
    assert (found.difference, found.se, found.statistic, found.pvalue, found.relative) == (0, 0, 0, 1, 0)
    assert (found.low, found.high) == (
        -math.inf if alternative == "less" else 0,
        math.inf if alternative == "greater" else 0,
    )
    assert found.df == len(a) + len(b) - 2


def test_no_variance_and_a_difference():
    found = welch([1.0, 1.0], [2.0, 2.0])
    assert (found.difference, found.se, found.statistic, found.pvalue) == (1, 0, math.inf, 0)
    assert (found.low, found.high, found.relative, found.relative_low, found.relative_high) == (1, 1, 1, 1, 1)
    assert welch([2.0, 2.0], [1.0, 1.0]).statistic == -math.inf
    assert welch([2.0, 2.0], [1.0, 1.0], alternative="greater").pvalue == 1


@given(COLUMN, COLUMN)
def test_values_far_from_zero_keep_their_test(a, b):
    far_a, far_b = ([1e9 + x for x in column] for column in (a, b))
    assume(np.ptp(a) + np.ptp(b) > 0)
    near, far = welch(a, b), welch(far_a, far_b)
    # The mean of such values is itself rounded to 1.2e-7.
    assert far.difference == pytest.approx(near.difference, abs=4e-7)
    assert far.se == pytest.approx(near.se, rel=1e-6)


def test_one_arm_may_be_constant():
    found = welch([1.0, 1.0, 1.0], [1.0, 2.0, 3.0])
    assert found.df == 2
    assert found.pvalue == pytest.approx(scipy.stats.ttest_1samp([1.0, 2.0, 3.0], 1.0).pvalue)


def test_interval_of_the_lift_covers():
    """1,000 tests of 12 users each; an interval without the control's variance covers 84 %."""
    generator = np.random.default_rng(5)
    covered = plain = 0
    for _ in range(1000):
        found = welch(generator.normal(10, 3, 12), generator.normal(12, 3, 12))
        covered += found.relative_low <= 0.2 <= found.relative_high
        plain += found.low <= 2 <= found.high
    assert covered / 1000 == pytest.approx(0.95, abs=0.025)
    assert plain / 1000 == pytest.approx(0.95, abs=0.025)


BAD_COLUMNS = [
    ([1.0], "must have at least 2 values, got 1"),
    ([], "must have at least 2 values, got 0"),
    ([1.0, math.nan, 2.0], "must be finite, got nan at position 1"),
    ([1.0, 2.0, math.inf], "must be finite, got inf at position 2"),
    ([[1.0, 2.0]], r"must have one axis, got the shape \(1, 2\)"),
    (["x", "y"], "must be a sequence of numbers: could not convert"),
    ([None, 1.0], "must be"),
    ("12", "must be a sequence of numbers, got str"),
    ({"u": 1.0, "v": 2.0}, "must be a sequence of numbers, got dict"),
    (3.0, "must be a sequence of numbers, got float"),
]


@pytest.mark.parametrize(("bad", "message"), BAD_COLUMNS)
def test_bad_columns(bad, message):
    good = [1.0, 2.0, 3.0]
    for arguments, name in (((bad, good), "a"), ((good, bad), "b")):
        with pytest.raises(ValueError, match=f"`{name}` {message}"):
            welch(*arguments)
    with pytest.raises(ValueError, match=message):
        ratio_of_means(bad, bad, good, good)
    with pytest.raises(ValueError, match=message):
        cuped(good, good, good, bad)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"alpha": 95}, "write 0.95"), ({"alternative": "bigger"}, "`alternative` must be one of 'two-sided'")],
)
def test_bad_options(options, message):
    good = [1.0, 2.0, 3.0]
    for function, columns in ((welch, 2), (ratio_of_means, 4), (cuped, 4)):
        with pytest.raises(ValueError, match=message):
            function(*[good] * columns, **options)
    with pytest.raises(ValueError, match=message):
        welch_from_moments(1, 1, 9, 1, 1, 9, **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, -1, 9, 1, 1, 9), "`variance_a` must be at least 0, got -1"),
        ((1, 1, 1, 1, 1, 9), "`n_a` must be a whole number >= 2, got 1"),
        ((1, 1, 9, math.nan, 1, 9), "`mean_b` must be a finite number, got nan"),
        ((1, 1, 9, 1, math.inf, 9), "`variance_b` must be a finite number, got inf"),
    ],
)
def test_bad_moments(arguments, message):
    with pytest.raises(ValueError, match=message):
        welch_from_moments(*arguments)


def test_columns_of_many_kinds():
    pandas = pytest.importorskip("pandas")
    torch = pytest.importorskip("torch")
    a, b = [1.0, 2.0, 4.0], [True, False, True]
    expected = welch(a, b)
    for kind in (tuple, np.array, pandas.Series, torch.tensor, iter, lambda x: dict(enumerate(x)).values()):
        assert welch(kind(a), kind(b)) == expected


# Ratios ----------------------------------------------------------------------------------------------------------------


@given(COLUMN, COLUMN, st.sampled_from(SIDES))
def test_a_ratio_over_ones_is_a_mean(a, b, alternative):
    ratio = ratio_of_means(a, [1.0] * len(a), b, [1.0] * len(b), alternative=alternative)
    same(ratio, welch(a, b, alternative=alternative))


@given(PAIRS, PAIRS, st.booleans())
def test_ratio_by_the_formula_of_the_delta_method(a, b, use_t):
    (y_a, x_a), (y_b, x_b) = columns = pairs(a), pairs(b)
    assume(sum(x_a) and sum(x_b))
    found = ratio_of_means(y_a, x_a, y_b, x_b, use_t=use_t)
    # In fractions, residual by residual.
    ratios, variances = [], []
    for y, x in columns:
        ratio, n = Fraction(sum(y), sum(x)), len(x)
        residuals = [v - ratio * u for v, u in zip(y, x, strict=True)]
        ratios.append(float(ratio))
        variances.append(float(sum(r * r for r in residuals) / (n - 1) / n / Fraction(sum(x), n) ** 2))
    assert (found.value_a, found.value_b) == pytest.approx(tuple(ratios))
    assert found.se == pytest.approx(math.sqrt(sum(variances)), rel=1e-7)
    if use_t and sum(variances):
        shares = [v / sum(variances) for v in variances]
        df = 1 / sum(s * s / (len(x) - 1) for s, (x, _) in zip(shares, columns, strict=True))
        assert found.df == pytest.approx(df, rel=1e-6)
    elif not use_t:
        assert found.df == math.inf


@given(PAIRS, PAIRS)
def test_the_unit_of_the_denominator_scales_the_ratio(a, b):
    (y_a, x_a), (y_b, x_b) = pairs(a), pairs(b)
    assume(sum(x_a) and sum(x_b))
    plain = ratio_of_means(y_a, x_a, y_b, x_b)
    tenth = ratio_of_means(y_a, [10 * x for x in x_a], y_b, [10 * x for x in x_b])
    assert (tenth.difference, tenth.se, tenth.pvalue) == pytest.approx(
        (plain.difference / 10, plain.se / 10, plain.pvalue), rel=1e-7, abs=1e-12
    )


@pytest.mark.parametrize("rate", [0.1, 0.3, 1 / 3])
def test_a_rate_that_is_the_same_for_all_has_no_variance(rate):
    x_a, x_b = [3.0, 7.0, 11.0, 2.0], [5.0, 9.0, 13.0]
    found = ratio_of_means([rate * x for x in x_a], x_a, [rate * x for x in x_b], x_b)
    assert (found.difference, found.se, found.statistic, found.pvalue) == (0, 0, 0, 1)


def test_users_without_impressions_stay_users():
    with_idle = ratio_of_means([1, 2, 0], [4, 5, 0], [2, 3, 0], [4, 5, 0])
    without = ratio_of_means([1, 2], [4, 5], [2, 3], [4, 5])
    assert with_idle.value_a == without.value_a
    assert with_idle.se != without.se


def test_the_user_is_the_unit():
    """Clicks of heavy users come together; the test by impression finds far too many differences between equal arms."""
    generator = np.random.default_rng(3)
    by_user = by_impression = 0
    for _ in range(400):
        arms = []
        for _ in "ab":
            impressions = 1 + generator.poisson(20, 200)
            arms.append((generator.binomial(impressions, generator.beta(1, 4, 200)), impressions))
        (y_a, x_a), (y_b, x_b) = arms
        by_user += ratio_of_means(y_a, x_a, y_b, x_b).pvalue < 0.05
        by_impression += two_proportions(y_a.sum(), x_a.sum(), y_b.sum(), x_b.sum()).pvalue < 0.05
    assert by_user / 400 == pytest.approx(0.05, abs=0.035)
    assert by_impression / 400 > 0.2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 0, 2], [4, 3], [1, 0], [4, 3]), "`numer_a` and `denom_a` must be of one length, got 3 and 2"),
        (([1, 0], [4, -1], [1, 0], [4, 3]), "`denom_a` must be at least 0, got -1"),
        (([1, 0], [4, 3], [0, 0], [0, 0]), "The denominator of b must have a positive sum"),
        (([1], [4], [1, 0], [4, 3]), "`numer_a` must have at least 2 values"),
    ],
)
def test_bad_ratios(arguments, message):
    with pytest.raises(ValueError, match=message):
        ratio_of_means(*arguments)


# CUPED -----------------------------------------------------------------------------------------------------------------


@given(PAIRS, PAIRS, st.sampled_from(SIDES))
def test_cuped_is_welch_on_what_the_covariate_leaves(a, b, alternative):
    (y_a, x_a), (y_b, x_b) = (np.array(pairs(arm), dtype=float) for arm in (a, b))
    x, y = np.concatenate([x_a, x_b]), np.concatenate([y_a, y_b])
    found = cuped(y_a, x_a, y_b, x_b, alternative=alternative)
    theta = np.cov(x, y)[0, 1] / x.var(ddof=1) if np.ptp(x) else 0.0
    assert found.theta == pytest.approx(theta, rel=1e-9, abs=1e-12)
    rest_a, rest_b = (v - theta * (u - x.mean()) for v, u in ((y_a, x_a), (y_b, x_b)))
    # Nothing but rounding is left of an outcome that the covariate explains.
    assume(np.ptp(rest_a) + np.ptp(rest_b) > 1e-9)
    expected = welch(rest_a, rest_b, alternative=alternative)
    for name, value in expected.to_dict().items():
        if name != "alternative":
            assert getattr(found, name) == pytest.approx(value, rel=1e-6, abs=1e-9, nan_ok=True), name
    plain = welch(y_a, y_b)
    if plain.se:
        assert found.variance_reduction == pytest.approx(1 - (expected.se / plain.se) ** 2, abs=1e-7)


@given(PAIRS, PAIRS)
def test_scale_and_origin_of_the_covariate_do_not_matter(a, b):
    (y_a, x_a), (y_b, x_b) = (np.array(pairs(arm), dtype=float) for arm in (a, b))
    same(cuped(y_a, 5 - 3 * x_a, y_b, 5 - 3 * x_b), cuped(y_a, x_a, y_b, x_b), skip=("theta",), rel=1e-6)


def test_an_outcome_that_the_covariate_explains():
    x_a, x_b = np.array([0.1, 0.7, 0.4]), np.array([0.3, 0.2, 0.9, 0.5])
    found = cuped(0.1 + 0.3 * x_a, x_a, 0.1 + 0.3 * x_b, x_b)
    assert (found.difference, found.se, found.pvalue, found.variance_reduction) == (0, 0, 1, 1)
    assert found.theta == pytest.approx(0.3)


def test_cuped_finds_what_the_plain_test_cannot():
    """The effect on the scale of the outcome, with a quarter of the variance."""
    generator = np.random.default_rng(11)
    before = [generator.normal(50, 10, 400) for _ in "ab"]
    a, b = (50 + x + generator.normal(effect, 10 / math.sqrt(3), 400) for x, effect in zip(before, (0, 1.5), strict=True))
    found, plain = cuped(a, before[0], b, before[1]), welch(a, b)
    assert found.variance_reduction == pytest.approx(0.75, abs=0.05)
    assert found.value_a == pytest.approx(100, abs=2)
    assert found.low < 1.5 < found.high
    assert found.high - found.low < 0.6 * (plain.high - plain.low)


def test_bad_covariates():
    with pytest.raises(ValueError, match="`outcome_b` and `covariate_b` must be of one length, got 3 and 2"):
        cuped([1, 2], [1, 2], [1, 2, 3], [1, 2])


# Moments ---------------------------------------------------------------------------------------------------------------


@given(st.lists(PAIRS | st.just([]), min_size=1, max_size=5), st.sampled_from((0.0, 1e9)))
def test_moments_of_pieces_are_those_of_the_whole(pieces, origin):
    def moments(rows):
        return Moments.of(*(np.array(column) + origin for column in (pairs(rows) if rows else ([], []))))

    merged = moments([])
    for piece in pieces:
        merged = merged | moments(piece)
    whole = [row for piece in pieces for row in piece]
    assume(whole)
    expected = np.array(whole, dtype=float).T
    assert merged.n == len(whole)
    np.testing.assert_allclose(merged.mean - origin, expected.mean(axis=1), rtol=1e-12, atol=1e-6 if origin else 1e-12)
    # The same variances at 1e9 as at 0: the mean is rounded, what is squared hardly.
    np.testing.assert_allclose(merged.covariance(), np.cov(expected), rtol=1e-6, atol=1e-5 if origin else 1e-12)


def test_moments_from_one_user_at_a_time():
    generator = np.random.default_rng(0)
    values = 1e9 + generator.choice([-1.0, 1.0], 1000)
    merged = Moments.of([])
    for value in values:
        merged = merged | Moments.of([value])
    # Fractions know the variance of these numbers exactly.
    exact = [Fraction(value) for value in values]
    mean = sum(exact) / 1000
    assert merged.covariance()[0, 0] == pytest.approx(float(sum((x - mean) ** 2 for x in exact) / 999), rel=1e-6)


@given(PAIRS, PAIRS)
def test_tests_from_merged_moments(a, b):
    columns = pairs(a), pairs(b)
    merged = [Moments.of(*(c[:1] for c in arm)) | Moments.of(*(c[1:] for c in arm)) for arm in columns]
    same(cuped_from_moments(*merged), cuped(*columns[0], *columns[1]), rel=1e-6)
    if sum(columns[0][1]) and sum(columns[1][1]):
        same(ratio_from_moments(*merged, use_t=False), ratio_of_means(*columns[0], *columns[1], use_t=False), rel=1e-6)


def test_moments_are_immutable():
    moments = Moments.of([1.0, 2.0])
    with pytest.raises(ValueError, match="read-only"):
        moments.mean[0] = 3
    with pytest.raises(ValueError, match="read-only"):
        moments.scatter[0, 0] = 3
    with pytest.raises(AttributeError):
        moments.n = 3
    both = moments | Moments.of([3.0])
    assert (moments.n, both.n, both.mean.tolist()) == (2, 3, [2.0])


def test_bad_uses_of_moments():
    one, two = Moments.of([1.0, 2.0]), Moments.of([1.0, 2.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="as many columns can be merged, got 1 and 2"):
        one | two
    with pytest.raises(TypeError):
        one | 3
    with pytest.raises(ValueError, match="at least one column"):
        Moments.of()
    with pytest.raises(ValueError, match="must be of one length, got 2 and 1"):
        Moments.of([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="at least 2 users, got 1"):
        Moments.of([1.0]).covariance()
    for function in (ratio_from_moments, cuped_from_moments):
        with pytest.raises(ValueError, match="`b` must be the `Moments` of two columns"):
            function(two, one)
        with pytest.raises(ValueError, match="Arm a must have at least 2 users, got 1"):
            function(Moments.of([1.0], [1.0]), two)
