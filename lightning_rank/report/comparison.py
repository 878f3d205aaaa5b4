"""A comparison of runs as one page: the verdict in words, the numbers, and the queries behind them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lightning_rank.extras import extra
from lightning_rank.report.slices import is_prose, slices_of
from lightning_rank.stats.comparison import TIE

if TYPE_CHECKING:
    from lightning_rank.offline.compare import Change, Comparison, Difference

# So that the page stays small: bars of a figure, figures, and ranks shown of all queries together.
MOST_BARS, MOST_FIGURES, MOST_ROWS = 300, 8, 3000
# A share judged that differs by this much is worth a word.
JUDGED_APART = 0.02


class Verdict(NamedTuple):
    """What a comparison says, in words.

    Attributes:
        outcome: ``"better"``, ``"worse"`` or ``"open"``, for the candidate.
        headline: one sentence.
        details: what it rests on, and what to beware of.
    """

    outcome: str
    headline: str
    details: list[str]


def verdict(result: Comparison, candidate: str | None = None) -> Verdict:
    """What a comparison says of a candidate, by its first measure.

    A difference is shown where the corrected p is below ``alpha``; the interval is that of this measure alone.

    Args:
        result: the comparison.
        candidate: name of the run; None takes the first.
    """
    candidate = candidate or result.differences[0].candidate
    differences = [d for d in result.differences if d.candidate == candidate]
    first, *others = differences
    r, baseline = first.result, first.baseline
    outcome = _outcome(result, first)
    headline = {
        "better": f"{candidate} is better than {baseline}.",
        "worse": f"{candidate} is worse than {baseline}.",
        "open": f"No difference between {candidate} and {baseline} is shown.",
    }[outcome]
    corrected = f", corrected over {len(result.differences)} comparisons" if len(result.differences) > 1 else ""
    details = [
        f"{first.measure} goes from {r.value_a:.4f} to {r.value_b:.4f}: {r.difference:+.4f}, {_level(r.alpha)} interval "
        f"{r.low:+.4f} to {r.high:+.4f}, p = {p_text(first.pvalue)}{corrected}, over {r.n:,} queries: {first.wins:,} won, "
        f"{r.ties:,} tied, {first.losses:,} lost."
    ]
    if outcome == "open" and r.low <= 0 <= r.high and r.high > r.low:
        details.append(f"These queries do not tell a change of {r.low:+.4f} from one of {r.high:+.4f}.")
    elif outcome == "open" and r.high > r.low:
        details.append("The interval, of this measure alone, leaves out 0; after the correction that is not enough.")
    for other, told in (("better", "Better"), ("worse", "Worse")):
        names = [f"{d.measure} ({d.result.difference:+.4f})" for d in others if _outcome(result, d) == other]
        if names:
            told = f"{told} too on" if other == outcome else f"{told} on" if outcome == "open" else f"But {told.lower()} on"
            details.append(f"{told} {', '.join(names)}.")
    shares = [result.evaluations[name].counts.judged_share for name in (baseline, candidate)]
    if abs(shares[1] - shares[0]) >= JUDGED_APART:
        less = candidate if shares[1] < shares[0] else baseline
        depth = result.evaluations[candidate].counts.depth
        details.append(
            f"Of the first {depth} documents of {baseline} {shares[0]:.1%} are judged, of {candidate} {shares[1]:.1%}: what nobody "
            f"judged counts as not relevant, which underrates {less}."
        )
    return Verdict(outcome, headline, details)


def comparison_page(
    result: Comparison,
    *,
    attributes: Mapping[str, Mapping[str, Any]] | None = None,
    worst: int = 5,
    shown: int = 10,
    title: str | None = None,
) -> str:
    """One self-contained HTML page: verdict, table, bars, slices, worst queries, conventions and counts.

    It needs no network and no script, follows light and dark, and reads on a phone and by a screen reader. Everything from files
    is escaped. Slices are by the number of relevant and of judged documents, and by each of ``attributes``; they are there to ask
    questions, and their intervals are not corrected. The size is bounded: above 300 queries a bar is the mean of some, and of
    the worst queries only as many are kept as have 3,000 ranks together.

    Args:
        result: of ``lightning_rank.offline.compare.compare``.
        attributes: ``{name: {query: value}}`` for slices: numbers, names, or the text of the query, which also stands beside it.
        worst: how many of the queries that lost most are shown for each candidate, by the first measure.
        shown: ranks of each.
        title: of the page; None names the runs.

    Returns:
        The text of the page, to be written as UTF-8.

    Raises:
        ValueError: ``worst`` or ``shown`` is no whole number >= 0, >= 1.
        ModuleNotFoundError: jinja2 is not installed (the extra ``pages``).

    Warns:
        UserWarning: fewer of the worst queries are shown than asked for.

    Example:
        >>> from lightning_rank.data.runs import Judgements, Run
        >>> from lightning_rank.offline.compare import compare
        >>> judged = Judgements.from_dict({f"q{i}": {"a": 1, "b": 0} for i in range(4)})
        >>> old = Run.from_dict({f"q{i}": {"a": 1.0, "b": 2.0} for i in range(4)}, name="old")
        >>> new = Run.from_dict({f"q{i}": {"a": float(i), "b": 1.5} for i in range(4)}, name="new")
        >>> page = comparison_page(compare(judged, [old, new], "mrr"), attributes={"market": {"q1": "de", "q2": "de"}})
        >>> "No difference between new and old is shown." in page
        True
    """
    for name, number, least in (("worst", worst, 0), ("shown", shown, 1)):
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise ValueError(f"`{name}` must be a whole number >= {least}, got {number!r}.")
    candidates = [agreement.candidate for agreement in result.agreements]
    kept = min(worst, max(1, MOST_ROWS // (shown * len(candidates))))
    if kept < worst:
        warnings.warn(
            f"The page keeps {kept} of the {worst} worst queries asked for: more with {shown} ranks each would make it too large.",
            stacklevel=2,
        )
    drawn = result.differences[:MOST_FIGURES] if len(candidates) == 1 else _first_of_each(result)[:MOST_FIGURES]
    known = result.evaluations[result.baseline].query_counts() | dict(attributes or {})
    prose = {name: of for name, of in known.items() if _is_prose(of)}
    version = _version()
    return _template().render(
        title=title or f"{' and '.join(candidates)} against {result.baseline}",
        result=result,
        candidates=[
            {
                "name": candidate,
                "verdict": verdict(result, candidate),
                "slices": _slices(result, candidate, known),
                "worst": [_side_by_side(change, prose) for change in result.worst(kept, candidate=candidate, shown=shown)],
                "agreement": next(a for a in result.agreements if a.candidate == candidate),
            }
            for candidate in candidates
        ],
        several=len(candidates) > 1,
        rows=[_row(result, d) for d in result.differences],
        figures=[_bars(result, d) for d in drawn],
        undrawn=len(result.differences) - len(drawn),
        measure=result.differences[0].measure,
        level=_level(result.differences[0].result.alpha),
        test=result.differences[0].result.test,
        dropped=max(d.result.dropped for d in result.differences),
        shown=shown,
        asked=worst,
        kept=kept,
        version=version,
    )


def p_text(pvalue: float) -> str:
    """A p-value with four decimals, or its order of magnitude."""
    return f"{pvalue:.4f}" if pvalue >= 0.0001 else f"{pvalue:.1e}"


def _level(alpha: float) -> str:
    return f"{(1 - alpha) * 100:g} %"


def _outcome(result: Comparison, difference: Difference) -> str:
    r = difference.result
    if not difference.pvalue < r.alpha or abs(r.difference) <= TIE:
        return "open"
    return "better" if (r.difference > 0) == result.measure(difference.measure).higher_is_better else "worse"


def _first_of_each(result: Comparison) -> tuple[Difference, ...]:
    return tuple(d for d in result.differences if d.measure == result.differences[0].measure)


def _row(result: Comparison, d: Difference) -> dict[str, Any]:
    reach = max(max(abs(e.result.low), abs(e.result.high)) for e in result.differences)
    return {
        "difference": d,
        "p": p_text(d.result.pvalue),
        "corrected": p_text(d.pvalue),
        "outcome": _outcome(result, d),
    } | _whisker(d.result.low, d.result.difference, d.result.high, reach)


def _whisker(low: float, mean: float, high: float, reach: float) -> dict[str, Any]:
    """Places from 0 to 100 of an interval on an axis from -reach to reach."""
    low, mean, high = (50 + 50 * min(max(x / reach, -1), 1) if reach else 50.0 for x in (low, mean, high))
    return {"low": round(low, 2), "mean": round(mean, 2), "high": round(high, 2)}


def _slices(result: Comparison, candidate: str, known: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    first = result[(result.differences[0].measure, candidate)]
    old, new = (result.evaluations[name].per_query(first.measure) for name in (first.baseline, candidate))
    tables = [
        slices_of(name, of_query, old, new, alpha=first.result.alpha)
        for name, of_query in known.items()
        # Where only relevant documents were judged, one of the two says it all.
        if not (name == "judged documents" and of_query == known["relevant documents"])
    ]
    reach = max(
        (abs(end) for t in tables for s in t.slices if s.result for end in (s.result.low, s.result.high)), default=0.0
    )
    return [
        {
            "attribute": table.attribute,
            "rows": [
                {"slice": s, "difference": s.candidate - s.baseline}
                | (_whisker(s.result.low, s.result.difference, s.result.high, reach) if s.result else {})
                for s in table.slices
            ],
        }
        for table in tables
        if len(table.slices) > 1
    ]


def _bars(result: Comparison, d: Difference) -> dict[str, Any]:
    """Bars in a box of 1000 units high, whose width is their number."""
    old, new = (result.evaluations[name].per_query(d.measure) for name in (d.baseline, d.candidate))
    queries = [query for query in old if query in new]
    change = np.array([new[query] - old[query] for query in queries])
    order = np.argsort(-change, kind="stable")
    parts = np.array_split(order, min(len(order), MOST_BARS))
    heights = [float(change[part].mean()) for part in parts]
    top, bottom = max(0.0, *heights, d.result.high), min(0.0, *heights, d.result.low)
    span = (top - bottom) or 1.0

    def y(value: float) -> float:
        return round(1000 * (top - value) / span, 1)

    sign = 1 if result.measure(d.measure).higher_is_better else -1
    one_each = len(parts) == len(order)
    bars = [
        {
            "y": min(y(0), y(height)), "height": round(abs(y(height) - y(0)), 1), "win": sign * height > 0,
            "title": f"{queries[int(part[0])]}: {height:+.4f}" if one_each else "",
        }
        for part, height in zip(parts, heights, strict=True)
    ]  # fmt: skip
    return {
        "difference": d, "bars": bars, "per_bar": len(order) / len(parts), "one_each": one_each, "top": top, "bottom": bottom,
        "zero": y(0), "mean": y(d.result.difference), "band": (y(d.result.high), round(y(d.result.low) - y(d.result.high), 1)),
    }  # fmt: skip


def _side_by_side(change: Change, prose: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    def side(ranking: list[tuple[str, float | None]], other: list[tuple[str, float | None]]) -> list[dict[str, Any]]:
        place = {document: rank for rank, (document, _) in enumerate(other, 1)}
        return [
            {"rank": rank, "document": document, "grade": grade, "there": place.get(document)}
            for rank, (document, grade) in enumerate(ranking, 1)
        ]

    texts = [(name, str(of[change.query])) for name, of in prose.items() if of.get(change.query) is not None]
    return {
        "change": change,
        "texts": texts,
        "before": side(change.before, change.after),
        "after": side(change.after, change.before),
    }


def _is_prose(of_query: Mapping[str, Any]) -> bool:
    texts = [value for value in of_query.values() if value is not None]
    return bool(texts) and all(isinstance(text, str) for text in texts) and is_prose(texts)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("lightning-rank")
    except PackageNotFoundError:
        return ""


def _template() -> Any:
    jinja2 = extra("jinja2", "Pages need", "pages")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "number": lambda value: "" if value is None or math.isnan(value) else f"{value:.4f}",
        "signed": lambda value: f"{value:+.4f}",
        "count": lambda value: f"{value:,}",
        "grade": lambda value: "not judged" if value is None else f"{value:g}",
    }
    return environment.from_string(files("lightning_rank.report").joinpath("comparison.html").read_text(encoding="utf-8"))
