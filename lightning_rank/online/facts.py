"""What happened in some whole sessions, found once for all signals: results shown and clicked, searches, sessions."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_rank.online.events import CLICK, IMPRESSION, SEARCH, SECOND, load_polars

if TYPE_CHECKING:
    import polars

# Odd numbers, by which the 64-bit hashes of a user, a search and a result are made into one key. Keys are compared within
# a piece of a log only, where two different ones are equal with a probability of about n² / 2^65.
_MIX = [np.uint64(k) for k in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5)]


DAY = 86_400 * SECOND


class Facts:
    """The events of whole sessions as frames that are made when first needed.

    A key ``u`` is a user in an arm (on a day, if asked for), ``s`` one of its searches, ``i`` a result of a search, ``session`` one
    of its sessions.

    Attributes:
        users: u, user, arm, and the day since 1970.
        counts: what was left out.
    """

    def __init__(self, events: polars.DataFrame, *, session_gap: float, clock_skew: float, by_day: bool = False) -> None:
        pl = self._pl = load_polars()
        self.counts: Counter[str] = Counter()
        self._gap = round(session_gap * SECOND)
        if 0 < events["arm"].null_count() < events.height:
            # Events of a user that do not say the arm are of the one that the others say.
            known = events.drop_nulls("arm").sort("t", "arm").unique("user", keep="first").select("user", known="arm")
            events = events.join(known, on="user", how="left", maintain_order="left")
            events = events.with_columns(pl.col("arm").fill_null(pl.col("known"))).drop("known")
        user, arm, search = (_hashes(events[name]) for name in ("user", "arm", "search"))
        by_position = events["document"].is_null()
        result = _hashes(events["document"])
        if by_position.any():
            result = np.where(by_position.to_numpy(), _hashes(events["position"]), result)
        u = user * _MIX[0] + arm * _MIX[1]
        if by_day:
            events = events.with_columns(self._days(events, u, round(clock_skew * SECOND)))
            u = u + _hashes(events["day"]) * _MIX[1]
        s = u + search * _MIX[2]
        keys = {"u": u, "s": s, "i": s + result * _MIX[3]}
        events = events.with_columns([pl.Series(name, key) for name, key in keys.items()])
        self.users = events.select("u", "user", "arm", *(["day"] if by_day else [])).unique("u")
        on_page = (pl.col("kind") == IMPRESSION) | (pl.col("kind") == CLICK)
        if events.filter(on_page)["search"].null_count():
            raise ValueError("Every impression and click must name its `search`, the result page.")
        shown, others = events.filter(pl.col("kind") == IMPRESSION), events.filter(pl.col("kind") != IMPRESSION)
        others = self._without_copies(others)
        self._keep_order_of_search(shown, others, round(clock_skew * SECOND))

    def _days(self, events: polars.DataFrame, u: np.ndarray, skew: int) -> polars.Series:
        """The day of each event, one for all of a session and all of a search: that on which they began, in UTC."""
        pl = self._pl
        rows = events.select("t", "search", "session", u=pl.Series(u)).with_row_index("row").sort("u", "t")
        # No session by pauses is longer than one of these, whatever is left out of the log or moved later on.
        starts = (pl.col("u") != pl.col("u").shift()) | (pl.col("t").diff() > self._gap + skew)
        rows = rows.with_columns(starts.fill_null(value=True).cum_sum().alias("visit"), (pl.col("t") // DAY).alias("day"))
        while True:
            day = pl.col("day")
            earlier = rows.with_columns(day.min().over("visit"))
            for name in ("search", "session"):
                first = pl.when(pl.col(name).is_not_null()).then(day.min().over("u", name)).otherwise(day)
                earlier = earlier.with_columns(first.alias("day"))
            if earlier["day"].equals(rows["day"]):
                return rows.sort("row")["day"]
            rows = earlier

    def _without_copies(self, others: polars.DataFrame) -> polars.DataFrame:
        """Rows but impressions, once each, by time."""
        pl = self._pl
        # A search has one row, the first, whenever the others came.
        is_search = (pl.col("kind") == SEARCH) & pl.col("search").is_not_null()
        rows = others.with_columns(pl.when(is_search).then(0).otherwise(pl.col("t")).alias("once"))
        rows = rows.sort("t", "query", "position", "session")
        rows = rows.unique(["kind", "once", "i", "rating"], keep="first", maintain_order=True)
        self.counts["duplicates"] += others.height - rows.height
        return rows.drop("once")

    def _keep_order_of_search(self, shown: polars.DataFrame, others: polars.DataFrame, skew: int) -> None:
        """Leaves out what happened before its search, and moves what is only a little too early."""
        pl = self._pl
        start = others.filter((pl.col("kind") == SEARCH) & pl.col("search").is_not_null()).select(
            "s", pl.col("t").alias("start")
        )
        clicks = others.filter(pl.col("kind") == CLICK)
        first = pl.concat([shown.select("s", "t"), clicks.select("s", "t")]).group_by("s").agg(pl.col("t").min())
        started = first.join(start, on="s", how="left")
        self.counts["without_search"] += started["start"].null_count()
        early = started.filter(pl.col("t") < pl.col("start")).select("s", "start")
        if early.height:
            shown, others = (self._in_order(rows, early, skew) for rows in (shown, others))
        self._shown, self._others = shown, others

    def _in_order(self, rows: polars.DataFrame, early: polars.DataFrame, skew: int) -> polars.DataFrame:
        pl = self._pl
        rows = rows.join(early, on="s", how="left", maintain_order="left")
        ahead = pl.when(pl.col("kind").is_in([IMPRESSION, CLICK])).then(pl.col("start") - pl.col("t")).otherwise(0)
        rows = rows.with_columns(ahead.fill_null(0).alias("ahead"))
        kept = rows.filter(pl.col("ahead") <= skew)
        self.counts["before_search"] += rows.height - kept.height
        self.counts["skewed"] += kept.filter(pl.col("ahead") > 0).height
        moved = pl.when(pl.col("ahead") > 0).then(pl.col("start")).otherwise(pl.col("t"))
        return kept.with_columns(moved.alias("t")).drop("start", "ahead").sort("t", maintain_order=True)

    @cached_property
    def clicks(self) -> polars.DataFrame:
        """Clicks by time."""
        return self._others.filter(self._pl.col("kind") == CLICK).sort("t", "position", "i")

    @cached_property
    def clicked(self) -> polars.DataFrame:
        """i, s, u, position: clicked results, by the time of the first click."""
        return self.clicks.unique("i", keep="first", maintain_order=True).select("i", "s", "u", "position")

    @cached_property
    def results(self) -> polars.DataFrame:
        """i, s, u: results that were shown, or clicked and so shown."""
        shown = self._shown.select("i", "s", "u").unique("i")
        self.counts["repeated_impressions"] += self._shown.height - shown.height
        never = self.clicked.select("i", "s", "u").join(shown.select("i"), on="i", how="anti")
        self.counts["never_shown"] += never.height
        return self._pl.concat([shown, never])

    @cached_property
    def pages(self) -> polars.DataFrame:
        """s, u: searches seen in a search, impression or click row."""
        pl = self._pl
        on_page = self._others.filter(pl.col("kind").is_in([SEARCH, CLICK]) & pl.col("search").is_not_null())
        return pl.concat([self.results.select("s", "u"), on_page.select("s", "u")]).unique("s")

    @cached_property
    def others(self) -> polars.DataFrame:
        """Searches, clicks, conversions and surveys by session, time and kind."""
        pl = self._pl
        rows = self._others
        named = rows["session"].is_not_null()
        key = rows["u"].to_numpy() + _hashes(rows["session"]) * _MIX[2]
        if not named.all() or self._shown["session"].null_count():
            key = np.where(named.to_numpy(), key, self._by_pause())
        rows = rows.with_columns(pl.Series("session", key))
        return rows.sort("session", "t", "kind", "s", "i")

    def _by_pause(self) -> np.ndarray:
        """A key of the session of each of the other rows, where a pause starts a session."""
        pl = self._pl
        rows = self._others.with_row_index("row").select("u", "t", "row", "session")
        shown = self._shown.select("u", "t", pl.lit(None, pl.UInt32).alias("row"), "session").unique()
        rows = pl.concat([rows, shown]).filter(pl.col("session").is_null()).sort("u", "t")
        starts = (pl.col("u") != pl.col("u").shift()) | (pl.col("t").diff() > self._gap)
        rows = rows.with_columns(starts.fill_null(value=True).cum_sum().alias("number")).drop_nulls("row")
        numbers = np.zeros(self._others.height, dtype=np.uint64)
        numbers[rows["row"].to_numpy()] = rows["number"].to_numpy().astype(np.uint64)
        return self._others["u"].to_numpy() + numbers * _MIX[3]

    @cached_property
    def steps(self) -> polars.DataFrame:
        """Searches and clicks with ``until``, the microseconds until the next one of the session; null for the last."""
        pl = self._pl
        rows = self.others.filter(pl.col("kind").is_in([SEARCH, CLICK]))
        until = pl.when(pl.col("session") == pl.col("session").shift(-1)).then(pl.col("t").shift(-1) - pl.col("t"))
        return rows.with_columns(until.alias("until"))

    def per_user(self, rows: polars.DataFrame, **sums: Any) -> polars.DataFrame:
        """Sums of expressions by user; of 1, the number of rows."""
        pl = self._pl
        number = pl.len().cast(pl.Int64)
        return rows.group_by("u").agg(
            **{name: number if isinstance(sum_, int) else sum_.sum() for name, sum_ in sums.items()}
        )

    def count(self, rows: polars.DataFrame, name: str) -> polars.DataFrame:
        """The number of rows by user."""
        return rows.group_by("u").agg(self._pl.len().cast(self._pl.Int64).alias(name))


def _hashes(column: polars.Series) -> np.ndarray:
    return column.hash(seed=1).to_numpy()
