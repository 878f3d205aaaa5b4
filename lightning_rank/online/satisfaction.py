"""Customer satisfaction from a survey: who is satisfied among those who answered, and how many did not answer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightning_rank.online.events import BOOLEAN, SURVEY, load_polars
from lightning_rank.online.facts import Facts
from lightning_rank.online.signals import Signal, _column
from lightning_rank.stats.checks import is_number, number, whole
from lightning_rank.stats.proportions import wilson
from lightning_rank.stats.results import Result, show

if TYPE_CHECKING:
    import polars

FEW = 0.5
"""Response rate below which those who answered say little of those who did not."""


@dataclass(frozen=True)
class CustomerSatisfaction(Result):
    """CSAT.

    Attributes:
        value: satisfied answers / answers (times 100 in most reports); NaN without an answer.
        low, high: Wilson's interval: it says how sure the rate is among people who answer, not among all.
        satisfied: answers of at least the threshold.
        total: answers.
        mean: mean rating; NaN of yes and no.
        response_rate: answers / people asked; NaN where that is not known.
        worst, best: the rate of all who were asked, if nobody or everybody who did not answer is satisfied; NaN where their number
            is not known.
        alpha: 1 - the level of the interval.
    """

    value: float
    low: float
    high: float
    satisfied: int
    total: int
    mean: float
    response_rate: float
    worst: float
    best: float
    alpha: float

    @property
    def warning(self) -> str:
        """What to be careful with; empty where nothing is."""
        if not self.total:
            return "nobody answered"
        if math.isnan(self.response_rate):
            return "it is not known how many were asked, so that non-response can be anything"
        if self.response_rate < FEW:
            return (
                f"only {100 * self.response_rate:.3g} % answered; among all who were asked it is anything from "
                f"{100 * self.worst:.3g} to {100 * self.best:.3g} %"
            )
        return ""

    def __str__(self) -> str:
        warning = f"; {self.warning}" if self.warning else ""
        return (
            f"CSAT {100 * self.value:.4g} % [{show(100 * self.low)}, {show(100 * self.high)}] at {show(100 * (1 - self.alpha))} % "
            f"({self.satisfied:,} of {self.total:,}){warning}"
        )


class Satisfaction(Signal):
    """CSAT: ratings of at least the threshold / answers.

    Ratings come by ``update``, or from the ``survey`` rows of a log by ``update_events``, ``read`` and ``Signals``, where an empty
    rating is a question without an answer. Per user (``units``) it is satisfied answers over answers.

    Args:
        scale: lowest and highest rating.
        threshold: the rating from which on an answer is satisfied.
        session_gap, clock_skew: see ``Signal``.

    Example:
        >>> csat = Satisfaction()
        >>> csat.update([5, 4, 2, None, 5], invited=8)
        >>> print(csat.compute())
        CSAT 75 % [30.06, 95.44] at 95 % (3 of 4)
    """

    needed = ("rating",)

    def __init__(
        self,
        scale: tuple[float, float] = (1, 5),
        threshold: float = 4,
        *,
        session_gap: float = 1800,
        clock_skew: float = 5,
    ) -> None:
        super().__init__(session_gap=session_gap, clock_skew=clock_skew)
        lowest, highest = scale
        lowest = number("scale[0]", lowest)
        self.scale = lowest, number("scale[1]", highest, above=lowest)
        self.threshold = number("threshold", threshold)
        if not lowest <= self.threshold <= self.scale[1]:
            raise ValueError(f"`threshold` must be on the scale {lowest:g} to {self.scale[1]:g}, got {threshold:g}.")
        self._columns = (
            f"satisfied@{lowest:g}-{self.scale[1]:g}@{threshold:g}",
            "answers",
            "ratings",
            "asked",
            "yes_or_no",
        )

    def update_events(self, events: Any, *, whole_sessions: bool = False) -> None:
        """Adds the ``survey`` rows of a log; see ``Signal.update``."""
        super().update(events, whole_sessions=whole_sessions)

    def update(self, ratings: Iterable[Any], *, invited: int | None = None) -> None:  # type: ignore[override]
        """Adds answers.

        Args:
            ratings: numbers on the scale, or booleans; None and NaN are questions without an answer.
            invited: people who were asked; by default the number of entries, if one of them is without an answer, otherwise it is
                not known.

        Raises:
            ValueError: a rating off the scale, ratings and booleans together, more entries than people asked.
        """
        if isinstance(ratings, Mapping) or hasattr(ratings, "columns"):
            kind = type(ratings).__name__
            raise ValueError(f"`ratings` must be the ratings alone, such as [5, 4, None], got a table, {kind}. {ROWS}")
        entries = list(ratings)
        answers = [entry for entry in entries if entry is not None and not (is_number(entry) and math.isnan(entry))]
        yes_or_no = sum(not is_number(answer) and answer in (True, False) for answer in answers)
        for answer in answers:
            if not is_number(answer) and answer not in (True, False):
                advice = f" {ROWS}" if isinstance(answer, Mapping) else ""
                raise ValueError(f"A rating must be a number, true or false, got {answer!r}.{advice}")
            if is_number(answer) and not self.scale[0] <= answer <= self.scale[1]:
                raise ValueError(self._off_scale(answer))
        if invited is not None:
            invited = whole("invited", invited)
            if invited < len(entries):
                raise ValueError(f"`invited` must be at least the number of entries, got {invited:,} for {len(entries):,}.")
        elif len(answers) < len(entries):
            invited = len(entries)
        satisfied = sum((float(a) >= self.threshold) if is_number(a) else bool(a) for a in answers)
        row = {
            self._columns[0]: satisfied,
            "answers": len(answers),
            "ratings": math.fsum(float(answer) for answer in answers),
            "asked": invited or 0,
            "yes_or_no": yes_or_no,
        }
        pl = load_polars()
        seen = sum(part["answers"].sum() for part in self._state.settled)
        if answers and yes_or_no not in (0, len(answers)):
            raise ValueError(MIXED)
        if answers and seen and bool(yes_or_no) != bool(sum(part["yes_or_no"].sum() for part in self._state.settled)):
            raise ValueError(MIXED)
        self._cache = None
        # A batch is one anonymous user; one whose number of people asked is not known is marked by its name.
        name = _UNKNOWN if answers and invited is None else _BATCH
        types = {"user": pl.String, "arm": pl.String, self._columns[0]: pl.Int64, "answers": pl.Int64}
        types |= {"ratings": pl.Float64, "asked": pl.Int64, "yes_or_no": pl.Int64}
        self._state.settled.append(pl.DataFrame([{"user": name, "arm": None, **row}], schema=types))

    def _off_scale(self, rating: float) -> str:
        return f"A rating must be on the scale {self.scale[0]:g} to {self.scale[1]:g}, got {rating:g}."

    def _check(self, piece: polars.DataFrame) -> None:
        pl = load_polars()
        ratings = piece.filter(pl.col("kind") == SURVEY)["rating"].drop_nulls()
        numbers = ratings.filter(~ratings.is_in([BOOLEAN, BOOLEAN + 1]))
        off = numbers.filter((numbers < self.scale[0]) | (numbers > self.scale[1]))
        if len(off):
            raise ValueError(self._off_scale(off[0]))

    def _collect(self, facts: Facts) -> list[polars.DataFrame]:
        pl = load_polars()
        rating = pl.col("rating")
        yes_or_no = rating >= BOOLEAN
        satisfied = pl.when(yes_or_no).then(rating > BOOLEAN).otherwise(rating >= self.threshold)
        sums = {
            self._columns[0]: satisfied.fill_null(value=False).cast(pl.Int64),
            "answers": rating.is_not_null().cast(pl.Int64),
            "ratings": pl.when(yes_or_no).then(rating - BOOLEAN).otherwise(rating).fill_null(0.0),
            "asked": pl.lit(1, pl.Int64),
            "yes_or_no": yes_or_no.fill_null(value=False).cast(pl.Int64),
        }
        surveys = facts.others.filter(pl.col("kind") == SURVEY).with_columns(**sums)
        return [facts.per_user(surveys, **{name: pl.col(name) for name in sums})]

    def _result(self, table: polars.DataFrame, values: polars.DataFrame | None, alpha: float) -> CustomerSatisfaction:
        satisfied, total, ratings, asked, yes_or_no = (float(_column(table, name).sum()) for name in self._columns)
        if yes_or_no not in (0, total):
            raise ValueError(MIXED)
        # A log of answers alone does not say who was asked.
        known = asked > total or (asked == total > 0 and _BATCH in table["user"])
        known = known and _UNKNOWN not in table["user"]
        if not total:
            rate, interval = math.nan, (math.nan, math.nan)
        else:
            found = wilson(int(satisfied), int(total), alpha=alpha)
            rate, interval = found.estimate, (found.low, found.high)
        mean = ratings / total if total and not yes_or_no else math.nan
        response, worst, best = math.nan, math.nan, math.nan
        if known and asked:
            response, worst, best = total / asked, satisfied / asked, (satisfied + asked - total) / asked
        return CustomerSatisfaction(rate, *interval, int(satisfied), int(total), mean, response, worst, best, alpha)


ROWS = "The rows of a log are for `update_events`."
MIXED = "Ratings must be numbers on the scale or booleans, not both."
_BATCH, _UNKNOWN = "\x1fbatch", "\x1fbatch of unknown size"
