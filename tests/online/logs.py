"""Search logs for the tests: a strategy that draws them, and the signals of one by plain loops over its rows."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

Row = dict[str, Any]
KINDS = ("search", "impression", "click", "conversion", "survey")
COLUMNS = ("timestamp", "user", "event", "session", "search", "query", "document", "position", "arm", "rating")
QUERIES = ("red shoes", "Red  Shoes", "red shoes men", "blue hat", "跑步鞋", "跑鞋", "x")


def row(**fields: Any) -> Row:
    return {name: fields.get(name) for name in COLUMNS}


@st.composite
def logs(draw: st.DrawFn, *, sessions: bool = True, arms: bool = True, early: bool = True, users: int = 3) -> list[Row]:
    """Rows in any order; searches of a user are at different times, and what belongs to one is within 200 seconds of it.

    Args:
        sessions: whether some logs name their sessions.
        arms: whether rows may leave out the arm.
        early: whether impressions and clicks may be before their search, and rows twice.
    """
    rows: list[Row] = []
    named = sessions and draw(st.booleans())
    for user in [f"u{i}" for i in range(draw(st.integers(1, users)))]:
        arm = draw(st.sampled_from(("old", "new")))

        def add(user: str = user, arm: str = arm, **fields: Any) -> None:
            fields["arm"] = draw(st.sampled_from((arm, arm, arm, None))) if arms else arm
            fields["session"] = draw(st.sampled_from(("s1", "s2"))) if named else None
            rows.append(row(user=user, **fields))

        starts = draw(st.lists(st.sampled_from(range(0, 20_000, 7)), min_size=1, max_size=5, unique=True))
        for i, start in enumerate(starts):
            if draw(st.integers(0, 5)) > 0:
                add(event="search", timestamp=start, search=f"q{i}", query=draw(st.sampled_from(QUERIES)))
            for position in range(1, draw(st.integers(0, 3)) + 1):
                delay = draw(st.sampled_from((0, 0, 1, -2, -9) if early else (0, 1)))
                where = {"search": f"q{i}", "document": f"d{position}", "position": position}
                add(event="impression", timestamp=max(start + delay, 0), **where)
            for _ in range(draw(st.integers(0, 3))):
                delay = draw(st.sampled_from((3, 10, 29, 30, 31, 150, -3, -9) if early else (3, 10, 30, 150)))
                position = draw(st.integers(1, 4))
                where = {"search": f"q{i}", "document": f"d{position}", "position": position}
                add(event="click", timestamp=max(start + delay, 0), **where)
        if draw(st.booleans()):
            add(event="conversion", timestamp=draw(st.integers(0, 20_000)))
        if draw(st.booleans()):
            rating = draw(st.sampled_from((None, 1, 3, 4, 5)))
            add(event="survey", timestamp=draw(st.integers(0, 20_000)), rating=rating)
    if rows and early and draw(st.booleans()):
        rows += draw(st.lists(st.sampled_from(rows), max_size=3))
        rows.append(row(user="u0", event="scroll", timestamp=5))
    return draw(st.permutations(rows))


def _first(*values: Any) -> tuple[Any, ...]:
    """A key that sorts None first."""
    return tuple((value is not None, value) for value in values)


class Reference:
    """Signals of a log by their definitions.

    Attributes:
        values: by name of the signal, numerator and denominator by user; ``dwell`` has the times until the next step.
        counts: what was left out.
    """

    def __init__(self, rows: Sequence[Row], *, gap: float = 1800, skew: float = 5) -> None:
        self.counts: Counter[str] = Counter(rows=len(rows))
        self.values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0]))
        self.positions: list[int] = []
        self.first_positions: list[int] = []
        self.dwell: list[float] = []
        self.censored = 0
        self.answers: list[float | None] = []
        self.counts["ignored"] = sum(r["event"] not in KINDS for r in rows)
        by_user: dict[str, list[Row]] = defaultdict(list)
        for r in rows:
            if r["event"] in KINDS:
                by_user[r["user"]].append(dict(r))
        for user, own in sorted(by_user.items()):
            self._user(user, own, gap, skew)

    def _user(self, user: str, rows: list[Row], gap: float, skew: float) -> None:
        shown = [r for r in rows if r["event"] == "impression"]
        others: dict[Any, Row] = {}
        for r in sorted(
            (r for r in rows if r["event"] != "impression"),
            key=lambda r: _first(r["timestamp"], r["query"], r["position"], r["session"]),
        ):
            once = 0 if r["event"] == "search" else r["timestamp"]
            key = (r["event"], once, r["search"], r["document"] or r["position"], r["rating"])
            self.counts["duplicates"] += key in others
            others.setdefault(key, r)
        rest = list(others.values())
        start = {r["search"]: r["timestamp"] for r in rest if r["event"] == "search"}
        on_page = [r for r in (*shown, *rest) if r["event"] in ("impression", "click")]
        self.counts["without_search"] += len({r["search"] for r in on_page} - set(start))
        left_out = []
        for r in on_page:
            ahead = start.get(r["search"], -math.inf) - r["timestamp"]
            if ahead > skew:
                left_out.append(id(r))
                self.counts["before_search"] += 1
            elif ahead > 0:
                r["timestamp"] = start[r["search"]]
                self.counts["skewed"] += 1
        shown, rest = ([r for r in part if id(r) not in left_out] for part in (shown, rest))
        self._sessions(shown, rest, gap)
        clicks = sorted((r for r in rest if r["event"] == "click"), key=lambda r: (r["timestamp"], r["position"]))
        clicked: dict[Any, Row] = {}
        for r in clicks:
            clicked.setdefault((r["search"], r["document"]), r)
        seen = {(r["search"], r["document"]) for r in shown}
        self.counts["repeated_impressions"] += len(shown) - len(seen)
        self.counts["never_shown"] += len(set(clicked) - seen)
        pages = {search for search, _ in seen | set(clicked)} | set(start)
        first: dict[str, int] = {}
        for (search, _), r in clicked.items():
            first.setdefault(search, r["position"])
        self.positions += [r["position"] for r in clicked.values()]
        self.first_positions += first.values()
        self._add("ctr", user, len(clicked), len(seen | set(clicked)))
        self._add("ctr_per_search", user, len(first), len(pages))
        self._add("abandonment", user, len(pages) - len(first), len(pages))
        self._add("click_position", user, sum(1 / p for p in first.values()), len(pages))
        self.answers += [r["rating"] for r in rest if r["event"] == "survey"]
        for session in {r["session"] for r in rest}:
            self._session(user, sorted((r for r in rest if r["session"] == session), key=self._order))

    @staticmethod
    def _order(r: Row) -> Any:
        return r["timestamp"], KINDS.index(r["event"])

    def _sessions(self, shown: list[Row], rest: list[Row], gap: float) -> None:
        last, number = -math.inf, 0
        for r in sorted((*shown, *rest), key=self._order):
            if r["session"] is None:
                number += r["timestamp"] - last > gap
                r["session"] = number
                last = r["timestamp"]

    def _session(self, user: str, rows: list[Row]) -> None:
        steps = [r for r in rows if r["event"] in ("search", "click")]
        for i, r in enumerate(steps):
            end = steps[i + 1]["timestamp"] if i + 1 < len(steps) else None
            if r["event"] == "click":
                self._add("quick_back", user, end is not None and end - r["timestamp"] <= 30, 1)
                self.censored += end is None
                if end is not None:
                    self.dwell.append(end - r["timestamp"])
        searches = [r for r in rows if r["event"] == "search"]
        if searches:
            used = any(r["event"] in ("click", "conversion") for r in rows)
            self._add("bounce", user, len(searches) == 1 and not used, 1)
        for i, r in enumerate(searches):
            later = searches[i + 1] if i + 1 < len(searches) else None
            soon = later is not None and later["timestamp"] - r["timestamp"] <= 300
            self._add("requery", user, soon and reworded(r["query"], later["query"]), 1)

    def _add(self, name: str, user: str, numerator: float, denominator: float) -> None:
        pair = self.values[name][user]
        pair[0] += numerator
        pair[1] += denominator

    def units(self, name: str) -> list[tuple[str, float, float]]:
        return [(user, *pair) for user, pair in sorted(self.values[name].items()) if pair[1] > 0]


def reworded(first: str, later: str) -> bool:
    """Another text, that shares half the words of the shorter or is at most half its length in edits away."""
    first, later = (" ".join(text.casefold().split()) for text in (first, later))
    if first == later:
        return False
    a, b = set(first.split()), set(later.split())
    return len(a & b) >= min(len(a), len(b)) / 2 or edits(first, later) <= max(len(first), len(later)) / 2


def edits(a: str, b: str) -> int:
    """Levenshtein's distance."""
    line = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        line, above = [i], line
        for j, y in enumerate(b, 1):
            line.append(min(above[j] + 1, line[-1] + 1, above[j - 1] + (x != y)))
    return line[-1]
