"""Looking more than once: always-valid p-values and group-sequential bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_rank.stats.checks import check_choice, column, is_number, number, probability, same_length, whole
from lightning_rank.stats.distributions import critical, cumulative, optimize, special
from lightning_rank.stats.results import Result, frozen_array, show, show_interval, show_p

KINDS = ("pocock", "obrien-fleming")


@dataclass(frozen=True, eq=False)
class AlwaysValid(Result):
    """A test that may be looked at whenever one likes; numbers for one look, arrays with an entry a look for several.

    Attributes:
        likelihood_ratio: of the alternatives, mixed, to no difference; infinite beyond the range of a float.
        pvalue: the smallest 1 / likelihood_ratio so far, at most 1.
        low, high: interval of the difference at each look; it holds at all looks together.
        tau: standard deviation of the mixture.
        alpha: 1 - the level of the interval.
    """

    likelihood_ratio: Any
    pvalue: Any
    low: Any
    high: Any
    tau: float
    alpha: float

    def __str__(self) -> str:
        looks = 1 if is_number(self.pvalue) else len(self.pvalue)
        low, high, ratio, pvalue = (
            float(np.ravel(values)[-1]) for values in (self.low, self.high, self.likelihood_ratio, self.pvalue)
        )
        start = f"look {looks}: " if looks > 1 else ""
        return (
            f"{start}{show_interval(low, high, self.alpha)}, likelihood ratio {show(ratio)}, always-valid {show_p(pvalue)}"
        )


@dataclass(frozen=True, eq=False)
class GroupSequentialBounds(Result):
    """Bounds for looks at equal numbers of users.

    Attributes:
        z: [look] the |z| to reach.
        nominal: [look] the same as a two-sided p.
        kind: ``"pocock"`` or ``"obrien-fleming"``.
        alpha: level over all looks.
    """

    z: np.ndarray
    nominal: np.ndarray
    kind: str
    alpha: float

    def __str__(self) -> str:
        return f"{self.kind}, level {show(self.alpha)} over {len(self.z)}: |z| >= {', '.join(f'{z:.3f}' for z in self.z)}"


def always_valid(difference: Any, variance: Any, *, tau: float, alpha: float = 0.05) -> AlwaysValid:
    """The sequential probability ratio test with a normal mixture: p-values and intervals that hold at every look.

    Args:
        difference: the estimate b - a at one look, or a sequence of them, one a look.
        variance: its variance, > 0; for two rates p_a q_a / n_a + p_b q_b / n_b.
        tau: standard deviation of the differences one expects, on the scale of the difference. It is chosen before the test.
        alpha: 1 - the level of the interval.

    Raises:
        ValueError: a variance or ``tau`` that is not above 0, a value that is not finite, lengths that differ.

    Source: Johari et al., "Always Valid Inference", Operations Research 2022; Robbins, Annals of Mathematical Statistics 1970.

    Example:
        >>> print(always_valid(0.006, 1.00364e-5, tau=0.005))
        [-0.004092, +0.01609] at 95 %, likelihood ratio 1.924, always-valid p = 0.52
    """
    tau, alpha = number("tau", tau, above=0), probability("alpha", alpha)
    one_look = is_number(difference)
    if one_look != is_number(variance):
        raise ValueError("`difference` and `variance` must both be numbers, or sequences with an entry a look.")
    d = column("difference", [difference] if one_look else difference)
    v = column("variance", [variance] if one_look else variance)
    same_length(difference=d, variance=v)
    if not (v > 0).all():
        raise ValueError(f"`variance` must be above 0, got {v.min():g}. An estimate without variance cannot be tested.")
    # In units of tau, so that no square of a small number is lost.
    v_in_tau = v / tau / tau
    spread = np.log1p(v_in_tau) - np.log(v_in_tau)
    reach = tau * np.sqrt(v_in_tau * (1 + v_in_tau) * (spread - 2 * math.log(alpha)))
    # The ratio itself leaves the range of a float long before its logarithm does.
    with np.errstate(over="ignore"):
        log_ratio = (d / tau) ** 2 / (2 * v_in_tau * (1 + v_in_tau)) - spread / 2
        likelihood_ratio = np.exp(log_ratio)
    pvalue = np.exp(-np.maximum.accumulate(np.maximum(log_ratio, 0)))
    columns = {"likelihood_ratio": likelihood_ratio, "pvalue": pvalue, "low": d - reach, "high": d + reach}
    shown: dict[str, Any] = {name: float(x[0]) if one_look else frozen_array(x) for name, x in columns.items()}
    return AlwaysValid(**shown, tau=tau, alpha=alpha)


def group_sequential_bounds(looks: int, alpha: float = 0.05, kind: str = "obrien-fleming") -> GroupSequentialBounds:
    """The |z| to reach at each of several equally spaced looks, so that all of them together err with ``alpha``, two-sided.

    Args:
        looks: how many, the last at the planned number of users.
        alpha: level over all looks.
        kind: ``"pocock"``, the same bound at each look; ``"obrien-fleming"``, c·sqrt(looks / look), which is hard to reach early
            and costs little at the end.

    Raises:
        ValueError: no look, ``alpha`` outside (0, 1), an unknown kind.

    Source: Pocock, Biometrika 1977; O'Brien and Fleming, Biometrics 1979; computed by recursion as in Armitage, McPherson and
        Rowe, JRSS A 1969.

    Example:
        >>> print(group_sequential_bounds(5, 0.05, "pocock"))
        pocock, level 0.05 over 5: |z| >= 2.413, 2.413, 2.413, 2.413, 2.413
        >>> print(group_sequential_bounds(5))
        obrien-fleming, level 0.05 over 5: |z| >= 4.562, 3.226, 2.634, 2.281, 2.040
    """
    looks, alpha = whole("looks", looks, least=1), probability("alpha", alpha)
    check_choice("kind", kind, KINDS)
    look = np.arange(1, looks + 1)
    # The walk is the sum of one standard normal step a look; these are its bounds for c = 1.
    shape = np.sqrt(look) if kind == "pocock" else np.full(looks, math.sqrt(looks))
    # The last look alone errs less than all, and all err less than one after the other would.
    least, most = critical(alpha, "two-sided"), critical(alpha / looks, "two-sided")
    c = least
    if looks > 1:
        nodes, weights = np.polynomial.legendre.leggauss(32 + math.ceil(6 * most * math.sqrt(looks)))
        c = float(optimize().brentq(lambda c: _crossing(c * shape, nodes, weights) - alpha, least, most, xtol=1e-12))
    z = c * shape / np.sqrt(look)
    return GroupSequentialBounds(frozen_array(z), frozen_array([2 * cumulative(-float(bound)) for bound in z]), kind, alpha)


def _crossing(bounds: np.ndarray, nodes: np.ndarray, weights: np.ndarray) -> float:
    """The probability that a walk of standard normal steps leaves ± its bounds."""
    ndtr = special().ndtr
    left = 2 * float(ndtr(-bounds[0]))
    place = bounds[0] * nodes
    # Density of the walks that have not left, times the weight of the place.
    mass = _normal(place) * bounds[0] * weights
    for bound in bounds[1:]:
        left += float(mass @ (ndtr(-bound - place) + ndtr(place - bound)))
        next_place = bound * nodes
        mass = (_normal(next_place[:, np.newaxis] - place) @ mass) * bound * weights
        place = next_place
    return left


def _normal(x: np.ndarray) -> np.ndarray:
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
