"""Behaviour signals of a search log: click-through, positions of clicks, dwell time, quick returns, bounces, rewordings.

Each signal is a state: ``update(events)`` takes rows in any order and in any pieces, ``a | b`` is that of both, ``compute()`` gives
the value, ``by_arm()`` one per arm. Rates are ratios of sums whose interval takes the user as the unit, as it is the user who was
randomised. ``Signals`` has several of them in one pass.

The log has a row per event, with the columns ``timestamp`` (seconds, or a date with time, in UTC), ``user`` and ``event``
(``search``, ``impression``, ``click``, ``conversion`` or ``survey``; others are ignored), and where a signal needs them ``session``
(without it a pause of more than ``session_gap`` seconds starts one), ``search`` (a result page, unique within the user), ``query``,
``document`` and ``position`` (from 1), ``arm``, ``rating``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from lightning_rank.online.events import CLICK, CONVERSION, SEARCH, SECOND, LogCounts, frame_of, load_polars, normalised
from lightning_rank.online.events import read_pieces as _read_pieces
from lightning_rank.online.facts import Facts
from lightning_rank.online.rates import ClickPosition, Dwell, Rate
from lightning_rank.online.similarity import folded, similar
from lightning_rank.stats.checks import check_choice, number, probability
from lightning_rank.stats.distributions import critical
from lightning_rank.stats.results import Result

if TYPE_CHECKING:
    import polars

_Self = TypeVar("_Self", bound="_Accumulator")
_COMPACT = 500_000


class Units(NamedTuple):
    """A signal by user, in the order of the ids: the input of ``Experiment.update``."""

    unit: list[str]
    numerator: np.ndarray
    denominator: np.ndarray


class _State:
    """What has been seen: rows of sessions that may go on, and sums by user of those that are over."""

    def __init__(self) -> None:
        self.pending: list[polars.DataFrame] = []
        self.settled: list[polars.DataFrame] = []
        self.values: list[polars.DataFrame] = []
        self.counts: Counter[str] = Counter()
        self.compact = 0

    def merged(self, other: _State) -> _State:
        state = _State()
        state.pending, state.settled = self.pending + other.pending, self.settled + other.settled
        state.values, state.counts = self.values + other.values, self.counts + other.counts
        return state


class _Accumulator:
    """What signals and groups of them share: a state, its updates and merges, values by arm."""

    by_day = False

    def __init__(self, *, session_gap: float = 1800, clock_skew: float = 5) -> None:
        self._session_gap = number("session_gap", session_gap, above=0)
        self._clock_skew = number("clock_skew", clock_skew)
        if clock_skew < 0:
            raise ValueError(f"`clock_skew` must be at least 0, got {clock_skew:g}.")
        self._state = _State()
        self._cache: tuple[polars.DataFrame, polars.DataFrame | None, Counter[str], polars.DataFrame] | None = None

    def _signals(self) -> Sequence[Signal]:
        raise NotImplementedError

    def _spec(self) -> Any:
        raise NotImplementedError

    def _fresh(self: _Self) -> _Self:
        raise NotImplementedError

    def update(self, events: Any, *, whole_sessions: bool = False) -> None:
        """Adds events.

        Args:
            events: a mapping of columns, a list of rows, or a DataFrame of polars or pandas.
            whole_sessions: no session, search or user's arm of these events goes on in another update. Then the rows become sums
                by user at once, otherwise they are kept until ``compute``.

        Raises:
            ValueError: a column that is missing, an empty time or user, a position below 1, a rating off the scale.
        """
        piece, counts = normalised(frame_of(events), sorted({name for signal in self._signals() for name in signal.needed}))
        self._add(piece, counts, whole_sessions)

    def read(
        self, *paths: str | Path, order: str = "time", idle: float = 2 * 3600, chunk: int = 1_000_000, last: bool = True
    ) -> None:
        """Adds the events of files, CSV, Parquet or JSONL by their names, in pieces.

        Args:
            paths: files or globs, one after the other.
            order: ``"time"``, sorted by time: memory is needed for the users of the last ``idle`` seconds, and a line of sums
                for each user; ``"any"``, the rows are first spread over temporary files by user.
            idle: seconds without an event after which all sessions and searches of a user are over; a disorder of the rows may be
                as long.
            chunk: rows read at a time.
            last: no other log follows that goes on with the sessions at the ends of this one. False keeps those as rows, so that
                logs of single days merge to the value of all.

        Raises:
            ValueError: as ``update``; rows that are not sorted; a file of another kind.
        """
        needed = sorted({name for signal in self._signals() for name in signal.needed})
        for piece, counts, whole in _read_pieces(paths, needed, order=order, idle=idle, chunk=chunk):
            self._add(piece, counts, whole or last)

    def _add(self, piece: polars.DataFrame, counts: Counter[str], whole: bool) -> None:
        self._cache = None
        state = self._state
        state.counts = state.counts + counts
        if not piece.height:
            return
        if not whole:
            for signal in self._signals():
                signal._check(piece)
            state.pending.append(piece)
            return
        sums, values, found = self._settle(piece)
        state.settled.append(sums)
        state.counts = state.counts + found
        if values is not None:
            state.values.append(values)
        if sum(part.height for part in state.settled) > 2 * state.compact + _COMPACT:
            state.settled = [_summed(state.settled)]
            state.compact = state.settled[0].height

    def _settle(self, piece: polars.DataFrame) -> tuple[polars.DataFrame, polars.DataFrame | None, Counter[str]]:
        pl = load_polars()
        facts = Facts(piece, session_gap=self._session_gap, clock_skew=self._clock_skew, by_day=self.by_day)
        sums, columns = facts.users, set()
        values = None
        for signal in self._signals():
            signal._check(piece)
            for rows in signal._collect(facts):
                new = [name for name in rows.columns if name != "u" and name not in columns]
                if new:
                    sums = sums.join(rows.select("u", *new), on="u", how="left")
                    columns.update(new)
            if signal._keeps_values and values is None:
                steps = facts.steps.filter((pl.col("kind") == CLICK) & pl.col("until").is_not_null())
                values = steps.select("user", "arm", "until")
        return sums.drop("u").with_columns(pl.col(sorted(columns)).fill_null(0)), values, facts.counts

    def __or__(self: _Self, other: _Self) -> _Self:
        if type(other) is not type(self):
            return NotImplemented
        if self._spec() != other._spec():
            raise ValueError(f"Signals with equal options can be merged, got {self._spec()} and {other._spec()}.")
        made = self._fresh()
        made._state = self._state.merged(other._state)
        return made

    def _tables(self) -> tuple[polars.DataFrame, polars.DataFrame | None, Counter[str], polars.DataFrame]:
        """Sums by user and arm, single values, and counts, of all that has been seen; the sums by day too, if asked for."""
        if self._cache is None:
            pl = load_polars()
            settled, values, counts = list(self._state.settled), list(self._state.values), Counter(self._state.counts)
            if self._state.pending:
                sums, more, found = self._settle(pl.concat(self._state.pending))
                settled.append(sums)
                counts += found
                values += [] if more is None else [more]
            table = _summed(settled) if settled else pl.DataFrame(schema={"user": pl.String, "arm": pl.String})
            daily = table
            if "day" in table.columns:
                table = _summed([table.drop("day")])
            mixed = table.drop_nulls("arm").filter(pl.col("user").is_duplicated())["user"].unique()
            counts["mixed_users"] = len(mixed)
            self._cache = table.sort("user", "arm"), pl.concat(values) if values else None, counts, daily
        return self._cache

    def counts(self) -> LogCounts:
        """What was found in the log, and what was left out."""
        return LogCounts.of(self._tables()[2])

    def arms(self) -> list[str]:
        """The arms that were seen, sorted."""
        return sorted(self._tables()[0]["arm"].drop_nulls().unique().to_list())

    def _of(self, arm: str | None, mixed: str) -> tuple[polars.DataFrame, polars.DataFrame | None]:
        """Sums and values of the users of one arm, or of all."""
        pl = load_polars()
        check_choice("mixed", mixed, ("refuse", "exclude", "keep"))
        table, values, counts, _ = self._tables()
        if arm is None:
            return table, values
        if counts["mixed_users"] and mixed != "keep":
            twice = table.drop_nulls("arm").filter(pl.col("user").is_duplicated())["user"].unique().sort()
            if mixed == "refuse":
                raise ValueError(
                    f"A user must be in one arm, but {len(twice):,} are in several, such as {twice[0]!r}. Find out why; "
                    "mixed='exclude' leaves them out, mixed='keep' counts them in each."
                )
            table = table.filter(~pl.col("user").is_in(twice.implode()))
            values = values if values is None else values.filter(~pl.col("user").is_in(twice.implode()))
        if arm not in set(table["arm"]):
            raise ValueError(f"`arm` must be one that was seen, got {arm!r}: seen were {self.arms()}.")
        of_arm = pl.col("arm") == arm
        return table.filter(of_arm), values if values is None else values.filter(of_arm)


def _summed(parts: Sequence[polars.DataFrame]) -> polars.DataFrame:
    pl = load_polars()
    parts = [part.select(parts[0].columns) for part in parts]
    return pl.concat(parts).group_by([key for key in ("user", "arm", "day") if key in parts[0].columns]).sum()


class Signal(_Accumulator):
    """Base of the signals.

    Args:
        session_gap: the pause in seconds that starts a session, where the log does not name sessions.
        clock_skew: how many seconds before its search an impression or click may seem to be; earlier ones are left out.
    """

    needed: tuple[str, ...] = ()
    _keeps_values = False
    _columns: tuple[str, ...] = ()
    """Of the sums: numerator and denominator first."""

    @property
    def adds_up(self) -> bool:
        """Whether the numbers of a user's days add up to those of the user."""
        return True

    def _signals(self) -> Sequence[Signal]:
        return (self,)

    def _spec(self) -> Any:
        options = {name: value for name, value in vars(self).items() if name not in ("_state", "_cache")}
        return type(self).__name__, options

    def _fresh(self: _Self) -> _Self:
        made = object.__new__(type(self))
        made.__dict__.update(vars(self))
        made._state, made._cache = _State(), None
        return made

    def __repr__(self) -> str:
        shown = [f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_")]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _check(self, piece: polars.DataFrame) -> None:
        """Refuses values that the signal cannot take."""

    def _collect(self, facts: Facts) -> list[polars.DataFrame]:
        raise NotImplementedError

    def _result(self, table: polars.DataFrame, values: polars.DataFrame | None, alpha: float) -> Result:
        return _rate(_column(table, self._columns[0]), _column(table, self._columns[1]), alpha)

    def compute(self, *, alpha: float = 0.05) -> Any:
        """The value over all arms; NaN and counts of 0 where nothing was seen."""
        return self._result(*self._of(None, "keep"), probability("alpha", alpha))

    def by_arm(self, *, alpha: float = 0.05, mixed: str = "refuse") -> dict[str, Any]:
        """The value of each arm.

        Args:
            alpha: 1 - the level of the intervals.
            mixed: what to do with users in two arms: ``"refuse"``, ``"exclude"`` or ``"keep"`` in both; ``counts()`` has their
                number.
        """
        alpha = probability("alpha", alpha)
        return {arm: self._result(*self._of(arm, mixed), alpha) for arm in self.arms()}

    def units(self, arm: str | None = None, *, mixed: str = "refuse") -> Units:
        """Numerator and denominator of each user whose denominator is above 0, in the order of the ids.

        Of a mean of users' rates it is the rate and 1.
        """
        return self._units(self._of(arm, mixed)[0])

    def _units(self, table: polars.DataFrame) -> Units:
        numerator, denominator = self._columns[:2]
        if not table.height:
            return Units([], np.zeros(0), np.zeros(0))
        rows = table.group_by("user").agg(y=load_polars().col(numerator).sum(), x=load_polars().col(denominator).sum())
        rows = rows.filter(rows["x"] > 0).sort("user")
        return Units(rows["user"].to_list(), *(rows[name].to_numpy().astype(np.float64) for name in ("y", "x")))


class ClickThroughRate(Signal):
    """Clicks per chance to click; the name of the result says per what.

    Args:
        per: ``"impression"``, clicked results / shown results (a result of a search counts once, and a click implies that it was
            shown, so that the rate is at most 1); ``"search"``, searches with a click / searches; ``"user"``, the mean of the
            users' rates per impression, which is another number and can point the other way.
        session_gap, clock_skew: see ``Signal``.

    Example:
        >>> ctr = ClickThroughRate()
        >>> ctr.update([
        ...     {"timestamp": 0, "user": "ann", "event": "impression", "search": "q1", "document": "d1", "position": 1},
        ...     {"timestamp": 0, "user": "ann", "event": "impression", "search": "q1", "document": "d2", "position": 2},
        ...     {"timestamp": 5, "user": "ann", "event": "click", "search": "q1", "document": "d2", "position": 2},
        ... ])
        >>> ctr.compute().value
        0.5
    """

    needed = ("search",)

    def __init__(self, per: str = "impression", *, session_gap: float = 1800, clock_skew: float = 5) -> None:
        super().__init__(session_gap=session_gap, clock_skew=clock_skew)
        check_choice("per", per, ("impression", "search", "user"))
        self.per = per
        self._columns = ("searches_clicked", "searches") if per == "search" else ("clicked", "shown")

    @property
    def adds_up(self) -> bool:
        return self.per != "user"

    def _check(self, piece: polars.DataFrame) -> None:
        if self.per != "search":
            pl = load_polars()
            rows = piece.filter(pl.col("kind").is_in([1, 2]) & pl.col("document").is_null() & pl.col("position").is_null())
            if rows.height:
                raise ValueError(
                    f"Impressions and clicks must have a `document` or `position`; {rows.height:,} have neither."
                )

    def _collect(self, facts: Facts) -> list[polars.DataFrame]:
        if self.per == "search":
            return [facts.count(facts.pages, "searches"), facts.count(facts.clicked.unique("s"), "searches_clicked")]
        return [facts.count(facts.results, "shown"), facts.count(facts.clicked, "clicked")]

    def _units(self, table: polars.DataFrame) -> Units:
        units = super()._units(table)
        if self.per != "user":
            return units
        # The mean of the users' rates is the ratio of their sum to the number of users.
        return units._replace(numerator=units.numerator / units.denominator, denominator=np.ones(len(units.unit)))

    def _result(self, table: polars.DataFrame, values: polars.DataFrame | None, alpha: float) -> Rate:
        units = self._units(table)
        return _rate(units.numerator, units.denominator, alpha)


class MeanClickPosition(Signal):
    """Where people click. Position bias: compare rankers within one layout only.

    Per user (``units``) it is the reciprocal rank of the first click over searches.

    Args:
        session_gap, clock_skew: see ``Signal``.
    """

    needed = ("search", "position")
    _columns = ("reciprocal_ranks", "searches", "positions", "positioned", "first_positions", "firsts")

    def _collect(self, facts: Facts) -> list[polars.DataFrame]:
        pl = load_polars()
        placed = facts.clicked.filter(pl.col("position").is_not_null())
        first = placed.unique("s", keep="first", maintain_order=True)
        position = pl.col("position")
        return [
            facts.count(facts.pages, "searches"),
            facts.per_user(placed, positions=position, positioned=1),
            facts.per_user(first, first_positions=position, firsts=1, reciprocal_ranks=1 / position),
        ]

    def _result(self, table: polars.DataFrame, values: polars.DataFrame | None, alpha: float) -> ClickPosition:
        ranks, searches, positions, clicks, first, firsts = (float(_column(table, name).sum()) for name in self._columns)
        return ClickPosition(
            _over(positions, clicks), _over(first, firsts), _over(ranks, searches), int(clicks), int(searches)
        )


class DwellTime(Signal):
    """How long people stay on what they clicked: until the next search or click of the session.

    The last click of a session has no end. It is counted as censored, and neither 0 nor in the mean. The times themselves are
    kept, for the median. Per user (``units``) it is seconds over clicks with an end.

    Args:
        cap: longer stays count as so many seconds.
        session_gap, clock_skew: see ``Signal``.

    Source: Kim et al., "Modeling Dwell Time to Predict Click-level Satisfaction", WSDM 2014.
    """

    needed = ("search",)
    _keeps_values = True

    def __init__(self, cap: float = 1800, *, session_gap: float = 1800, clock_skew: float = 5) -> None:
        super().__init__(session_gap=session_gap, clock_skew=clock_skew)
        self.cap = number("cap", cap, above=0)
        self._columns = (f"dwell@{self.cap:g}", "observed", "clicks")

    def _collect(self, facts: Facts) -> list[polars.DataFrame]:
        pl = load_polars()
        until = pl.col("until")
        capped = until.clip(upper_bound=round(self.cap * SECOND))  # null, whose end was not seen, stays null
        clicks = facts.steps.filter(pl.col("kind") == CLICK)
        sums = {self._columns[0]: capped, "observed": until.is_not_null().cast(pl.Int64), "clicks": 1}
        return [facts.per_user(clicks.with_columns(until.alias("until")), **sums)]

    def _units(self, table: polars.DataFrame) -> Units:
        units = super()._units(table)
        return units._replace(numerator=units.numerator / SECOND)

    def _result(self, table: polars.DataFrame, values: polars.DataFrame | None, alpha: float) -> Dwell:
        clicks, observed = (int(_column(table, name).sum()) for name in ("clicks", "observed"))
        if not observed or values is None:
            return Dwell(math.nan, math.nan, math.nan, clicks, 0, clicks, 0)
        # Sorted, so that the sums do not depend on the order of the log.
        seconds = np.sort(values["until"].to_numpy()) / SECOND
        capped = int((seconds > self.cap).sum())
        seconds = np.minimum(seconds, self.cap)
        return Dwell(
            float(np.median(seconds)),
            float(seconds.mean()),
            float(np.log1p(seconds).mean()),
            clicks,
            observed,
            clicks - observed,
            capped,
        )


class QuickBack(Signal):
    """Clicks that the user came back from at once, by a search or click of the same session / all clicks.

    Args:
        window: seconds that are quick.
        session_gap, clock_skew: see ``Signal``.
    """

    needed = ("search",)

    def __init__(self, window: float = 30, *, session_gap: float = 1800, clock_skew: float = 5) -> None:
        super().__init__(session_gap=session_gap, clock_skew=clock_skew)
        self.window = number("window", window, above=0)
        self._columns = (f"quick@{self.window:g}", "clicks")

    def _collect(self, facts: Facts) -> list[polars.DataFrame]:
        pl = load_polars()
        quick = (pl.col("until") <= round(self.window * SECOND)).fill_null(value=False).cast(pl.Int64)
        clicks = facts.steps.filter(pl.col("kind") == CLICK)
        return [facts.per_user(clicks, **{self._columns[0]: quick, "clicks": 1})]


class BounceRate(Signal):
    """Sessions of exactly one search and neither click nor conversion / sessions with a search.

    A user who leaves may have found the answer on the page.

    Args:
        session_gap, clock_skew: see ``Signal``.
    """

    needed = ("search",)
    _columns = ("bounced", "sessions")

    def _collect(self, facts: Facts) -> list[polars.DataFrame]:
        pl = load_polars()
        kind = pl.col("kind")
        sessions = facts.others.group_by("session").agg(
            pl.col("u").first(),
            searches=(kind == SEARCH).sum(),
            used=((kind == CLICK) | (kind == CONVERSION)).sum(),
        )
        sessions = sessions.filter(pl.col("searches") > 0)
        bounced = ((pl.col("searches") == 1) & (pl.col("used") == 0)).cast(pl.Int64)
        return [facts.per_user(sessions, bounced=bounced, sessions=1)]


class Abandonment(Signal):
    """Searches without a click / searches. Some abandonment is good: the answer was on the page.

    Args:
        session_gap, clock_skew: see ``Signal``.
    """

    needed = ("search",)
    _columns = ("abandoned", "searches")

    def _collect(self, facts: Facts) -> list[polars.DataFrame]:
        abandoned = facts.pages.join(facts.clicked.select("s"), on="s", how="anti")
        return [facts.count(facts.pages, "searches"), facts.count(abandoned, "abandoned")]


class RequeryRate(Signal):
    """Searches whose next search of the session comes soon and with another text / searches.

    The same text, but for case and spaces, is a reload.

    Args:
        window: seconds that are soon.
        rule: ``"similar"``, the next text shares half the words of the shorter one, or is at most half of the longer one's length
            in edits away; ``"any"``, any other text.
        session_gap, clock_skew: see ``Signal``.
    """

    needed = ("search", "query")

    def __init__(
        self, window: float = 300, rule: str = "similar", *, session_gap: float = 1800, clock_skew: float = 5
    ) -> None:
        super().__init__(session_gap=session_gap, clock_skew=clock_skew)
        self.window = number("window", window, above=0)
        check_choice("rule", rule, ("similar", "any"))
        self.rule = rule
        self._columns = (f"requeries@{self.window:g}@{rule}", "search_rows")

    def _collect(self, facts: Facts) -> list[polars.DataFrame]:
        pl = load_polars()
        searches = facts.others.filter(pl.col("kind") == SEARCH).select("u", "session", "t", "query")
        searches = searches.with_columns(folded(searches["query"]).alias("text"))
        follows = (pl.col("session") == pl.col("session").shift(-1)).fill_null(value=False)
        soon = (pl.col("t").shift(-1) - pl.col("t")) <= round(self.window * SECOND)
        searches = searches.with_columns(
            pl.col("text").shift(-1).alias("next"),
            (follows & soon & (pl.col("text") != pl.col("text").shift(-1))).fill_null(value=False).alias("again"),
        )
        if self.rule == "similar":
            pairs = searches.filter("again")
            again = np.zeros(searches.height, dtype=bool)
            again[searches["again"].to_numpy()] = similar(pairs["text"], pairs["next"])
            searches = searches.with_columns(pl.Series("again", again))
        return [facts.per_user(searches, **{self._columns[0]: pl.col("again").cast(pl.Int64), "search_rows": 1})]


class Signals(_Accumulator):
    """Several signals of one log, in one pass.

    Args:
        signals: by name, signals that have seen nothing yet; none: all, by the names ``ctr``, ``bounce`` ….
        session_gap, clock_skew: see ``Signal``; they hold for all of them.
        by_day: keep the sums by day too, for ``Experiment.update_from``: the day, in UTC, on which the session began and the search
            was made, so that the sums of all days are those without days. Memory is a line of sums for each user and day.

    Example:
        >>> signals = Signals({"ctr": ClickThroughRate(), "bounce": BounceRate()})
        >>> signals.update({
        ...     "timestamp": [0, 0, 7, 0], "user": ["ann", "ann", "ann", "bob"], "search": ["q1", "q1", "q1", "q2"],
        ...     "event": ["search", "impression", "click", "search"], "position": [None, 1, 1, None],
        ... })
        >>> print(signals.compute()["bounce"])
        0.5 [0, 1] at 95 % (1 / 2, 2 users)
    """

    def __init__(
        self,
        signals: Mapping[str, Signal] | None = None,
        *,
        session_gap: float = 1800,
        clock_skew: float = 5,
        by_day: bool = False,
    ) -> None:
        super().__init__(session_gap=session_gap, clock_skew=clock_skew)
        self.by_day = by_day
        if signals is None:
            from lightning_rank.online.satisfaction import Satisfaction

            signals = {
                "ctr": ClickThroughRate(),
                "ctr_per_search": ClickThroughRate(per="search"),
                "ctr_per_user": ClickThroughRate(per="user"),
                "click_position": MeanClickPosition(),
                "dwell": DwellTime(),
                "quick_back": QuickBack(),
                "bounce": BounceRate(),
                "abandonment": Abandonment(),
                "requery": RequeryRate(),
                "satisfaction": Satisfaction(),
            }
        if not isinstance(signals, Mapping) or not all(isinstance(signal, Signal) for signal in signals.values()):
            raise ValueError(f"`signals` must be a mapping from names to signals, got {signals!r}.")
        self.signals = dict(signals)

    def __getitem__(self, name: str) -> Signal:
        if name not in self.signals:
            raise ValueError(f"`name` must be one of {', '.join(map(repr, self.signals))}, got {name!r}.")
        return self.signals[name]

    def _signals(self) -> Sequence[Signal]:
        return list(self.signals.values())

    def _spec(self) -> Any:
        return (
            self._session_gap,
            self._clock_skew,
            self.by_day,
            {name: signal._spec() for name, signal in self.signals.items()},
        )

    def _fresh(self) -> Signals:
        return Signals(self.signals, session_gap=self._session_gap, clock_skew=self._clock_skew, by_day=self.by_day)

    def compute(self, *, alpha: float = 0.05) -> dict[str, Any]:
        """The values over all arms, by name of the signal."""
        table, values = self._of(None, "keep")
        return {name: signal._result(table, values, probability("alpha", alpha)) for name, signal in self.signals.items()}

    def by_arm(self, *, alpha: float = 0.05, mixed: str = "refuse") -> dict[str, dict[str, Any]]:
        """The values by arm and name of the signal; see ``Signal.by_arm``."""
        found = {arm: self._of(arm, mixed) for arm in self.arms()}
        alpha = probability("alpha", alpha)
        return {arm: {name: s._result(*tables, alpha) for name, s in self.signals.items()} for arm, tables in found.items()}

    def units(self, name: str, arm: str | None = None, *, mixed: str = "refuse") -> Units:
        """Numerator and denominator of a signal by user; see ``Signal.units``."""
        return self[name]._units(self._of(arm, mixed)[0])

    def tables(self, arm: str, *, mixed: str = "refuse") -> dict[int | None, polars.DataFrame]:
        """Sums of the users of an arm, by day since 1970 with ``by_day``, else under None."""
        pl = load_polars()
        table = self._of(arm, mixed)[0]
        if not self.by_day:
            return {None: table}
        daily = self._tables()[3].filter((pl.col("arm") == arm) & pl.col("user").is_in(table["user"].implode()))
        return {day: part for (day,), part in daily.sort("day", "user").partition_by("day", as_dict=True).items()}


def _column(table: polars.DataFrame, name: str) -> np.ndarray:
    return table[name].to_numpy() if name in table.columns else np.zeros(0)


def _over(numerator: float, denominator: float) -> float:
    return float(numerator) / float(denominator) if denominator else math.nan


def _rate(numerator: np.ndarray, denominator: np.ndarray, alpha: float) -> Rate:
    """The ratio of the sums of users, whose numerators and denominators these are."""
    counts = denominator > 0
    y, x = numerator[counts].astype(np.float64), denominator[counts].astype(np.float64)
    n, top, bottom = len(x), float(y.sum()), float(x.sum())
    value = _over(top, bottom)
    low = high = math.nan
    if n > 1:
        distance = y - value * x
        se = math.sqrt(n / (n - 1) * float(distance @ distance)) / bottom
        reach = critical(alpha, "two-sided") * se
        low, high = value - reach, value + reach
    return Rate(value, low, high, top, bottom, n, alpha)
