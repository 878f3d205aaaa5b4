"""A run against judgements: values per query, means with intervals, and what they are made of."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lightning_rank.conventions import TIES, check_choice, check_number, check_top_k, preset
from lightning_rank.data.runs import Judgements, Run, check_lists, pandas, polars
from lightning_rank.entries import SHARED_OPTIONS, Entry, MetricSpec, resolve, values_of
from lightning_rank.offline.measures import Measure, all_metrics, graded_rbp, parse_measures
from lightning_rank.offline.plain import PLAIN, JudgedByGrade, PlainRanking
from lightning_rank.uncertainty import interval_of_mean

if TYPE_CHECKING:
    import polars as pl
    import torch
    from matplotlib.figure import Figure

    from lightning_rank.functional.ranking import Ranking

MISSING = ("zero", "skip", "error")
# Conventions of tools that break ties by document id; the others keep the order in which documents came.
BY_DOCUMENT = ("trec_eval", "beir")
# Tools to which a grade below 0 means that nobody judged the document.
UNJUDGED_BELOW_0 = ("trec_eval", "beir")
# What trec_eval gives RBP unless told otherwise.
TREC_PERSISTENCE = 0.9
# Documents that are looked at for why none is judged.
SOME = 100_000
# The floor of a geometric mean, as in trec_eval.
LEAST = 1e-5


class Estimate(NamedTuple):
    """A measure over all queries.

    Attributes:
        value: the mean; the sum for counts; the geometric mean where that is the measure.
        low, high: ends of the interval of the mean (Student's t), cut at 0 and 1 where no value can lie beyond; NaN for what is
            no mean, and for a single query.
        num_queries: queries that count.
    """

    value: float
    low: float
    high: float
    num_queries: int


class Counts(NamedTuple):
    """What stands beside the values.

    Attributes:
        queries: judged queries that are evaluated.
        empty: of these, without a relevant document.
        missing: of the judged queries, those that the run misses.
        not_judged: queries of the run that have no judgement, which are ignored.
        depth: k of ``judged_share``.
        judged_share: mean share of judged documents among the first k retrieved (judged@k), over queries with any.
        fully_judged: queries whose first k are all judged.
    """

    queries: int
    empty: int
    missing: int
    not_judged: int
    depth: int
    judged_share: float
    fully_judged: int


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Measures of one run; prints as a table.

    Attributes:
        run: its name.
        tag: what it calls itself in its file; the name where it does not.
        measures: in the order asked for.
        query_ids: the judged queries that are evaluated, in the order of the judgements.
        values: per measure, ``[query]`` float64; NaN where a query is left out of the mean.
        counts: queries used, empty, missing and how much was judged.
        conventions: what was in force, as text.
        level: of the intervals.

    Example:
        >>> judged = Judgements.from_dict({"q1": {"d1": 1, "d2": 0}, "q2": {"d5": 2}})
        >>> run = Run.from_dict({"q1": {"d2": 0.9, "d1": 0.8}, "q2": {"d5": 0.1}}, name="bm25")
        >>> result = evaluate(judged, run, "ndcg@10 mrr")
        >>> result["mrr"].value
        0.75
        >>> result.per_query("mrr")
        {'q1': 0.5, 'q2': 1.0}
    """

    run: str
    tag: str
    measures: tuple[Measure, ...]
    query_ids: list[str]
    values: Mapping[str, np.ndarray]
    counts: Counts
    conventions: Mapping[str, str]
    level: float = 0.95
    rankings: _Rankings | None = field(default=None, repr=False)

    def __getitem__(self, name: str) -> Estimate:
        measure = next((measure for measure in self.measures if measure.name == name), None)
        if measure is None:
            raise KeyError(f"{name!r} was not computed; there is {', '.join(m.name for m in self.measures)}.")
        values = self.values[name]
        values = values[~np.isnan(values)]
        n = len(values)
        if measure.over_queries == "sum":
            return Estimate(float(values.sum()), math.nan, math.nan, n)
        if measure.over_queries == "geometric":
            return Estimate(float(np.exp(np.log(values.clip(LEAST)).mean())) if n else math.nan, math.nan, math.nan, n)
        mean, low, high = _mean(values, self.level)
        if measure.bounded:
            # With NaN first, max and min keep it. The mean itself may be 1 + 1e-16.
            low, high = max(low, min(mean, 0.0)), min(high, max(mean, 1.0))
        return Estimate(mean, low, high, n)

    @property
    def summary(self) -> dict[str, Estimate]:
        """Every measure over all queries."""
        return {measure.name: self[measure.name] for measure in self.measures}

    def per_query(self, name: str) -> dict[str, float]:
        """``{query: value}`` of a measure, without queries that are left out."""
        self[name]
        values = self.values[name]
        return {query: value for query, value in zip(self.query_ids, values.tolist(), strict=True) if value == value}

    def query_counts(self) -> dict[str, dict[str, int]]:
        """What the judgements hold for each query: ``{"relevant documents": {query: n}, "judged documents": {query: n}}``."""
        rankings = self.rankings
        assert rankings is not None
        judgements, queries = rankings.judgements, rankings.judged_query
        known = judgements.grades >= 0 if rankings.below_0_is_unjudged else np.ones(len(judgements.grades), bool)
        found = {}
        for name, counts in (
            ("relevant documents", judgements.grades >= float(self.conventions["min_relevance"])), ("judged documents", known),
        ):  # fmt: skip
            per_query = np.bincount(judgements.query_of_row, weights=counts, minlength=len(judgements)).astype(int)[queries]
            found[name] = dict(zip(self.query_ids, per_query.tolist(), strict=True))
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON; what is undefined is None."""
        return {
            "run": self.run,
            "measures": {name: _plain(estimate._asdict()) for name, estimate in self.summary.items()},
            "counts": _plain(self.counts._asdict()),
            "conventions": dict(self.conventions),
            "level": self.level,
        }

    def to_polars(self) -> pl.DataFrame:
        """A row per query: run, query, and a column per measure."""
        pl = polars()
        columns = {name: pl.Series(name, values, nan_to_null=True) for name, values in self.values.items()}
        return pl.DataFrame({"run": [self.run] * len(self.query_ids), "query": self.query_ids, **columns})

    def to_pandas(self) -> Any:
        """A row per query, indexed by its id, and a column per measure, as a pandas DataFrame."""
        pd = pandas()
        return pd.DataFrame(dict(self.values), index=pd.Index(self.query_ids, name="query"))

    def plot(self) -> Figure:
        """Draw the means with their intervals.

        Raises:
            ModuleNotFoundError: matplotlib is not installed (the extra ``plot``).
            ValueError: none of the measures has an interval.
        """
        from lightning_rank.offline.plots import intervals

        return intervals(self)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Measure, value, interval and queries, as text."""
        return [_row(m, self[m.name]) for m in self.measures]

    def notes(self) -> list[str]:
        """What must be known to read the values: queries, judgements, conventions."""
        c = self.counts
        lines = [f"{c.queries:,} queries, {c.empty:,} without a relevant document; {c.missing:,} missing in the run"]
        if c.missing:
            lines[0] += {"zero": " (they count as 0)", "skip": " (left out)"}[self.conventions["missing"]]
        if c.not_judged:
            lines[0] += f"; {c.not_judged:,} queries of the run are not judged, and ignored"
        lines.append(
            f"judged@{c.depth} {c.judged_share:.3f}: of the first {c.depth} documents that share is judged; "
            f"{c.fully_judged:,} queries have them all judged"
        )
        lines.append(", ".join(f"{name} {value}" for name, value in self.conventions.items()))
        return lines

    def __str__(self) -> str:
        header = ("measure", "value", f"{self.level * 100:g} % interval", "queries")
        return "\n".join([self.run or "run", *aligned([header, *self.rows()]), *self.notes()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        header = ("measure", "value", f"{self.level * 100:g} % interval", "queries")
        return html_table(self.run or "run", [header, *self.rows()], self.notes())


def evaluate(
    judgements: Judgements,
    run: Run,
    measures: str | Iterable[str] = "ndcg@10 map mrr@10 recall@100",
    *,
    convention: str | None = None,
    missing: str = "zero",
    depth: int | None = None,
    min_relevance: float = 1,
    level: float = 0.95,
    **options: Any,
) -> Evaluation:
    """Judge a run.

    The values are those of the metrics of this package. Documents that nobody judged count as not relevant, but bpref leaves
    them out and ``judged`` counts them. Queries of the run without judgements are ignored.

    Args:
        judgements: the judged documents of each query.
        run: the retrieved ones.
        measures: names in either spelling, ``"ndcg@10 P_5 recip_rank"``, or one of the sets ``official`` and ``all_trec``.
        convention: the options of a tool by its name; ``"trec_eval"`` and ``"beir"`` break ties by document id, the larger
            first, and take a grade below 0 as not judged. Other conventions without expectation over ties keep the order in
            which documents came.
        missing: what a judged query counts that the run misses: ``"zero"``, as ``trec_eval -c``, ``"skip"`` or ``"error"``.
        depth: how many documents of each query count, after sorting; None: all. A tie that it splits is cut in the order in
            which documents came, but for conventions that break ties by id.
        min_relevance: the grade from which a document is relevant.
        level: of the intervals.
        options: of the metrics, such as ``gain="linear"``, ``ties="stable"`` or ``empty_target_action="skip"``.

    Raises:
        TypeError: no ``Judgements``, no ``Run``.
        ValueError: an unknown measure, an option that means nothing for any of them, no query in common, a missing query
            under ``missing="error"``.

    Warns:
        UserWarning: no document retrieved is judged, as where ids are written in two ways.
    """
    check_lists("judgements", judgements, Judgements)
    check_lists("run", run, Run)
    parsed = parse_measures(measures)
    if convention == "trec_eval":
        parsed = [replace(m, metric=None, of=graded_rbp(m.top_k)) if m.metric == "rbp" else m for m in parsed]
    check_choice("missing", missing, MISSING)
    check_top_k(depth)
    check_number("min_relevance", min_relevance, above=0)
    check_number("level", level, above=0, below=1)
    table = _table(parsed, options)
    entries, policy = _entries(parsed, table, convention, min_relevance, options)
    rankings = _Rankings(judgements, run, convention, policy["ties"], missing, depth)
    plain = rankings.plain() if table is PLAIN else None
    if plain is None and table is PLAIN:
        entries, policy = _entries(parsed, all_metrics(), convention, min_relevance, options)
    p = options.get("p", TREC_PERSISTENCE if convention == "trec_eval" else PLAIN["rbp"].options["p"])
    shown = max([m.top_k for m in parsed if m.top_k is not None], default=10)
    blocks = [plain] if plain is not None else rankings.blocks()
    columns = np.concatenate([_of_block(ranking, parsed, entries, min_relevance, p, shown) for ranking in blocks], axis=1)
    by_measure, (num_relevant, judged_share) = columns[:-2], columns[-2:]
    empty = num_relevant == 0
    values: dict[str, np.ndarray] = {}
    for measure, column in zip(parsed, by_measure, strict=True):
        values[measure.name] = _filled(measure, column, empty, policy[measure.name])
    retrieved = rankings.lengths > 0
    counts = Counts(
        queries=len(rankings.query_ids),
        empty=int(empty.sum()),
        missing=rankings.num_missing,
        not_judged=rankings.num_not_judged,
        depth=shown,
        judged_share=float(judged_share[retrieved].mean()) if retrieved.any() else math.nan,
        fully_judged=int((judged_share[retrieved] > 1 - 1e-9).sum()),
    )
    conventions = _conventions(entries, convention, policy, missing, depth, min_relevance)
    tag = run.tag or run.name
    return Evaluation(run.name, tag, tuple(parsed), rankings.query_ids, values, counts, conventions, level, rankings)


def _table(parsed: Sequence[Measure], options: Mapping[str, Any]) -> Mapping[str, MetricSpec]:
    """``PLAIN``, where that knows all that is asked for, and else all metrics."""
    known = SHARED_OPTIONS.keys() | {name for spec in PLAIN.values() for name in spec.options}
    fits = all(m.metric is None or m.metric in PLAIN for m in parsed) and options.keys() <= known
    return PLAIN if fits and isinstance(options.get("gain", ""), str) else all_metrics()


def _entries(
    parsed: Sequence[Measure],
    table: Mapping[str, MetricSpec],
    convention: str | None,
    min_relevance: float,
    options: dict[str, Any],
) -> tuple[list[Entry | None], dict[str, Any]]:
    """The metric of each measure that is one; ties, and what an empty query counts for each."""
    metrics = [(table[m.metric], m.top_k) for m in parsed if m.metric is not None]
    takes = {name for spec, _ in metrics for name in spec.options}
    given = dict(options)
    if "min_relevance" in takes:
        given["min_relevance"] = min_relevance
    if "p" in given and "p" not in takes and any(m.trec_name.startswith("rbp") for m in parsed):
        check_number("p", given.pop("p"), above=0, below=1)
    resolved, shared, rest = resolve(metrics, given | {"convention": convention}, table)
    for name in (*rest, *(given.keys() & {"aggregation", "ignore_index", "whole_queries", "per_query"})):
        raise TypeError(f"evaluate() has no option {name!r}.")
    ties = preset(convention, "").get("ties", "average") if "ties" not in options else options["ties"]
    check_choice("ties", ties, TIES)
    if ties != "stable" and (strict := [m.name for m in parsed if m.needs_order]):
        raise ValueError(
            f"The order of tied documents matters to {', '.join(strict[:2])}, of which no expectation over ties is known: "
            "use convention='trec_eval' or ties='stable' (--convention trec_eval or --ties stable)."
        )
    found = iter(resolved)
    entries = [None if m.metric is None else next(found) for m in parsed]
    policy = {
        m.name: "zero" if entry is None else entry.empty_target_action for m, entry in zip(parsed, entries, strict=True)
    }
    return entries, {"ties": shared["ties"], **policy}


def _conventions(
    entries: Sequence[Entry | None],
    convention: str | None,
    policy: Mapping[str, Any],
    missing: str,
    depth: int | None,
    min_relevance: float,
) -> dict[str, str]:
    used: dict[str, str] = {"convention": convention or "lightning_rank"}
    empty: dict[str, list[str]] = {}
    for entry in entries:
        if entry is not None:
            used |= {name: v if isinstance(v, str) else f"{v:g}" if isinstance(v, (int, float)) else repr(v)
                     for name, v in entry.options.items()}  # fmt: skip
            told = {"neg": "0", "pos": "1", "skip": "skipped", "error": "refused"}[entry.empty_target_action]
            empty.setdefault(told, []).append(entry.name)
    if empty:
        # Some tools have another policy for each metric.
        several = (f"{told} ({' '.join(names)})" for told, names in empty.items())
        used["empty queries"] = next(iter(empty)) if len(empty) == 1 else " and ".join(several)
    ties = policy["ties"]
    used["min_relevance"] = f"{min_relevance:g}"
    used["ties"] = ties if ties != "stable" else "by document id" if convention in BY_DOCUMENT else "in order of arrival"
    used["missing"] = missing
    if depth is not None:
        used["depth"] = str(depth)
    return used


def _filled(measure: Measure, column: np.ndarray, empty: np.ndarray, action: str) -> np.ndarray:
    undefined = np.isnan(column)
    if action == "error" and undefined.any():
        raise ValueError(
            f"{int(undefined.sum()):,} of {len(column):,} queries have no relevant document, and `empty_target_action='error'` was "
            f"set for {measure.name}. Leave them out of the judgements, or use 'skip', 'neg' or 'pos'."
        )
    if action == "skip":
        return column
    return np.where(undefined, 1.0 if action == "pos" else 0.0, column)


def _of_block(
    ranking: Ranking | PlainRanking,
    parsed: Sequence[Measure],
    entries: Sequence[Entry | None],
    min_relevance: float,
    p: float,
    shown: int,
) -> np.ndarray:
    """``[measure + 2, query]``: values, relevant documents, and the share judged of the first ones."""
    metrics = iter(values_of([entry for entry in entries if entry is not None], ranking))
    rows = [
        next(metrics) if entry is not None else measure.of(ranking, min_relevance, p)  # type: ignore[misc]  # one of the two
        for measure, entry in zip(parsed, entries, strict=True)
    ]
    judged = parse_measures(f"judged@{shown}")[0]
    rows += [ranking.judged.num_relevant(min_relevance), judged.of(ranking.head(shown), min_relevance, p)]  # type: ignore[misc]
    return np.stack([np.asarray(row, dtype=np.float64) for row in rows])


class TiedRanks(NamedTuple):
    """The first documents of each query, with the ranks that ties let them have.

    Attributes:
        query: ``[document]`` number of the query.
        documents: their ids.
        first: ``[document]`` the first rank, from 1, of those tied with it.
        size: ``[document]`` how many they are.
    """

    query: np.ndarray
    documents: pl.Series
    first: np.ndarray
    size: np.ndarray


class _Rankings:
    """A run joined with judgements: the judged queries, each with its retrieved documents in rank order and their grades."""

    def __init__(
        self, judgements: Judgements, run: Run, convention: str | None, ties: str, missing: str, depth: int | None
    ) -> None:
        self.judgements, self.run, self.depth = judgements, run, depth
        self.ties = ties
        self.below_0_is_unjudged = convention in UNJUDGED_BELOW_0
        number_in_run = {query: number for number, query in enumerate(run.query_ids)}
        found = np.array([number_in_run.get(query, -1) for query in judgements.query_ids])
        self.num_missing = int((found < 0).sum())
        self.num_not_judged = len(run) - len(found) + self.num_missing
        if not (found >= 0).any():
            what = f"The run {run.name!r} and the judgements have no query in common"
            raise ValueError(_nothing_in_common(what, run.query_ids, judgements.query_ids))
        if self.num_missing and missing == "error":
            first = judgements.query_ids[int((found < 0).argmax())]
            raise ValueError(
                f"{self.num_missing:,} of {len(found):,} judged queries are missing in the run {run.name!r}, for example {first!r}."
            )
        used = np.flatnonzero(found >= 0) if missing == "skip" else np.arange(len(found))
        self.judged_query, self.run_query = used, found[used]
        self.query_ids = [judgements.query_ids[i] for i in used.tolist()]
        starts, lengths = np.append(run.offsets[:-1], 0), np.append(run.lengths, 0)  # the last one is that of no query
        self.starts, self.lengths = starts[self.run_query], lengths[self.run_query]
        if depth is not None:
            self.lengths = self.lengths.clip(max=depth)
        self.order = run.order("document" if convention in BY_DOCUMENT else "arrival")
        self.tied = run.tied_with_above(self.order) if ties == "average" else None
        self.row, self.grade = self._judged_rows(found)
        if not len(self.row):
            some = [lists.documents[:SOME].to_list() for lists in (run, judgements)]
            what = f"No document that the run {run.name!r} retrieves is judged for its query"
            warnings.warn(_nothing_in_common(what, *some), stacklevel=3)
        if ties in ("optimistic", "pessimistic"):
            grade = np.zeros(len(run.documents))
            grade[self.row] = self.grade.clip(min=0)
            self.order = np.lexsort((-grade if ties == "optimistic" else grade, -run.scores, run.query_of_row))

    def _judged_rows(self, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the run that are judged, ascending, and their grades."""
        pl = polars()
        documents = self.run.documents
        at = _perhaps_among(documents, self.judgements.documents)
        query = np.searchsorted(self.run.offsets, at, "right") - 1
        retrieved = pl.DataFrame({"query": query, "document": documents.gather(at), "row": at})
        judged = pl.DataFrame(
            {
                "query": found[self.judgements.query_of_row],
                "document": self.judgements.documents,
                "grade": self.judgements.grades,
            }
        )
        both = retrieved.join(judged, on=["query", "document"], how="inner").sort("row")
        return both["row"].to_numpy(), both["grade"].to_numpy()

    def grades_in_rank_order(self) -> np.ndarray:
        """``[row]`` float64, rows in rank order; NaN where nobody judged."""
        grades = np.full(len(self.run.documents), np.nan)
        grades[self.row] = self.grade
        return grades if self.order is None else grades[self.order]

    def blocks(self) -> Iterator[Ranking]:
        """Rankings of some queries at a time: what fits the processor's cache is fastest."""
        from lightning_rank.functional.ranking import BLOCK

        grades = self.grades_in_rank_order()
        ends = np.cumsum(self.lengths)
        bounds = np.unique(np.searchsorted(ends, np.arange(0, max(int(ends[-1]), 1), BLOCK), "left"))
        for first, last in zip(bounds, [*bounds[1:], len(ends)], strict=True):
            yield self._ranking(slice(int(first), int(last)), grades)

    def rows(self, queries: slice) -> tuple[np.ndarray, np.ndarray]:
        """Offsets of some queries, and the places of their documents among the rows in rank order."""
        lengths = self.lengths[queries]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        place = np.arange(offsets[-1]) + np.repeat(self.starts[queries] - offsets[:-1], lengths)
        return offsets, place

    def plain(self) -> PlainRanking | None:
        """The judged documents alone; None where ties are averaged and one of them is tied."""
        place = self.row
        if self.order is not None:
            place_of = np.empty(len(self.order), np.int64)
            place_of[self.order] = np.arange(len(self.order))
            place = place_of[self.row]
        if self.tied is not None and (self.tied[place] | np.append(self.tied, False)[place + 1]).any():
            return None
        number = np.empty(len(self.run) + 1, np.int64)  # the last one takes those of no query of the run
        number[self.run_query] = np.arange(len(self.run_query))
        query = number[np.searchsorted(self.run.offsets, place, "right") - 1]
        rank = place - self.starts[query] + 1
        kept = np.flatnonzero((rank <= self.lengths[query]) & ((self.grade >= 0) | (not self.below_0_is_unjudged)))
        kept = kept[np.lexsort((rank[kept], query[kept]))]
        bounds, grade = self._judged_grades(slice(None))
        query_of_judged = np.repeat(np.arange(len(self.lengths)), np.diff(bounds))
        if self.below_0_is_unjudged:
            query_of_judged, grade = query_of_judged[grade >= 0], grade[grade >= 0]
        judged = JudgedByGrade(query_of_judged, grade, len(self.lengths))
        return PlainRanking(query[kept], rank[kept], self.grade[kept], self.lengths, judged)

    def _judged_grades(self, queries: slice) -> tuple[np.ndarray, np.ndarray]:
        """Offsets of some queries, and the grades of all that is judged for them."""
        query = self.judged_query[queries]
        start, length = self.judgements.offsets[query], self.judgements.lengths[query]
        bounds = np.concatenate([[0], np.cumsum(length)])
        return bounds, self.judgements.grades[np.arange(bounds[-1]) + np.repeat(start - bounds[:-1], length)]

    def _ranking(self, queries: slice, all_grades: np.ndarray) -> Ranking:
        import torch

        from lightning_rank.functional.ranking import Judged, Ranking, _tied_items
        from lightning_rank.lists import JaggedLists

        offsets, place = self.rows(queries)
        grade, known = self._known(all_grades[place])
        lists = JaggedLists(torch.from_numpy(offsets), len(place))
        ties = None
        if self.tied is not None:
            same = self.tied[place]
            same[offsets[:-1][offsets[:-1] < len(same)]] = False
            ties = _tied_items(torch.from_numpy(same)) if same.any() else None

        bounds, judged_grades = self._judged_grades(queries)
        judged_grade, judged_known = self._known(judged_grades)
        judged_lists = JaggedLists(torch.from_numpy(bounds), int(bounds[-1]))
        judged = Judged(judged_lists, judged_grade, judged_known, None, torch.float64)
        return Ranking(lists, grade, known, lists.lengths, ties, judged, None, None)

    def _known(self, grades: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Grades >= 0, and which are judged."""
        import torch

        known = grades >= 0 if self.below_0_is_unjudged else ~np.isnan(grades)
        return torch.from_numpy(np.where(grades > 0, grades, 0.0)), torch.from_numpy(known)

    def tied_ranks(self, depth: int) -> TiedRanks:
        """The first ``depth`` documents of each query; ties that the cutoff splits are cut there."""
        lengths = self.lengths.clip(max=depth)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        query = np.repeat(np.arange(len(lengths)), lengths)
        rank = np.arange(offsets[-1]) - offsets[query] + 1
        place = self.starts[query] + rank - 1
        row = place if self.order is None else self.order[place]
        new = np.ones(len(place), bool) if self.tied is None else ~self.tied[place] | (rank == 1)
        starts = np.flatnonzero(new)
        sizes = np.diff(np.append(starts, len(place)))
        return TiedRanks(query, self.run.documents.gather(row), np.repeat(rank[starts], sizes), np.repeat(sizes, sizes))

    def top(self, query: str, k: int) -> list[tuple[str, float | None]]:
        """The first ``k`` documents of a query, with their grades; None where nobody judged."""
        number = self.query_ids.index(query)
        start = int(self.starts[number])
        place = np.arange(start, start + min(k, int(self.lengths[number])))
        row = place if self.order is None else self.order[place]
        at = np.searchsorted(self.row, row).clip(max=max(len(self.row) - 1, 0))
        grades = [
            float(self.grade[i]) if len(self.row) and self.row[i] == r else None
            for i, r in zip(at.tolist(), row.tolist(), strict=True)
        ]
        return list(zip(self.run.documents.gather(row).to_list(), grades, strict=True))


def _perhaps_among(documents: pl.Series, others: pl.Series) -> np.ndarray:
    """``[row]`` of the documents that are among others, and of few that are not: most are judged for no query at all, and need
    no join."""
    # A table of bits, 64 for each of the others: one that fits the processor's cache is much faster than a set of hashes.
    bits = np.uint64(64 - min(max(len(others).bit_length() + 6, 16), 26))
    there = np.zeros(1 << (64 - int(bits)), bool)
    there[others.hash().to_numpy() >> bits] = True
    found = [
        start + np.flatnonzero(there[documents.slice(start, SOME).hash().to_numpy() >> bits])
        for start in range(0, len(documents), SOME)
    ]
    return np.concatenate(found)


def _nothing_in_common(what: str, theirs: Sequence[str], ours: Sequence[str]) -> str:
    hint = ""
    for told, same in (
        ("only by blanks around them", str.strip),
        ("only by upper and lower case", str.lower),
        ("as text and number do (leading zeros, or .0)", lambda x: x.strip().removesuffix(".0").lstrip("0")),
    ):
        if not set(ours) & set(theirs) and {same(one) for one in ours} & {same(one) for one in theirs}:
            hint = f" They differ {told}."
            break
    return f"{what}: {_some(theirs)} against {_some(ours)}.{hint}"


def _some(ids: Sequence[str]) -> str:
    return ", ".join(map(repr, ids[:3])) + (", …" if len(ids) > 3 else "")


def _mean(values: np.ndarray, level: float) -> tuple[float, float, float]:
    mean = math.fsum(values) / len(values) if len(values) else math.nan
    # Centred, so that the spread does not cancel.
    centred = values - mean
    found = interval_of_mean(float(centred.sum()), float((centred * centred).sum()), len(values), level)
    return mean, mean + found.low - found.value, mean + found.high - found.value


def _row(measure: Measure, estimate: Estimate) -> tuple[str, str, str, str]:
    value = f"{estimate.value:,.0f}" if measure.is_count else f"{estimate.value:.4f}"
    interval = "" if math.isnan(estimate.low) else f"{estimate.low:.4f} to {estimate.high:.4f}"
    return measure.name, value, interval, f"{estimate.num_queries:,}"


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: a rule under the first row, the first column to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    ruled = [rows[0], ["-" * width for width in widths], *rows[1:]]
    return [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in ruled
    ]


def html_table(title: str, rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """A table for a notebook, everything escaped."""
    from html import escape

    def line(tag: str, row: Sequence[str]) -> str:
        cells = (
            f'<{tag} style="text-align:{"left" if i == 0 else "right"}">{escape(c)}</{tag}>' for i, c in enumerate(row)
        )
        return f"<tr>{''.join(cells)}</tr>"

    return (
        f"<table><caption>{escape(title)}</caption><thead>{line('th', rows[0])}</thead>"
        f"<tbody>{''.join(line('td', row) for row in rows[1:])}</tbody></table>"
        f"<p><small>{'<br>'.join(map(escape, notes))}</small></p>"
    )
