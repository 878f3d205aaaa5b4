"""Clicks as training data: how likely each position is to be looked at, and targets with that taken out.

A click needs that the result was looked at (which depends on the position: its propensity) and that it attracts (which depends
on the result). Raw clicks teach a ranker what the old one put on top.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_rank.stats.checks import column, number, probability, same_length, whole
from lightning_rank.stats.distributions import critical
from lightning_rank.stats.results import Result, frozen_array, show


@dataclass(frozen=True, eq=False)
class Propensities(Result):
    """How likely a position is to be looked at, relative to the first.

    Attributes:
        propensity: [position] of positions 1, 2, …; the first is 1.
        low, high: [position] intervals; NaN where the method has none.
        method: ``"swap"`` or ``"position-based model"``.
    """

    propensity: np.ndarray
    low: np.ndarray
    high: np.ndarray
    method: str

    def __str__(self) -> str:
        return f"{self.method}: {', '.join(show(p) for p in self.propensity.tolist())}"

    def at(self, position: Any) -> np.ndarray:
        """The propensities of positions.

        Raises:
            ValueError: a position below 1 or beyond those that were estimated.
        """
        places = _whole("position", position, 1)
        if len(places) and places.max() > len(self.propensity):
            raise ValueError(f"`position` must be at most {len(self.propensity)}, as estimated, got {places.max()}.")
        return self.propensity[places - 1]


def swap_propensities(
    first: Any, second: Any, position: Any, clicked: Any, *, unit: Any = None, alpha: float = 0.05
) -> Propensities:
    """Propensities from an intervention: two positions of a page whose results were swapped by a fair coin.

    As either result is as often at either position, the rates of clicks at the two positions differ by the propensities alone.
    Pairs need not have the first position: they are joined into one scale by weighted least squares on the logarithms.

    Args:
        first, second: the two positions of the pair, an entry per impression of one of its results.
        position: where the result was shown, one of the two.
        clicked: whether it was clicked.
        unit: the user of each impression, so that the intervals take users for independent; none: impressions.
        alpha: 1 - the level of the intervals.

    Raises:
        ValueError: a position that is not of its pair, a position without a click, positions that no chain of pairs joins.

    Source: Joachims, Swaminathan and Schnabel, "Unbiased Learning-to-Rank with Biased Feedback", WSDM 2017; Wang et al.,
        "Position Bias Estimation for Unbiased Learning to Rank in Personal Search", WSDM 2018.

    Example:
        >>> shown = [1, 2] * 100
        >>> clicked = ([1, 1] + [1, 0]) * 50
        >>> print(swap_propensities([1] * 200, [2] * 200, shown, clicked))
        swap: 1, 0.5
    """
    low, high = _whole("first", first, 1), _whole("second", second, 1)
    place, click = _whole("position", position, 1), _clicks(clicked)
    same_length(first=low, second=high, position=place, clicked=click)
    if len(place) == 0:
        raise ValueError("There must be an impression, got none.")
    if (low == high).any() or not ((place == low) | (place == high)).all():
        raise ValueError("`position` must be one of the two different positions of its pair.")
    low, high = np.minimum(low, high), np.maximum(low, high)
    users = np.arange(len(place)) if unit is None else np.unique(np.asarray(unit), return_inverse=True)[1]
    if len(users) != len(place):
        raise ValueError(f"`unit` must have an entry per impression, got {len(users)} for {len(place)}.")
    width = int(high.max())
    normal, right = np.zeros((width, width)), np.zeros(width)
    for i, j in sorted(set(zip(low.tolist(), high.tolist(), strict=True))):
        rates, influence = [], []
        of_pair = (low == i) & (high == j)
        for p in (i, j):
            rows = of_pair & (place == p)
            n, clicks = int(rows.sum()), float(click[rows].sum())
            if not clicks:
                raise ValueError(f"Each position of a pair must have clicks, got none at {p} of the pair ({i}, {j}).")
            rates.append(clicks / n)
            influence.append(np.bincount(users[rows], weights=click[rows] / clicks - 1 / n, minlength=int(users.max()) + 1))
        change = influence[1] - influence[0]
        weight = 1 / max(float(change @ change), 1e-300)
        edge = np.zeros(width)
        edge[j - 1], edge[i - 1] = 1, -1
        normal += weight * np.outer(edge, edge)
        right += weight * edge * math.log(rates[1] / rates[0])
    known = normal[1:, 1:]
    if width > 1 and np.linalg.matrix_rank(known / max(known.max(), 1e-300), tol=1e-12) < width - 1:
        raise ValueError(f"Every position up to {width} must be joined to the first by swapped pairs.")
    covariance = np.linalg.inv(known)
    logs = np.concatenate([[0.0], covariance @ right[1:]])
    reach = critical(probability("alpha", alpha), "two-sided") * np.concatenate([[0.0], np.sqrt(np.diag(covariance))])
    estimate, low_end, high_end = (frozen_array(np.exp(x)) for x in (logs, logs - reach, logs + reach))
    return Propensities(estimate, low_end, high_end, "swap")


class PositionBasedModel:
    """P(click) = propensity of the position · attractiveness of the result for the query, fitted by EM.

    It needs results that were shown at several positions, as under a changing ranker or several arms.

    Args:
        iterations: at most so many.
        tolerance: it ends when the log-likelihood per impression changes by less.
        smoothing: clicks and skips that every result is given beforehand, half of each, against results seen a few times. It moves
            them towards 1/2, and with them the propensities of positions whose results attract less: keep it small.

    Attributes:
        propensities: after ``fit``.
        attractiveness: after ``fit``, by (query, document).
        log_likelihood: per impression, after each iteration; without smoothing it never falls.

    Source: Richardson, Dominowska and Ragno, WWW 2007; Chuklin, Markov and de Rijke, "Click Models for Web Search", 2015.

    Example:
        >>> model = PositionBasedModel().fit(["q"] * 8, list("abab") * 2, [1, 2, 2, 1] * 2, [1, 0, 1, 1, 1, 1, 0, 0])
        >>> print(model.propensities)
        position-based model: 1, 0.5931
    """

    propensities: Propensities
    attractiveness: dict[tuple[Any, Any], float]
    log_likelihood: list[float]

    def __init__(self, iterations: int = 200, tolerance: float = 1e-8, smoothing: float = 0.0) -> None:
        self.iterations = whole("iterations", iterations, least=1)
        self.tolerance = number("tolerance", tolerance, above=0)
        self.smoothing = number("smoothing", smoothing)
        if smoothing < 0:
            raise ValueError(f"`smoothing` must be at least 0, got {smoothing:g}.")

    def fit(self, query: Any, document: Any, position: Any, clicked: Any) -> PositionBasedModel:
        """Fits the model to impressions, an entry each.

        Raises:
            ValueError: no click; positions that cannot be compared as no result was shown at both.
        """
        place, click = _whole("position", position, 1), _clicks(clicked)
        result, names = _results(query, document)
        same_length(document=result, position=place, clicked=click)
        if not click.any():
            raise ValueError("There must be a click, got none.")
        width = int(place.max())
        # Impressions of one result at one position are alike.
        pair, inverse = np.unique(result * width + (place - 1), return_inverse=True)
        shown = np.bincount(inverse).astype(np.float64)
        clicks = np.bincount(inverse, weights=click)
        of_result, of_place = pair // width, pair % width
        _check_joined(of_result, of_place, width)
        shown_at, shown_of = np.bincount(of_place, shown, width), np.bincount(of_result, shown, len(names))
        theta = np.full(width, 0.5)
        gamma = np.full(len(names), 0.5)
        self.log_likelihood = []
        skips = shown - clicks
        for _ in range(self.iterations):
            looked, attracts = theta[of_place], gamma[of_result]
            both = looked * attracts
            missed = np.maximum(1 - both, 1e-15)
            likelihood = clicks @ np.log(np.where(clicks > 0, np.maximum(both, 1e-300), 1)) + skips @ np.log(
                np.where(skips > 0, missed, 1)
            )
            self.log_likelihood.append(float(likelihood) / float(shown.sum()))
            # Whether a result without a click was looked at, and whether it attracts, given that it was not clicked.
            theta = np.bincount(of_place, clicks + skips * looked * (1 - attracts) / missed, width) / shown_at
            attracted = np.bincount(of_result, clicks + skips * attracts * (1 - looked) / missed, len(names))
            gamma = (attracted + self.smoothing / 2) / (shown_of + self.smoothing)
            done = len(self.log_likelihood) > 1 and self.log_likelihood[-1] - self.log_likelihood[-2] < self.tolerance
            if done and len(self.log_likelihood) > 10:
                break
        top = theta[0]
        nothing = np.full(width, np.nan)
        self.propensities = Propensities(
            frozen_array(theta / top), frozen_array(nothing), frozen_array(nothing), "position-based model"
        )
        self.attractiveness = dict(zip(names, (gamma * top).tolist(), strict=True))
        return self


@dataclass(frozen=True, eq=False)
class ClickTargets(Result):
    """Targets of a ranker from clicks, an entry per query and document, in the order they were first seen.

    Attributes:
        query, document: the pair.
        target: 1 where it was ever clicked, else 0.
        weight: the clicks, each divided by its propensity, per impression; 1 where there is none. For the losses' ``weight``,
            which multiplies the gain of an item.
        relevance: the same as an estimate of the attractiveness, 0 without a click: a graded target.
        impressions: of the pair.
        effective_sample_size: how many equally weighted clicks say as much, (Σw)² / Σw².
        clipped: clicks whose weight was cut.
        clicks: all clicks.
        max_weight: the largest weight of one click.
    """

    query: tuple[Any, ...]
    document: tuple[Any, ...]
    target: np.ndarray
    weight: np.ndarray
    relevance: np.ndarray
    impressions: np.ndarray
    effective_sample_size: float
    clipped: int
    clicks: int
    max_weight: float

    def __str__(self) -> str:
        return (
            f"{len(self.query):,} results, {self.clicks:,} clicks that weigh as {self.effective_sample_size:,.4g} equal ones, "
            f"{self.clipped:,} clipped at {show(self.max_weight)}"
        )


def click_targets(
    query: Any,
    document: Any,
    position: Any,
    clicked: Any,
    propensities: Propensities | Mapping[int, float] | None = None,
    *,
    max_weight: float = 20.0,
) -> ClickTargets:
    """Clicks with the position taken out: each click counts 1 / propensity of its position.

    Args:
        query, document, position, clicked: impressions, an entry each.
        propensities: by position, or as estimated; none: raw clicks.
        max_weight: larger weights are cut to it. That lets some bias in and keeps a few clicks far down from deciding all.

    Returns:
        One entry per query and document, with the effective sample size of the clicks.

    Raises:
        ValueError: no impression, a position without a propensity, a propensity outside (0, 1.0…] or ``max_weight`` below 1.

    Source: Joachims, Swaminathan and Schnabel, "Unbiased Learning-to-Rank with Biased Feedback", WSDM 2017; clipping as in
        Strehl et al., NeurIPS 2010.

    Example:
        >>> targets = click_targets(["q"] * 4, ["a", "b"] * 2, [1, 2] * 2, [1, 0, 1, 1], {1: 1.0, 2: 0.5})
        >>> targets.relevance.tolist(), round(targets.effective_sample_size, 3)
        ([1.0, 1.0], 2.667)
    """
    place, click = _whole("position", position, 1), _clicks(clicked)
    result, names = _results(query, document)
    same_length(document=result, position=place, clicked=click)
    if number("max_weight", max_weight) < 1:
        raise ValueError(f"`max_weight` must be at least 1, got {max_weight:g}.")
    if propensities is None:
        found = np.ones(len(place))
    elif isinstance(propensities, Propensities):
        found = propensities.at(place)
    else:
        if missing := sorted(set(place.tolist()) - set(propensities)):
            raise ValueError(f"`propensities` must have every position, but {missing[0]} is missing.")
        found = np.array([propensities[p] for p in place.tolist()], dtype=np.float64)
    if not ((found > 0) & np.isfinite(found)).all():
        raise ValueError(
            f"A propensity must be above 0, got {found.min():g}. A position that nobody looks at teaches nothing."
        )
    raw = 1 / found
    weights = np.minimum(raw, max_weight) * click
    shown = np.bincount(result, minlength=len(names)).astype(np.float64)
    relevance = np.bincount(result, weights, len(names)) / shown
    target = np.bincount(result, click, len(names)) > 0
    squares = float(weights @ weights)
    return ClickTargets(
        tuple(q for q, _ in names),
        tuple(d for _, d in names),
        frozen_array(target),
        frozen_array(np.where(target, relevance, 1.0)),
        frozen_array(relevance),
        frozen_array(shown),
        float(weights.sum()) ** 2 / squares if squares else 0.0,
        int(((raw > max_weight) & (click > 0)).sum()),
        int(click.sum()),
        float(max_weight),
    )


def _check_joined(of_result: np.ndarray, of_place: np.ndarray, width: int) -> None:
    """That every position can be compared with the first by results that were shown at several."""
    reached = np.zeros(width, dtype=bool)
    reached[0] = True
    if not (of_place == 0).any():
        raise ValueError("Some results must have been shown at position 1.")
    while True:
        results = np.unique(of_result[reached[of_place]])
        more = reached.copy()
        more[of_place[np.isin(of_result, results)]] = True
        if (more == reached).all():
            break
        reached = more
    if not reached.all():
        lost = (np.flatnonzero(~reached) + 1).tolist()
        raise ValueError(
            f"Positions {lost} must be comparable with the first: no result was shown at them and, directly or by others, at "
            "position 1. Positions and results that never mix cannot be told apart."
        )


def _results(query: Any, document: Any) -> tuple[np.ndarray, list[tuple[Any, Any]]]:
    queries, documents = list(_plain(query)), list(_plain(document))
    if len(queries) != len(documents):
        raise ValueError(f"`query` and `document` must be of one length, got {len(queries)} and {len(documents)}.")
    if not queries:
        raise ValueError("There must be an impression, got none.")
    place: dict[tuple[Any, Any], int] = {}
    numbers = [place.setdefault(pair, len(place)) for pair in zip(queries, documents, strict=True)]
    return np.array(numbers, dtype=np.int64), list(place)


def _plain(values: Any) -> Any:
    return values.tolist() if hasattr(values, "tolist") else values


def _whole(name: str, values: Any, least: int) -> np.ndarray:
    numbers = column(name, values, least=0)
    if (numbers != np.floor(numbers)).any() or (len(numbers) and numbers.min() < least):
        raise ValueError(f"`{name}` must be whole numbers from {least}, got {numbers.min():g}.")
    return numbers.astype(np.int64)


def _clicks(clicked: Any) -> np.ndarray:
    clicks = column("clicked", clicked, least=0)
    if not ((clicks == 0) | (clicks == 1)).all():
        raise ValueError("`clicked` must be 0 or 1 (or false or true) per impression.")
    return clicks
