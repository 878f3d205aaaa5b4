"""What signals of a log come to: rates, positions of clicks, dwell times."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_rank.stats.results import Result, show


@dataclass(frozen=True)
class Rate(Result):
    """A ratio of sums over users.

    Attributes:
        value: numerator / denominator; NaN where nothing was seen.
        low, high: normal interval by the delta method over users, which may reach beyond 0 and 1, where it is
            shown as cut; NaN with fewer than two.
        numerator, denominator: the sums; of a mean of users' rates the sum of the rates and the number of users.
        users: users with a denominator above 0.
        alpha: 1 - the level of the interval.
    """

    value: float
    low: float
    high: float
    numerator: float
    denominator: float
    users: int
    alpha: float

    def __str__(self) -> str:
        interval = f"[{show(max(self.low, 0.0))}, {show(min(self.high, 1.0))}] at {show(100 * (1 - self.alpha))} %"
        return f"{show(self.value)} {interval} ({self.numerator:,.6g} / {self.denominator:,.6g}, {self.users:,} users)"


@dataclass(frozen=True)
class ClickPosition(Result):
    """Where people click.

    Attributes:
        value: mean position of the clicked results.
        first: mean position of the first click of a search.
        reciprocal_rank: mean of 1 / position of that click over all searches, 0 without a click.
        clicks: clicked results.
        searches: searches.
    """

    value: float
    first: float
    reciprocal_rank: float
    clicks: int
    searches: int

    def __str__(self) -> str:
        return (
            f"position {show(self.value)}, of the first click {show(self.first)}, reciprocal rank {show(self.reciprocal_rank)} "
            f"({self.clicks:,} clicked results, {self.searches:,} searches)"
        )


@dataclass(frozen=True)
class Dwell(Result):
    """How long people stay on what they clicked, in seconds.

    Attributes:
        median, mean: of the clicks whose end was seen.
        log_mean: mean of ln(1 + seconds).
        clicks: all clicks.
        observed: clicks with an end, the next search or click of the session.
        censored: the last clicks of their sessions, whose end nobody saw; they are in no mean.
        capped: clicks longer than the cap, which count as the cap.
    """

    median: float
    mean: float
    log_mean: float
    clicks: int
    observed: int
    censored: int
    capped: int

    def __str__(self) -> str:
        return (
            f"median {show(self.median)} s, mean {show(self.mean)} s ({self.observed:,} of {self.clicks:,} clicks; the end of "
            f"{self.censored:,} was not seen, {self.capped:,} capped)"
        )
