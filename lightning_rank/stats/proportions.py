"""Rates: one of them, two compared, one shown to be no worse than another, and whether the arms have the users they should."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_rank.stats.checks import (
    arm,
    check_alternative,
    check_choice,
    column,
    number,
    probability,
    same_length,
    whole,
)
from lightning_rank.stats.distributions import critical, lift_interval, one_sided, optimize, p_of, special
from lightning_rank.stats.results import Result, show, show_interval, show_lift, show_p


@dataclass(frozen=True)
class Proportion(Result):
    """A rate and its interval.

    Attributes:
        estimate: successes / n.
        low, high: ends of the interval.
        alpha: 1 - its level.
    """

    estimate: float
    low: float
    high: float
    alpha: float

    def __str__(self) -> str:
        return f"{show(self.estimate)} [{show(self.low)}, {show(self.high)}] at {show(100 * (1 - self.alpha))} %"


@dataclass(frozen=True)
class TwoProportions(Result):
    """Two rates compared, b - a.

    Attributes:
        value_a, value_b: the rates.
        difference: b - a.
        z: the statistic.
        pvalue: its p under ``alternative``.
        low, high: Newcombe's interval of the difference.
        relative: the lift b / a - 1; NaN where a is 0.
        relative_low, relative_high: its interval; NaN where one of the rates is 0.
        alternative: ``"two-sided"``, ``"greater"`` (b > a) or ``"less"``; a one-sided test has one-sided intervals.
        alpha: 1 - the level of the intervals.
    """

    value_a: float
    value_b: float
    difference: float
    z: float
    pvalue: float
    low: float
    high: float
    relative: float
    relative_low: float
    relative_high: float
    alternative: str
    alpha: float

    @property
    def statistic(self) -> float:
        """The statistic under the name that other comparisons give it."""
        return self.z

    def __str__(self) -> str:
        return (
            f"{show(self.value_a)} -> {show(self.value_b)}: {show(self.difference, True)} "
            f"{show_interval(self.low, self.high, self.alpha)}, "
            f"{show_lift(self.relative, self.relative_low, self.relative_high)}, z = {show(self.z)}, "
            f"{show_p(self.pvalue)} ({self.alternative})"
        )


@dataclass(frozen=True)
class NonInferiority(Result):
    """Whether b is shown to be worse than a by less than a margin.

    Attributes:
        difference: b - a.
        z: the statistic of the test against the margin.
        pvalue: its one-sided p.
        low, high: the one-sided bound that decides; the other end is infinite.
        non_inferior: whether it is shown, ``pvalue < alpha``.
        margin: the largest harm that would be accepted.
        alpha: 1 - the level of the bound.
    """

    difference: float
    z: float
    pvalue: float
    low: float
    high: float
    non_inferior: bool
    margin: float
    alpha: float

    def __str__(self) -> str:
        return (
            f"{show(self.difference, True)} {show_interval(self.low, self.high, self.alpha)}, margin {show(self.margin)}, "
            f"z = {show(self.z)}, {show_p(self.pvalue)}: {'' if self.non_inferior else 'not '}shown to be non-inferior"
        )


@dataclass(frozen=True)
class SampleRatio(Result):
    """Users per arm against the planned weights.

    Attributes:
        statistic: chi-square.
        df: number of arms - 1.
        pvalue: of the planned weights.
        mismatch: ``pvalue < alpha``, or an arm that got nobody.
        expected: users that each arm should have, by arm where the counts came so.
        alpha: the level of the check.
    """

    statistic: float
    df: int
    pvalue: float
    mismatch: bool
    expected: tuple[float, ...] | Mapping[Any, float]
    alpha: float

    def __str__(self) -> str:
        verdict = "MISMATCH: the assignment or the log is broken" if self.mismatch else "as planned"
        place = f"{'' if self.pvalue < self.alpha else 'not '}below {show(self.alpha)}"
        return (
            f"sample ratio {verdict}: chi-square = {show(self.statistic)}, df = {self.df}, {show_p(self.pvalue)}, {place}"
        )


def wilson(successes: int, n: int, *, alpha: float = 0.05) -> Proportion:
    """The Wilson score interval of a rate, which holds at rates near 0 and 1 and for few users.

    Raises:
        ValueError: no users, more successes than users, or ``alpha`` outside (0, 1).

    Source: Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", JASA 1927.

    Example:
        >>> print(wilson(45, 60))
        0.75 [0.6277, 0.8422] at 95 %
    """
    successes, n = arm(successes, n)
    alpha = probability("alpha", alpha)
    return Proportion(successes / n, *_wilson_limits(successes, n, critical(alpha, "two-sided")), alpha)


def two_proportions(
    successes_a: int,
    n_a: int,
    successes_b: int,
    n_b: int,
    *,
    alternative: str = "two-sided",
    alpha: float = 0.05,
    null_difference: float = 0.0,
) -> TwoProportions:
    """Rate of the treatment b against that of the control a: score test, Newcombe's interval, lift with its interval.

    The variance of z is that under the null hypothesis: of the pooled rate, or for another ``null_difference`` of the rates
    that are most likely at this difference. There is no continuity correction. Without a success anywhere (or without a
    failure) z is 0 and p is 1. The interval need not agree with p at the border, as they have different variances.

    Args:
        successes_a: users of a who did it; ``n_a``: users of a. The same for b.
        alternative: ``"two-sided"``, ``"greater"`` (b > a) or ``"less"``.
        alpha: 1 - the level of the intervals.
        null_difference: b - a under the null hypothesis, in (-1, 1).

    Raises:
        ValueError: an empty arm, more successes than users, an option out of range.

    Source: Farrington and Manning, Statistics in Medicine 1990; Newcombe, Statistics in Medicine 1998, method 10; lift: Katz
        et al., Biometrics 1978.

    Example:
        >>> print(two_proportions(500, 10_000, 560, 10_000))
        0.05 -> 0.056: +0.006 [-0.0002127, +0.01222] at 95 %, lift +12 % [-0.403, +25.9], z = 1.894, p = 0.0583 (two-sided)
    """
    x_a, n_a = arm(successes_a, n_a, "_a")
    x_b, n_b = arm(successes_b, n_b, "_b")
    check_alternative(alternative)
    alpha = probability("alpha", alpha)
    null = number("null_difference", null_difference, above=-1, below=1)
    rate_a, rate_b = x_a / n_a, x_b / n_b
    difference = rate_b - rate_a
    z, pvalue = _score_test(x_a, n_a, x_b, n_b, null, alternative)

    reach = critical(alpha, alternative)
    low_a, high_a = _wilson_limits(x_a, n_a, reach)
    low_b, high_b = _wilson_limits(x_b, n_b, reach)
    low = difference - math.hypot(rate_b - low_b, high_a - rate_a)
    high = difference + math.hypot(high_b - rate_b, rate_a - low_a)

    relative = rate_b / rate_a - 1 if x_a else math.nan
    relative_low = relative_high = math.nan
    if x_a and x_b:
        error = math.sqrt((1 - rate_a) / x_a + (1 - rate_b) / x_b)
        relative_low, relative_high = lift_interval(rate_b / rate_a, reach * error, alternative)
    low, high = one_sided(low, high, alternative)
    return TwoProportions(
        rate_a, rate_b, difference, z, pvalue, low, high, relative, relative_low, relative_high, alternative, alpha
    )


def non_inferior(
    successes_a: int,
    n_a: int,
    successes_b: int,
    n_b: int,
    *,
    margin: float,
    alpha: float = 0.05,
    higher_is_better: bool = True,
    method: str = "score",
) -> NonInferiority:
    """Whether the treatment b is shown to be less than ``margin`` worse than the control a.

    "Not significantly worse" shows nothing; this tests the hypothesis that b is worse by the margin or more. Where higher is
    better that is b - a <= -margin, z is large where b is safe, and ``low`` is the bound; where lower is better (a bounce
    rate) it is b - a >= margin, z is small (negative) where b is safe, and ``high`` is the bound.

    Args:
        successes_a: users of a who did it; ``n_a``: users of a. The same for b.
        margin: the largest harm that would be accepted, in absolute terms: 0.002 is 0.2 points. It is chosen before the test.
        alpha: level of the one-sided test.
        higher_is_better: whether a success is good.
        method: ``"score"``, the variance at the margin, with the bound that inverts the test; ``"wald"``, that of the two rates.

    Raises:
        ValueError: an empty arm, more successes than users, a margin outside (0, 1), an unknown method.

    Source: Farrington and Manning, Statistics in Medicine 1990.

    Example:
        >>> print(non_inferior(2500, 50_000, 2475, 50_000, margin=0.002))
        -0.0005 [-0.002762, +inf] at 95 %, margin 0.002, z = 1.091, p = 0.138: not shown to be non-inferior
    """
    x_a, n_a = arm(successes_a, n_a, "_a")
    x_b, n_b = arm(successes_b, n_b, "_b")
    advice = "It is the largest harm that would be accepted; for 'better at all' see `two_proportions`."
    margin = number("margin", margin, above=0, below=1, advice=advice)
    alpha = probability("alpha", alpha)
    check_choice("method", method, ("score", "wald"))
    alternative = "greater" if higher_is_better else "less"
    null = -margin if higher_is_better else margin
    rate_a, rate_b = x_a / n_a, x_b / n_b
    difference = rate_b - rate_a
    reach = critical(alpha, alternative)
    if method == "wald":
        error = math.sqrt(rate_a * (1 - rate_a) / n_a + rate_b * (1 - rate_b) / n_b)
        z, pvalue = _z_test(difference - null, error, alternative)
        low, high = difference - reach * error, difference + reach * error
    else:
        z, pvalue = _score_test(x_a, n_a, x_b, n_b, null, alternative)
        low = _score_bound(x_a, n_a, x_b, n_b, reach) if higher_is_better else -math.inf
        # The upper bound of the difference of rates is minus the lower bound of that of the rates of failure.
        high = math.inf if higher_is_better else -_score_bound(n_a - x_a, n_a, n_b - x_b, n_b, reach)
    low, high = one_sided(low, high, alternative)
    return NonInferiority(difference, z, pvalue, low, high, pvalue < alpha, margin, alpha)


def sample_ratio(counts: Any, expected: Any = None, *, alpha: float = 0.001) -> SampleRatio:
    """Whether the arms have the users that the planned weights would give them: chi-square.

    A mismatch says that the assignment or the log is broken, and no other number of the experiment can be trusted. Count
    users, not sessions or user-days.

    Args:
        counts: users per arm, a sequence or a mapping by arm.
        expected: planned weights, any positive numbers, in the same form; None: equal. Mappings are joined on the arm; a
            planned arm that is not counted got nobody.
        alpha: the level, small as the check is repeated and a false alarm costs an experiment.

    Raises:
        ValueError: fewer than two arms, no users at all, a weight that is not positive, an arm that was not planned.

    Source: Fabijan et al., "Diagnosing Sample Ratio Mismatch in Online Controlled Experiments", KDD 2019.

    Example:
        >>> print(sample_ratio({"old": 821_588, "new": 815_482}, {"old": 0.5, "new": 0.5}))
        sample ratio MISMATCH: the assignment or the log is broken: chi-square = 22.77, df = 1, p = 1.82e-06, below 0.001
    """
    alpha = probability("alpha", alpha)
    arms: list[Any] | None = None
    if isinstance(counts, Mapping):
        if expected is None:
            expected = dict.fromkeys(counts, 1)
        if not isinstance(expected, Mapping):
            raise ValueError("`counts` and `expected` must both be by arm, or both sequences; only `counts` is a mapping.")
        if unplanned := [name for name in counts if name not in expected]:
            raise ValueError(f"`expected` must name every arm, but it has no {unplanned[0]!r}: it has {list(expected)}.")
        arms = list(expected)
        counts, expected = [counts.get(name, 0) for name in arms], list(expected.values())
    elif isinstance(expected, Mapping):
        raise ValueError("`counts` and `expected` must both be by arm, or both sequences; only `expected` is a mapping.")
    column("counts", counts, least=2)
    users = [whole("counts", count) for count in counts]
    weights = column("expected", [1] * len(users) if expected is None else expected)
    same_length(counts=users, expected=weights)  # type: ignore[arg-type]
    if not (weights > 0).all():
        raise ValueError(f"`expected` must be positive, got {weights.min():g}. Leave out an arm that is to get nobody.")
    total = sum(users)
    if not total:
        raise ValueError("`counts` must have a user, got 0 in every arm.")
    plan = (weights / weights.sum() * total).tolist()
    statistic = math.fsum((count - share) ** 2 / share for count, share in zip(users, plan, strict=True))
    pvalue = float(special().chdtrc(len(users) - 1, statistic))
    by_arm: Any = tuple(plan) if arms is None else dict(zip(arms, plan, strict=True))
    return SampleRatio(statistic, len(users) - 1, pvalue, pvalue < alpha or 0 in users, by_arm, alpha)


def _wilson_limits(successes: int, n: int, z: float) -> tuple[float, float]:
    centre = (successes + z * z / 2) / (n + z * z)
    reach = z / (n + z * z) * math.sqrt(successes * (n - successes) / n + z * z / 4)
    # Exactly 0 and 1 at the ends, where the sum would round.
    return centre - reach if successes else 0.0, centre + reach if successes < n else 1.0


def _z_test(distance: float, error: float, alternative: str) -> tuple[float, float]:
    """z and p of a distance from the null hypothesis; without any variance z is infinite, or 0 with p 1."""
    if not error:
        z = math.copysign(math.inf, distance) if distance else 0.0
        return z, p_of(z, alternative) if z else 1.0
    return distance / error, p_of(distance / error, alternative)


def _score_test(x_a: int, n_a: int, x_b: int, n_b: int, null: float, alternative: str) -> tuple[float, float]:
    p_a, p_b = _null_rates(x_a, n_a, x_b, n_b, null)
    variance = p_a * (1 - p_a) / n_a + p_b * (1 - p_b) / n_b
    # Without variance every user of both arms did the same, so that there is no difference either.
    return _z_test(x_b / n_b - x_a / n_a - null, math.sqrt(max(variance, 0.0)), alternative)


def _null_rates(x_a: int, n_a: int, x_b: int, n_b: int, null: float) -> tuple[float, float]:
    """The most likely rates given that b - a is ``null``."""
    if not null:
        pooled = (x_a + x_b) / (n_a + n_b)
        return pooled, pooled

    def slope(p_a: float) -> float:
        """The derivative of the log-likelihood, which falls."""
        p_b = p_a + null
        return _over(x_a, p_a) - _over(n_a - x_a, 1 - p_a) + _over(x_b, p_b) - _over(n_b - x_b, 1 - p_b)

    low, high = max(0.0, -null), min(1.0, 1 - null)
    middle = (low + high) / 2
    for _ in range(100):
        if not low < middle < high:
            break
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
        middle = (low + high) / 2
    return middle, min(max(middle + null, 0.0), 1.0)


def _over(count: int, rate: float) -> float:
    return count / rate if rate > 0 else (math.inf if count else 0.0)


def _score_bound(x_a: int, n_a: int, x_b: int, n_b: int, reach: float) -> float:
    """The null difference at which the score test for "greater" has z = ``reach``: the lower bound of b - a."""

    def excess(null: float) -> float:
        return _score_test(x_a, n_a, x_b, n_b, null, "greater")[0] - reach

    edge = 1 - 1e-12
    if excess(-edge) <= 0:
        return -1.0
    if excess(edge) >= 0:
        return 1.0
    return float(optimize().brentq(excess, -edge, edge, xtol=1e-15, rtol=1e-14))
