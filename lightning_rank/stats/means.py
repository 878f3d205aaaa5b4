"""Means per user, ratios of means, and means with the past taken out (CUPED), of two arms.

Everything is computed from ``Moments``, so that data may come in pieces and in any order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lightning_rank.stats.checks import check_alternative, column, number, probability, same_length, whole
from lightning_rank.stats.distributions import INFINITE, critical, lift_interval, one_sided, p_of
from lightning_rank.stats.results import Result, frozen_array, show, show_interval, show_lift, show_p

# A mean is known to a few units in the last place: what is smaller is rounding, and no evidence of anything.
ROUNDING = 4 * float(np.finfo(np.float64).eps)
# So is what is left of a variance of which all but this part cancels.
CANCELLED = 1e-14


@dataclass(frozen=True)
class MeanDifference(Result):
    """Two values per arm compared, b - a.

    Attributes:
        value_a, value_b: the values.
        difference: b - a.
        se: its standard error.
        statistic: difference / se; 0 where both are 0, infinite where only se is.
        df: degrees of freedom of Welch and Satterthwaite; infinite for a normal statistic.
        pvalue: p under ``alternative``.
        low, high: interval of the difference.
        relative: the lift b / a - 1; NaN where a is 0.
        relative_low, relative_high: its interval, on the log scale; NaN where b / a is not positive.
        alternative: ``"two-sided"``, ``"greater"`` (b > a) or ``"less"``; a one-sided test has one-sided intervals.
        alpha: 1 - the level of the intervals.
    """

    value_a: float
    value_b: float
    difference: float
    se: float
    statistic: float
    df: float
    pvalue: float
    low: float
    high: float
    relative: float
    relative_low: float
    relative_high: float
    alternative: str
    alpha: float

    def __str__(self) -> str:
        return (
            f"{show(self.value_a)} -> {show(self.value_b)}: {show(self.difference, True)} "
            f"{show_interval(self.low, self.high, self.alpha)}, "
            f"{show_lift(self.relative, self.relative_low, self.relative_high)}, "
            f"{'z' if self.df == INFINITE else 't'} = {show(self.statistic)}, {show_p(self.pvalue)} ({self.alternative})"
        )


@dataclass(frozen=True)
class CupedDifference(MeanDifference):
    """Two means compared after what the covariate explains was taken out, b - a.

    Attributes:
        theta: slope of the outcome on the covariate, over the units of both arms.
        variance_reduction: 1 - (se / se without the covariate)².
    """

    theta: float
    variance_reduction: float

    def __str__(self) -> str:
        return f"{super().__str__()}, theta = {show(self.theta)}, variance {-100 * self.variance_reduction:+.3g} %"


@dataclass(frozen=True, eq=False)
class Moments:
    """Number, means and sums of centred products of some columns of one arm; ``a | b`` are those of both together.

    Nothing cancels: 1e9 ± 1 keeps its variance, in one piece or merged from many.

    Attributes:
        n: number of users.
        mean: [column].
        scatter: [column, column] sums of products of the distances from the means.

    Source: Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.

    Example:
        >>> day = Moments.of([3, 5, 4]) | Moments.of([6, 2])
        >>> day.n, day.mean.tolist(), day.covariance().tolist()
        (5, [4.0], [[2.5]])
    """

    n: int
    mean: np.ndarray
    scatter: np.ndarray

    @classmethod
    def of(cls, *columns: Any) -> Moments:
        """The moments of columns of one length, an entry per user.

        Raises:
            ValueError: no column, lengths that differ, a value that is not finite.
        """
        if not columns:
            raise ValueError("`Moments.of` must be given at least one column, got none.")
        vectors = [column(f"column {i}", values, least=0) for i, values in enumerate(columns)]
        same_length(**{f"column {i}": values for i, values in enumerate(vectors)})
        return cls._of(np.stack(vectors))

    @classmethod
    def _of(cls, table: np.ndarray) -> Moments:
        """Of ``[column, user]``."""
        width, n = table.shape
        if not n:
            return cls(0, frozen_array(np.zeros(width)), _frozen(np.zeros((width, width))))
        # Distances from one of the values, so that a constant column has its very value as mean and no variance at all.
        distance = table - table[:, :1]
        mean = distance.mean(axis=1, keepdims=True)
        distance -= mean
        return cls(n, frozen_array(table[:, 0] + mean[:, 0]), _frozen(distance @ distance.T))

    def __or__(self, other: Moments) -> Moments:
        if not isinstance(other, Moments):
            return NotImplemented
        if len(self.mean) != len(other.mean):
            raise ValueError(f"Moments of as many columns can be merged, got {len(self.mean)} and {len(other.mean)}.")
        if not self.n or not other.n:
            return self if self.n else other
        n = self.n + other.n
        gap = other.mean - self.mean
        mean = self.mean + gap * (other.n / n)
        return Moments(
            n, frozen_array(mean), _frozen(self.scatter + other.scatter + np.outer(gap, gap) * (self.n * other.n / n))
        )

    def covariance(self) -> np.ndarray:
        """[column, column], with n - 1.

        Raises:
            ValueError: fewer than two users.
        """
        if self.n < 2:
            raise ValueError(f"A variance needs at least 2 users, got {self.n}.")
        return self.scatter / (self.n - 1)


class _Arm(NamedTuple):
    """A value of one arm.

    Attributes:
        value: the value.
        variance: of the value, not of the users.
        n: number of users.
        size: magnitude of the terms that the value was computed from.
    """

    value: float
    variance: float
    n: int
    size: float


def welch(a: Any, b: Any, *, alternative: str = "two-sided", alpha: float = 0.05) -> MeanDifference:
    """Mean of the treatment b against that of the control a, with variances that may differ.

    Where no user differs from another, the statistic is infinite and p 0; where the means do not differ either, 0 and 1.

    Args:
        a: one value per user of the control; ``b``: of the treatment.
        alternative: ``"two-sided"``, ``"greater"`` (b > a) or ``"less"``.
        alpha: 1 - the level of the intervals.

    Raises:
        ValueError: fewer than two users, a value that is not finite, an option out of range.

    Source: Welch, "The Generalization of 'Student's' Problem", Biometrika 1947.

    Example:
        >>> print(welch([3, 5, 4, 6, 2, 4], [4, 6, 5, 7, 4]))
        4 -> 5.2: +1.2 [-0.6605, +3.06] at 95 %, lift +30 % [-14.1, +96.8], t = 1.462, p = 0.178 (two-sided)
    """
    arms = [_mean_of(Moments._of(column(name, values, least=2)[np.newaxis])) for name, values in (("a", a), ("b", b))]
    return _compare(arms, alternative, alpha)


def welch_from_moments(
    mean_a: float,
    variance_a: float,
    n_a: int,
    mean_b: float,
    variance_b: float,
    n_b: int,
    *,
    alternative: str = "two-sided",
    alpha: float = 0.05,
) -> MeanDifference:
    """``welch`` from what is left of the data.

    Args:
        mean_a: mean of the users of a; ``variance_a``: their variance, with n - 1; ``n_a``: their number. The same for b.
        alternative, alpha: as in ``welch``.

    Raises:
        ValueError: fewer than two users, a negative variance, an option out of range.

    Example:
        >>> print(welch_from_moments(52.46, 65903, 44700, 51.30, 10670, 45489))
        52.46 -> 51.3: -1.16 [-3.722, +1.402] at 95 %, lift -2.21 % [-6.89, +2.7], t = -0.8874, p = 0.375 (two-sided)
    """
    arms = []
    for name, mean, variance, n in (("a", mean_a, variance_a, n_a), ("b", mean_b, variance_b, n_b)):
        n = whole(f"n_{name}", n, least=2)
        mean, variance = number(f"mean_{name}", mean), number(f"variance_{name}", variance)
        if variance < 0:
            raise ValueError(f"`variance_{name}` must be at least 0, got {variance:g}.")
        arms.append(_Arm(mean, variance / n, n, abs(mean)))
    return _compare(arms, alternative, alpha)


def ratio_of_means(
    numer_a: Any,
    denom_a: Any,
    numer_b: Any,
    denom_b: Any,
    *,
    use_t: bool = True,
    alternative: str = "two-sided",
    alpha: float = 0.05,
) -> MeanDifference:
    """A ratio of sums, such as clicks per impression, of the treatment b against the control a, by the delta method.

    The user is randomised, so the user is the unit: a test that takes every impression for independent finds differences
    where there are none. The mean of the users' ratios is another metric and can point the other way.

    Args:
        numer_a: a value per user of a, such as clicks; ``denom_a``: such as impressions, >= 0. The same for b. A user
            without impressions counts as a user.
        use_t: Student's distribution; False: the normal one.
        alternative, alpha: as in ``welch``.

    Raises:
        ValueError: fewer than two users, lengths that differ, a negative denominator or none above 0.

    Source: Deng, Knoblich and Lu, "Applying the Delta Method in Metric Analytics", KDD 2018.

    Example:
        >>> print(ratio_of_means([1, 0, 2, 1], [4, 3, 5, 4], [2, 1, 2, 2], [4, 4, 5, 3]))
        0.25 -> 0.4375: +0.1875 [-0.07785, +0.4528] at 95 %, lift +75 % [-30.3, +339], t = 1.729, p = 0.135 (two-sided)
    """
    arms = _pairs_of(("numer_a", numer_a), ("denom_a", denom_a)), _pairs_of(("numer_b", numer_b), ("denom_b", denom_b))
    return ratio_from_moments(*(Moments._of(table) for table in arms), use_t=use_t, alternative=alternative, alpha=alpha)


def ratio_from_moments(
    a: Moments, b: Moments, *, use_t: bool = True, alternative: str = "two-sided", alpha: float = 0.05
) -> MeanDifference:
    """``ratio_of_means`` from the moments of numerator and denominator of each arm.

    Raises:
        ValueError: as ``ratio_of_means``; not two columns.

    Example:
        >>> a, b = Moments.of([1, 0, 2, 1], [4, 3, 5, 4]), Moments.of([2, 1, 2, 2], [4, 4, 5, 3])
        >>> round(ratio_from_moments(a, b).pvalue, 4)
        0.1345
    """
    arms = []
    for name, moments in (("a", a), ("b", b)):
        _check_pair(name, moments)
        numer, denom = moments.mean.tolist()
        if denom <= 0:
            raise ValueError(f"The denominator of {name} must have a positive sum, got the mean {denom:g}.")
        ratio = numer / denom
        variance = _of_combination(moments, np.array([1.0, -ratio]))
        arms.append(_Arm(ratio, variance / denom / denom / moments.n, moments.n, abs(ratio)))
    return _compare(arms, alternative, alpha, use_t)


def cuped(
    outcome_a: Any,
    covariate_a: Any,
    outcome_b: Any,
    covariate_b: Any,
    *,
    alternative: str = "two-sided",
    alpha: float = 0.05,
) -> CupedDifference:
    """Mean of the treatment b against that of the control a, with what the users did before the test taken out.

    The outcome loses theta times the covariate's distance from its mean over all users, which leaves it on its scale. One
    theta serves both arms. A covariate that does not vary changes nothing.

    Args:
        outcome_a: a value per user of a; ``covariate_a``: one from before the test. The same for b.
        alternative, alpha: as in ``welch``.

    Raises:
        ValueError: fewer than two users, lengths that differ, a value that is not finite.

    Source: Deng et al., "Improving the Sensitivity of Online Controlled Experiments by Utilizing Pre-Experiment Data", WSDM
        2013.

    Example:
        >>> result = cuped([3, 5, 4, 6, 2], [2, 5, 3, 6, 2], [4, 6, 5, 7, 4], [3, 5, 3, 6, 3])
        >>> round(result.difference, 3), round(result.pvalue, 3), round(result.variance_reduction, 3)
        (0.844, 0.017, 0.908)
    """
    a = _pairs_of(("outcome_a", outcome_a), ("covariate_a", covariate_a))
    b = _pairs_of(("outcome_b", outcome_b), ("covariate_b", covariate_b))
    return cuped_from_moments(Moments._of(a), Moments._of(b), alternative=alternative, alpha=alpha)


def cuped_from_moments(a: Moments, b: Moments, *, alternative: str = "two-sided", alpha: float = 0.05) -> CupedDifference:
    """``cuped`` from the moments of outcome and covariate of each arm.

    Raises:
        ValueError: as ``cuped``; not two columns.

    Example:
        >>> a, b = Moments.of([3, 5, 4, 6, 2], [2, 5, 3, 6, 2]), Moments.of([4, 6, 5, 7, 4], [3, 5, 3, 6, 3])
        >>> round(cuped_from_moments(a, b).theta, 4)
        0.8889
    """
    for name, moments in (("a", a), ("b", b)):
        _check_pair(name, moments)
    both = a | b
    spread = float(both.scatter[1, 1])
    theta = float(both.scatter[0, 1]) / spread if spread else 0.0
    arms, plain = [], 0.0
    for moments in (a, b):
        outcome, covariate = moments.mean.tolist()
        value = outcome - theta * (covariate - float(both.mean[1]))
        variance = _of_combination(moments, np.array([1.0, -theta]))
        size = max(abs(outcome), abs(theta * covariate), abs(theta * float(both.mean[1])))
        arms.append(_Arm(value, variance / moments.n, moments.n, size))
        plain += float(moments.covariance()[0, 0]) / moments.n
    reduction = 1 - (arms[0].variance + arms[1].variance) / plain if plain else 0.0
    return CupedDifference(**vars(_compare(arms, alternative, alpha)), theta=theta, variance_reduction=reduction)


def _mean_of(moments: Moments) -> _Arm:
    mean = float(moments.mean[0])
    return _Arm(mean, float(moments.covariance()[0, 0]) / moments.n, moments.n, abs(mean))


def _pairs_of(first: tuple[str, Any], second: tuple[str, Any]) -> np.ndarray:
    """[2, user] of two named columns of one arm."""
    columns = {name: column(name, values, least=2) for name, values in (first, second)}
    same_length(**columns)
    name = second[0]
    if name.startswith("denom") and (columns[name] < 0).any():
        raise ValueError(f"`{name}` must be at least 0, got {columns[name].min():g}.")
    return np.stack(list(columns.values()))


def _check_pair(name: str, moments: Moments) -> None:
    if not isinstance(moments, Moments) or len(moments.mean) != 2:
        raise ValueError(f"`{name}` must be the `Moments` of two columns, got {moments!r}.")
    if moments.n < 2:
        raise ValueError(f"Arm {name} must have at least 2 users, got {moments.n}.")


def _of_combination(moments: Moments, weights: np.ndarray) -> float:
    """The variance over the users of a weighted sum of the columns; 0 where all of it is rounding."""
    terms = moments.covariance() * np.outer(weights, weights)
    variance = float(terms.sum())
    return variance if variance > CANCELLED * float(np.trace(terms)) else 0.0


def _compare(arms: Sequence[_Arm], alternative: str, alpha: float, use_t: bool = True) -> MeanDifference:
    """Arm b against arm a."""
    a, b = arms
    check_alternative(alternative)
    alpha = probability("alpha", alpha)
    difference = b.value - a.value
    se = math.sqrt(a.variance + b.variance)
    df = _freedom(a.variance, a.n, b.variance, b.n) if use_t else INFINITE
    rounding = ROUNDING * max(a.size, b.size)
    if se <= rounding:
        se = 0.0
        difference = difference if abs(difference) > rounding else 0.0
        statistic = math.copysign(math.inf, difference) if difference else 0.0
        pvalue = p_of(statistic, alternative) if difference else 1.0
    else:
        statistic = difference / se
        pvalue = p_of(statistic, alternative, df)
    reach = critical(alpha, alternative, df) * se
    low, high = one_sided(difference - reach, difference + reach, alternative)
    relative = (b.value / a.value - 1 if difference else 0.0) if a.value else math.nan
    relative_low = relative_high = math.nan
    if a.value and b.value / a.value > 0:
        terms = a.variance / a.value / a.value, b.variance / b.value / b.value
        reach = critical(alpha, alternative, _freedom(terms[0], a.n, terms[1], b.n) if use_t else INFINITE)
        log_error = math.sqrt(sum(terms)) if se else 0.0
        # Among negative values the larger one has the smaller ratio.
        side = {"greater": "less", "less": "greater"}.get(alternative, alternative) if a.value < 0 else alternative
        relative_low, relative_high = lift_interval(1 + relative, reach * log_error, side)
    return MeanDifference(
        a.value, b.value, difference, se, statistic, df, pvalue, low, high, relative, relative_low, relative_high,
        alternative, alpha,
    )  # fmt: skip


def _freedom(variance_a: float, n_a: int, variance_b: float, n_b: int) -> float:
    """Degrees of freedom of Welch and Satterthwaite; those of the pooled test where there is no variance."""
    total = variance_a + variance_b
    if not total:
        return float(n_a + n_b - 2)
    return 1 / ((variance_a / total) ** 2 / (n_a - 1) + (variance_b / total) ** 2 / (n_b - 1))


def _frozen(table: np.ndarray) -> np.ndarray:
    table.flags.writeable = False
    return table
