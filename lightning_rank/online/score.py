"""One number of several: the weighted sum of metrics that lie in [0, 1], and its form relative to a baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lightning_rank.stats.checks import number, probability
from lightning_rank.stats.distributions import critical
from lightning_rank.stats.results import Result, show, show_interval

SUM_TOLERANCE = 1e-9


@dataclass(frozen=True)
class CompositeScore(Result):
    """A weighted sum of parts.

    Attributes:
        score: the sum.
        contributions: what each part adds to it, by name.
        low, high: normal interval; NaN where the variances of the parts were not given.
        alpha: 1 - the level of the interval.
    """

    score: float
    contributions: Mapping[str, float]
    low: float
    high: float
    alpha: float

    def __str__(self) -> str:
        interval = "" if math.isnan(self.low) else f" {show_interval(self.low, self.high, self.alpha)}"
        return f"{show(self.score)}{interval} = {' '.join(f'{v:+.4g} {name}' for name, v in self.contributions.items())}"


def composite_score(
    values: Mapping[str, float],
    weights: Mapping[str, float],
    *,
    scales: Mapping[str, tuple[float, float]] | None = None,
    variances: Mapping[str, float] | None = None,
    alpha: float = 0.05,
) -> CompositeScore:
    """w1·NDCG + w2·CTR + w3·CSAT, or any other parts: each in [0, 1], the weights with sum 1.

    Parts that move little count little, whatever their weight: a click-through rate moves in thousandths and NDCG in
    hundredths, so that equal weights leave the decision to NDCG. ``relative_score`` has them on one scale.

    Args:
        values: the parts by name.
        weights: their weights, >= 0, with sum 1; they are not normalised in silence.
        scales: the ends of the scale of a part that is not in [0, 1]: ``{"csat": (1, 5)}`` maps v to (v - 1) / 4.
        variances: of the estimates of the parts, on their own scales and from independent samples; they give an interval.
        alpha: 1 - the level of the interval.

    Raises:
        ValueError: names that differ, a part that is NaN or outside its scale, weights that are negative or do not sum to 1.

    Example:
        >>> values, weights = {"ndcg": 0.78, "ctr": 0.35, "csat": 4.2}, {"ndcg": 0.5, "ctr": 0.3, "csat": 0.2}
        >>> print(composite_score(values, weights, scales={"csat": (1, 5)}))
        0.655 = +0.39 ndcg +0.105 ctr +0.16 csat
    """
    weights = _weights(weights)
    _same_names("values", values, weights)
    ends = dict.fromkeys(weights, (0.0, 1.0))
    for name, scale in (scales or {}).items():
        _known("scales", name, weights)
        low, high = scale
        low = number(f"scales[{name!r}]", low)
        ends[name] = low, number(f"scales[{name!r}]", high, above=low)
    parts = {}
    for name in weights:
        low, high = ends[name]
        value = number(f"values[{name!r}]", values[name])
        if not low <= value <= high:
            advice = "" if name in (scales or {}) else f' Give its scale: scales={{"{name}": (low, high)}}.'
            raise ValueError(f"The part {name!r} must be in [{low:g}, {high:g}], got {value:g}.{advice}")
        parts[name] = (value - low) / (high - low)
    slopes = {name: 1 / (high - low) for name, (low, high) in ends.items()}
    return _sum(parts, weights, slopes, variances, alpha)


def relative_score(
    values: Mapping[str, float],
    baseline: Mapping[str, float],
    weights: Mapping[str, float],
    *,
    variances: Mapping[str, float] | None = None,
    baseline_variances: Mapping[str, float] | None = None,
    alpha: float = 0.05,
) -> CompositeScore:
    """The weighted mean of the lifts over a baseline, value / baseline - 1, which puts all parts on one scale.

    A lift does not depend on the unit, so that parts need no scale; 0 is "as the baseline".

    Args:
        values: the parts by name; ``baseline``: those of the ranker in use, above 0.
        weights: their weights, >= 0, with sum 1.
        variances: of the estimates, from independent samples; ``baseline_variances``: those of the baseline (none: it is taken as
            known).
        alpha: 1 - the level of the interval (delta method).

    Raises:
        ValueError: names that differ, a baseline that is not above 0, weights that are negative or do not sum to 1.

    Example:
        >>> print(relative_score({"ndcg": 0.78, "ctr": 0.33}, {"ndcg": 0.75, "ctr": 0.30}, {"ndcg": 0.5, "ctr": 0.5}))
        0.07 = +0.02 ndcg +0.05 ctr
    """
    weights = _weights(weights)
    _same_names("values", values, weights)
    _same_names("baseline", baseline, weights)
    old = {name: number(f"baseline[{name!r}]", baseline[name], above=0) for name in weights}
    new = {name: number(f"values[{name!r}]", values[name]) for name in weights}
    lifts = {name: new[name] / old[name] - 1 for name in weights}
    if variances is not None and baseline_variances is not None:
        _same_names("variances", variances, weights)
        _same_names("baseline_variances", baseline_variances, weights)
        variances = {
            name: _variance("variances", name, variances)
            + (new[name] / old[name]) ** 2 * _variance("baseline_variances", name, baseline_variances)
            for name in weights
        }
    return _sum(lifts, weights, {name: 1 / old[name] for name in weights}, variances, alpha)


def _sum(
    parts: Mapping[str, float],
    weights: Mapping[str, float],
    slopes: Mapping[str, float],
    variances: Mapping[str, float] | None,
    alpha: float,
) -> CompositeScore:
    """Of parts whose variances are those of the values times the squared slope."""
    alpha = probability("alpha", alpha)
    contributions = {name: weights[name] * parts[name] for name in weights}
    score = math.fsum(contributions.values())
    low = high = math.nan
    if variances is not None:
        _same_names("variances", variances, weights)
        terms = [(weights[name] * slopes[name]) ** 2 * _variance("variances", name, variances) for name in weights]
        reach = critical(alpha, "two-sided") * math.sqrt(math.fsum(terms))
        low, high = score - reach, score + reach
    return CompositeScore(score, contributions, low, high, alpha)


def _weights(weights: Mapping[str, float]) -> dict[str, float]:
    if not isinstance(weights, Mapping) or not weights:
        raise ValueError(f"`weights` must be a mapping from names to weights, got {weights!r}.")
    checked = {name: number(f"weights[{name!r}]", weight) for name, weight in weights.items()}
    for name, weight in checked.items():
        if weight < 0:
            raise ValueError(f"`weights[{name!r}]` must be at least 0, got {weight:g}.")
    total = math.fsum(checked.values())
    if abs(total - 1) > SUM_TOLERANCE:
        raise ValueError(f"`weights` must sum to 1, got {total:g}: {checked}.")
    return checked


def _same_names(option: str, values: Mapping[str, float], weights: Mapping[str, float]) -> None:
    if not isinstance(values, Mapping):
        raise ValueError(f"`{option}` must be a mapping by the names of the weights, got {type(values).__name__}.")
    if missing := [name for name in weights if name not in values]:
        raise ValueError(
            f"`{option}` must have every part that has a weight, but {missing[0]!r} is missing. That is not a 0."
        )
    for name in values:
        _known(option, name, weights)


def _known(option: str, name: str, weights: Mapping[str, float]) -> None:
    if name not in weights:
        raise ValueError(
            f"`{option}` must name parts that have a weight, got {name!r}: weights are of {', '.join(weights)}."
        )


def _variance(option: str, name: str, variances: Mapping[str, float]) -> float:
    variance = number(f"{option}[{name!r}]", variances[name])
    if variance < 0:
        raise ValueError(f"`{option}[{name!r}]` must be at least 0, got {variance:g}.")
    return variance
