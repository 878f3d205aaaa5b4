"""Tails, quantiles and the intervals that follow from them, for a normal or a Student statistic."""

from __future__ import annotations

import math
from typing import Any

from lightning_rank.extras import extra

INFINITE = math.inf
"""Degrees of freedom at which Student's distribution is the normal one."""


def special() -> Any:
    """``scipy.special``, imported when first needed.

    Raises:
        ModuleNotFoundError: scipy is not installed (the extra ``stats``).
    """
    return extra("scipy.special", "Statistics need", "stats")


def optimize() -> Any:
    """``scipy.optimize``, imported when first needed; see ``special``."""
    return extra("scipy.optimize", "Statistics need", "stats")


def cumulative(statistic: float, df: float = INFINITE) -> float:
    """The probability of at most ``statistic``, exact far into the lower tail."""
    return float(special().stdtr(df, statistic) if df < INFINITE else special().ndtr(statistic))


def critical(alpha: float, alternative: str, df: float = INFINITE) -> float:
    """How many standard errors the estimate is from a bound of its interval at level 1 - ``alpha``."""
    tail = alpha / 2 if alternative == "two-sided" else alpha
    # From the lower tail, where a small alpha does not round to 1.
    return -float(special().stdtrit(df, tail) if df < INFINITE else special().ndtri(tail))


def p_of(statistic: float, alternative: str, df: float = INFINITE) -> float:
    """The p-value of a statistic that is large where b > a."""
    if alternative == "two-sided":
        return 2 * cumulative(-abs(statistic), df)
    return cumulative(-statistic if alternative == "greater" else statistic, df)


def one_sided(low: float, high: float, alternative: str) -> tuple[float, float]:
    """The interval, with the end that the alternative leaves open at infinity."""
    return (-math.inf if alternative == "less" else low), (math.inf if alternative == "greater" else high)


def lift_interval(ratio: float, reach: float, alternative: str) -> tuple[float, float]:
    """The interval of b / a - 1, given that of ln(b / a) as ln(``ratio``) ± ``reach``."""
    return one_sided(_times_exp(ratio, -reach) - 1, _times_exp(ratio, reach) - 1, alternative)


def _times_exp(ratio: float, power: float) -> float:
    try:
        return ratio * math.exp(power)
    except OverflowError:
        return math.inf
