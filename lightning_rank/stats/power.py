"""Planning: how many users, which power, which effect can be found, how many days."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_rank.stats.checks import check_alternative, number, probability, whole
from lightning_rank.stats.distributions import critical, optimize, special
from lightning_rank.stats.results import Result


@dataclass(frozen=True)
class Duration(Result):
    """How long a test takes.

    Attributes:
        days: whole weeks in days, at least ``minimum_days``.
        weeks: the same in weeks.
        minimum_days: days until there are users enough.
    """

    days: int
    weeks: int
    minimum_days: int

    def __str__(self) -> str:
        weeks = f"{self.weeks} week{'s' * (self.weeks != 1)}"
        return f"{self.days} days ({weeks}; users enough after {self.minimum_days})"


def power_proportions(
    p_a: float, p_b: float, n_a: int, n_b: int | None = None, *, alpha: float = 0.05, alternative: str = "two-sided"
) -> float:
    """The probability that ``two_proportions`` finds the difference of two true rates, by the normal approximation.

    The error is that of the pooled rate under the null hypothesis, of the two rates otherwise. The power of a two-sided test
    has both tails, so that it is ``alpha`` where the rates are equal.

    Args:
        p_a: rate of the control; ``p_b``: of the treatment; both in (0, 1).
        n_a: users of the control; ``n_b``: of the treatment; None: as many.
        alpha: level of the test.
        alternative: ``"two-sided"``, ``"greater"`` (b > a) or ``"less"``.

    Raises:
        ValueError: a rate or ``alpha`` outside (0, 1), an empty arm, an unknown alternative.

    Source: Fleiss, Levin and Paik, "Statistical Methods for Rates and Proportions", 2003, chapter 4.

    Example:
        >>> round(power_proportions(0.05, 0.06, 8158), 4)
        0.8
    """
    p_a, p_b = probability("p_a", p_a), probability("p_b", p_b)
    n_a, n_b = _users(n_a, n_b)
    check_alternative(alternative)
    return float(_power(p_a, np.array(p_b), n_a, n_b, critical(probability("alpha", alpha), alternative), alternative))


def sample_size_proportions(
    p_a: float, p_b: float, *, alpha: float = 0.05, power: float = 0.8, alternative: str = "two-sided"
) -> int:
    """The smallest number of users **per arm** that reaches a power.

    Args:
        p_a: rate of the control; ``p_b``: the rate of the treatment that is to be found; both in (0, 1).
        alpha: level of the test.
        power: probability that it finds the difference.
        alternative: ``"two-sided"``, ``"greater"`` (b > a) or ``"less"``.

    Raises:
        ValueError: equal rates, or a difference in the direction that the test does not look; a rate, ``alpha`` or ``power``
            outside (0, 1).

    Source: Fleiss, Levin and Paik, "Statistical Methods for Rates and Proportions", 2003, chapter 4.

    Example:
        >>> sample_size_proportions(0.05, 0.06)
        8158
    """
    p_a, p_b = probability("p_a", p_a), probability("p_b", p_b)
    alpha, power = probability("alpha", alpha), probability("power", power)
    check_alternative(alternative)
    if p_a == p_b:
        raise ValueError(f"`p_b` must differ from `p_a`, got {p_a:g} twice. No number of users finds no difference.")
    if (p_b < p_a) if alternative == "greater" else (p_b > p_a) if alternative == "less" else False:
        raise ValueError(
            f"`p_b` must be {'above' if alternative == 'greater' else 'below'} `p_a` for the alternative {alternative!r}, "
            f"got {p_b:g} against {p_a:g}. The test does not look in that direction."
        )
    z = critical(alpha, alternative)
    mean, reach = (p_a + p_b) / 2, float(special().ndtri(power))
    spread = z * math.sqrt(2 * mean * (1 - mean)) + reach * math.sqrt(p_a * (1 - p_a) + p_b * (1 - p_b))

    def is_enough(n: int) -> bool:
        return bool(_power(p_a, np.array(p_b), n, n, z, alternative) >= power)

    # The power rises with n; the formula without the far tail is where the search starts.
    high = max(1, math.ceil((max(spread, 0.0) / (p_b - p_a)) ** 2))
    while not is_enough(high):
        high *= 2
    low = 0
    step = 1
    while high - step > 0 and is_enough(high - step):
        high, step = high - step, 2 * step
    low = max(high - step, 0)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def min_detectable_effect(
    p_a: float,
    n_a: int,
    n_b: int | None = None,
    *,
    alpha: float = 0.05,
    power: float = 0.8,
    alternative: str = "two-sided",
) -> float:
    """The smallest absolute difference b - a that is found with just that power; negative for ``"less"``.

    Args:
        p_a: rate of the control, in (0, 1).
        n_a: users of the control; ``n_b``: of the treatment; None: as many.
        alpha: level of the test.
        power: probability that it finds the difference, above ``alpha``.
        alternative: ``"two-sided"`` (a rise), ``"greater"`` (b > a) or ``"less"``.

    Raises:
        ValueError: no rate in (0, 1) is found with that power; a rate, ``alpha`` or ``power`` outside (0, 1).

    Example:
        >>> round(min_detectable_effect(0.05, 8158), 4)
        0.01
    """
    p_a, alpha, power = probability("p_a", p_a), probability("alpha", alpha), probability("power", power)
    n_a, n_b = _users(n_a, n_b)
    check_alternative(alternative)
    if power <= alpha:
        raise ValueError(
            f"`power` must be above `alpha`, got {power:g} and {alpha:g}. No difference at all has that power."
        )
    z = critical(alpha, alternative)
    end = -p_a if alternative == "less" else 1 - p_a

    def excess(effect: Any) -> Any:
        return _power(p_a, p_a + np.asarray(effect), n_a, n_b, z, alternative) - power

    # Effects from tiny to the largest, evenly by ratio: the first that is found, and the last before it.
    effects = end * np.concatenate([[0.0], np.geomspace(1e-9, 1 - 1e-12, 500)])
    found = excess(effects) >= 0
    if not found.any():
        side = "below" if alternative == "less" else "above"
        raise ValueError(
            f"No rate {side} {p_a:g} is found with the power {power:g} by {n_a:,} and {n_b:,} users. "
            "More users are needed, or less power."
        )
    first = int(np.argmax(found))
    return float(optimize().brentq(excess, effects[first - 1], effects[first], xtol=1e-15, rtol=1e-13))


def duration(n_required: int, eligible_per_day: float) -> Duration:
    """How many days a test takes, in whole weeks, as people differ between working days and weekends.

    Args:
        n_required: users that are needed in total, over all arms.
        eligible_per_day: **new** users that enter the test a day. Users of a week are fewer than seven times those of a day,
            as many come back.

    Raises:
        ValueError: one of them is not above 0.

    Example:
        >>> print(duration(2 * 8158, 1500))
        14 days (2 weeks; users enough after 11)
    """
    n = whole("n_required", n_required, least=1)
    minimum = math.ceil(n / number("eligible_per_day", eligible_per_day, above=0))
    weeks = math.ceil(minimum / 7)
    return Duration(7 * weeks, weeks, minimum)


def _users(n_a: Any, n_b: Any) -> tuple[int, int]:
    n_a = whole("n_a", n_a, least=1)
    return n_a, n_a if n_b is None else whole("n_b", n_b, least=1)


def _power(p_a: float, p_b: np.ndarray, n_a: int, n_b: int, z: float, alternative: str) -> np.ndarray:
    """Power for each rate of the treatment."""
    pooled = (p_a * n_a + p_b * n_b) / (n_a + n_b)
    null = np.sqrt(pooled * (1 - pooled) * (1 / n_a + 1 / n_b))
    error = np.sqrt(p_a * (1 - p_a) / n_a + p_b * (1 - p_b) / n_b)
    difference = p_b - p_a
    ndtr = special().ndtr
    above, below = ndtr((difference - z * null) / error), ndtr((-difference - z * null) / error)
    return {"two-sided": above + below, "greater": above, "less": below}[alternative]
