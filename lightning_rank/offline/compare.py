"""Runs against a baseline on the same queries: differences, how sure they are, and the queries behind them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lightning_rank.conventions import check_number, check_top_k
from lightning_rank.data.runs import Judgements, Run, check_lists, pandas, polars
from lightning_rank.offline.evaluate import Evaluation, aligned, evaluate, html_table
from lightning_rank.offline.measures import Measure, parse_measures
from lightning_rank.offline.text import latex, markdown
from lightning_rank.stats.agreement import overlaps, taus
from lightning_rank.stats.comparison import PairedComparison, paired
from lightning_rank.stats.corrections import adjust

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

FORMATS = ("table", "markdown", "latex", "json")
# Documents of a ranking without a cutoff that are looked at for judgements.
SHOWN = 10


class Difference(NamedTuple):
    """A measure of a run against that of the baseline.

    Attributes:
        measure: its name.
        baseline, candidate: names of the runs.
        result: the paired comparison, candidate - baseline.
        pvalue: corrected over all measures and runs compared.
        wins, losses: queries on which the candidate is better, worse, whichever way the measure goes.
        depth: k of the counts below: the cutoff of the measure, 10 where it has none.
        unjudged_wins: documents among the first k that nobody judged, per query that the candidate wins: of the baseline, of
            the candidate.
        unjudged_losses: the same on the queries that it loses.
    """

    measure: str
    baseline: str
    candidate: str
    result: PairedComparison
    pvalue: float
    wins: int
    losses: int
    depth: int
    unjudged_wins: tuple[float, float]
    unjudged_losses: tuple[float, float]


class Agreement(NamedTuple):
    """How alike a run ranks to the baseline.

    Attributes:
        baseline, candidate: names of the runs.
        rbo: mean rank-biased overlap over the queries compared, those that neither run has left out.
        tau: mean Kendall's tau-b over those where it is defined, on the documents that both retrieved.
        depth: documents of each query that were looked at.
        p: of the overlap.
    """

    baseline: str
    candidate: str
    rbo: float
    tau: float
    depth: int
    p: float


class Change(NamedTuple):
    """A query and what two runs show for it.

    Attributes:
        query: its id.
        measure: name of the measure.
        baseline, candidate: its values.
        difference: candidate - baseline.
        before, after: documents from rank 1 on with their grades, None where nobody judged, of either run.
    """

    query: str
    measure: str
    baseline: float
    candidate: float
    difference: float
    before: list[tuple[str, float | None]]
    after: list[tuple[str, float | None]]

    def __str__(self) -> str:
        rows = [("rank", "baseline", "grade", "candidate", "grade")]
        for i in range(max(len(self.before), len(self.after))):
            cells = [str(i + 1)]
            for ranking in (self.before, self.after):
                document, grade = ranking[i] if i < len(ranking) else ("", math.nan)
                cells += [document, "not judged" if grade is None else "" if math.isnan(grade) else f"{grade:g}"]
            rows.append(tuple(cells))  # type: ignore[arg-type]  # five cells
        head = f"query {self.query}: {self.measure} {self.baseline:.4f} -> {self.candidate:.4f} ({self.difference:+.4f})"
        return "\n".join([head, *aligned(rows)])


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs against a baseline; prints as a table.

    Attributes:
        evaluations: of each run by its name, the baseline first.
        differences: of each candidate and measure.
        agreements: of each candidate with the baseline.
        correction: the method of the corrected p.
        seed: of what is random.
    """

    evaluations: Mapping[str, Evaluation]
    differences: tuple[Difference, ...]
    agreements: tuple[Agreement, ...]
    correction: str
    seed: int

    @property
    def baseline(self) -> str:
        """Name of the baseline."""
        return next(iter(self.evaluations))

    def measure(self, name: str) -> Measure:
        """One of the measures by its name."""
        return next(measure for measure in self.evaluations[self.baseline].measures if measure.name == name)

    def __getitem__(self, key: str | tuple[str, str]) -> Difference:
        measure, candidate = key if isinstance(key, tuple) else (key, None)
        for found in self.differences:
            if found.measure == measure and candidate in (None, found.candidate):
                return found
        there = ", ".join(f"{d.measure} of {d.candidate}" for d in self.differences)
        raise KeyError(f"{key!r} was not compared; there is {there}.")

    def worst(
        self, number: int = 5, *, measure: str | None = None, candidate: str | None = None, shown: int = 10
    ) -> list[Change]:
        """The queries that lost most, with both rankings side by side.

        Args:
            number: how many, of those that lost anything.
            measure: by which; None takes the first.
            candidate: of which run; None takes the first.
            shown: ranks of each.
        """
        return self._changes(number, measure, candidate, shown, -1)

    def best(
        self, number: int = 5, *, measure: str | None = None, candidate: str | None = None, shown: int = 10
    ) -> list[Change]:
        """The queries that won most; arguments as for ``worst``."""
        return self._changes(number, measure, candidate, shown, 1)

    def _changes(self, number: int, measure: str | None, candidate: str | None, shown: int, sign: int) -> list[Change]:
        of = self[(measure or self.differences[0].measure, candidate or self.differences[0].candidate)]
        a, b = self.evaluations[of.baseline], self.evaluations[of.candidate]
        rankings_a, rankings_b = a.rankings, b.rankings
        assert rankings_a is not None
        assert rankings_b is not None
        old, new = a.per_query(of.measure), b.per_query(of.measure)
        queries = [query for query in a.query_ids if query in old and query in new]
        differences = np.array([new[query] - old[query] for query in queries])
        if not self.measure(of.measure).higher_is_better:
            sign = -sign
        order = np.argsort(-sign * differences, kind="stable")[:number]
        return [
            Change(
                query := queries[i], of.measure, old[query], new[query], float(differences[i]),
                rankings_a.top(query, shown), rankings_b.top(query, shown),
            )
            for i in order.tolist()
            if sign * differences[i] > 1e-9
        ]  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON; what is undefined or infinite is None.

        Of each difference ``pvalue`` is corrected over all comparisons, and ``test.pvalue`` that of its test alone.
        """

        def plain(value: Any) -> Any:
            if isinstance(value, float):
                return value if math.isfinite(value) else None
            if isinstance(value, tuple):
                return [plain(v) for v in value]
            return value

        return {
            "baseline": self.baseline,
            "differences": [
                {k: plain(v) for k, v in d._asdict().items() if k != "result"}
                | {"test": {k: plain(v) for k, v in d.result.to_dict().items()}}
                for d in self.differences
            ],
            "agreements": [{k: plain(v) for k, v in a._asdict().items()} for a in self.agreements],
            "runs": {name: result.to_dict() for name, result in self.evaluations.items()},
            "correction": self.correction,
            "seed": self.seed,
        }

    def to_polars(self) -> pl.DataFrame:
        """A row per candidate and measure."""
        pl = polars()
        return pl.DataFrame(
            [
                {
                    "candidate": d.candidate,
                    "measure": d.measure,
                    "baseline": d.result.value_a,
                    "value": d.result.value_b,
                    "difference": d.result.difference,
                    "low": d.result.low,
                    "high": d.result.high,
                    "pvalue": d.result.pvalue,
                    "adjusted": d.pvalue,
                    "effect_size": d.result.effect_size,
                    "wins": d.wins,
                    "ties": d.result.ties,
                    "losses": d.losses,
                }
                for d in self.differences
            ]
        )

    def to_pandas(self) -> Any:
        """The same as a pandas DataFrame."""
        return pandas().DataFrame(self.to_polars().to_dicts())

    def plot(self, measure: str | None = None, candidate: str | None = None) -> Figure:
        """Draw the difference on each query, from the largest down, and the mean with its interval.

        Args:
            measure: None takes the first.
            candidate: None draws a panel for each.

        Raises:
            ModuleNotFoundError: matplotlib is not installed (the extra ``plot``).
        """
        from lightning_rank.offline.plots import differences

        return differences(self, measure, candidate)

    def rows(self) -> list[list[str]]:
        """Header and rows, as text."""
        rows = [
            ["measure", "baseline", "candidate", "difference", "interval", "p", f"p ({self.correction})", "d_z",
             "wins/ties/losses", "unjudged in wins"]
        ]  # fmt: skip
        several = len(self.agreements) > 1
        for d in self.differences:
            r = d.result
            unjudged = "" if math.isnan(d.unjudged_wins[0]) else "{:.2f} -> {:.2f}".format(*d.unjudged_wins)
            rows.append(
                [f"{d.candidate}: {d.measure}" if several else d.measure, f"{r.value_a:.4f}", f"{r.value_b:.4f}",
                 f"{r.difference:+.4f}", f"{r.low:+.4f} to {r.high:+.4f}", _p(r.pvalue), _p(d.pvalue), f"{r.effect_size:+.3f}",
                 f"{d.wins}/{r.ties}/{d.losses}", unjudged]
            )  # fmt: skip
        return rows

    def notes(self) -> list[str]:
        """What must be known to read the table."""
        first = self.differences[0]
        level = f"{(1 - first.result.alpha) * 100:g} %"
        test = first.result.test
        by = "BCa bootstrap" if test == "bootstrap" else "t"
        seed = f"; seed {self.seed}" if test in ("randomization", "bootstrap") else ""
        measures = [self.measure(name) for name in dict.fromkeys(d.measure for d in self.differences)]
        whole = ", ".join(m.name for m in measures if m.top_k is None)
        cutoff = f"the measure's cutoff; {SHOWN} for {whole}, which has none" if whole else "the measure's cutoff"
        lines = [
            f"{first.result.n:,} queries; difference is candidate - baseline; {level} interval of the mean difference by {by}; p "
            f"of the paired {test} test, corrected over {len(self.differences)} comparisons{seed}",
            f"unjudged in wins: documents among the first k ({cutoff}) that nobody judged, per query won, baseline -> candidate: a "
            "run that retrieves what nobody judged is underrated",
        ]
        if dropped := max(d.result.dropped for d in self.differences):
            lines.append(f"{dropped:,} queries have a value in one run only, and were left out")
        lines += [
            f"{a.candidate} ranks like {a.baseline}: rank-biased overlap {a.rbo:.3f} (p {a.p:g}), Kendall's tau {a.tau:.3f}, "
            f"first {a.depth} documents"
            for a in self.agreements
        ]
        for name, result in self.evaluations.items():
            lines += [f"{name}: {line}" for line in result.notes()[:2]]
        return [*lines, self.evaluations[self.baseline].notes()[2]]

    def text(self, form: str = "table") -> str:
        """The comparison in one of ``FORMATS``."""
        if form == "json":
            return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)
        header, *rows = self.rows()
        if form == "table":
            names = " and ".join(a.candidate for a in self.agreements)
            return "\n".join([f"{names} against {self.baseline}", *aligned([header, *rows]), *self.notes()])
        return (markdown if form == "markdown" else latex)(header, rows, self.notes())

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        names = " and ".join(a.candidate for a in self.agreements)
        return html_table(f"{names} against {self.baseline}", self.rows(), self.notes())


def compare(
    judgements: Judgements,
    runs: Mapping[str, Run] | Sequence[Run],
    measures: str | Iterable[str] = "ndcg@10 map mrr@10 recall@100",
    *,
    test: str = "t",
    correction: str = "holm",
    alpha: float = 0.05,
    resamples: int = 9999,
    seed: int = 0,
    overlap_depth: int = 100,
    overlap_p: float = 0.9,
    **options: Any,
) -> Comparison:
    """Compare runs with the first of them, the baseline, query by query.

    Queries are joined by their ids. All comparisons, of every measure and run, are one family for the correction.

    Args:
        judgements: the judged documents of each query.
        runs: two or more, by name, the baseline first.
        measures: as for ``evaluate``; means only.
        test: ``"t"``, ``"randomization"``, ``"bootstrap"`` or ``"wilcoxon"``, see ``stats.paired``.
        correction: ``"holm"`` or another method of ``stats.adjust``.
        alpha: 1 - the level of the intervals.
        resamples, seed: of randomization and bootstrap.
        overlap_depth: documents of each query at which the overlap of the runs and their tau are looked at.
        overlap_p: of the rank-biased overlap.
        options: of ``evaluate``, such as ``convention="trec_eval"``.

    Raises:
        ValueError: fewer than two runs, names that are equal, a measure that is no mean over queries, fewer than two queries
            that both runs have a value for; as ``evaluate``.

    Example:
        >>> judged = Judgements.from_dict({f"q{i}": {"a": 1, "b": 0} for i in range(4)})
        >>> old = Run.from_dict({f"q{i}": {"a": 1.0, "b": 2.0} for i in range(4)}, name="old")
        >>> new = Run.from_dict({f"q{i}": {"a": float(i), "b": 1.5} for i in range(4)}, name="new")
        >>> compare(judged, [old, new], "mrr")["mrr"].result.difference
        0.25
    """
    for run in runs.values() if isinstance(runs, Mapping) else runs:
        check_lists("runs", run, Run)
    named = dict(runs) if isinstance(runs, Mapping) else {run.name: run for run in runs}
    if len(named) < len(runs) or "" in named:
        raise ValueError(f"Runs must have names of their own, got {', '.join(repr(run.name) for run in runs)}.")  # type: ignore[union-attr]
    if len(named) < 2:
        raise ValueError(f"There must be a baseline and at least one other run, got {len(named)}.")
    parsed = parse_measures(measures)
    if unfit := [m.name for m in parsed if m.over_queries != "mean"]:
        raise ValueError(f"{', '.join(unfit)} is no mean over queries, so that there is no difference per query to test.")
    check_number("alpha", alpha, above=0, below=1)
    check_top_k(overlap_depth)
    check_number("overlap_p", overlap_p, above=0, below=1)
    cutoffs = {m.top_k or SHOWN for m in parsed}
    also = [f"unj@{k}" for k in sorted(cutoffs) if f"unj@{k}" not in {m.name for m in parsed}]
    evaluated = {
        name: evaluate(judgements, replace(run, name=name), [*(m.name for m in parsed), *also], level=1 - alpha, **options)
        for name, run in named.items()
    }
    baseline, *candidates = named
    differences = []
    for candidate in candidates:
        for measure in parsed:
            values = [evaluated[name].per_query(measure.name) for name in (baseline, candidate)]
            if (both := len(values[0].keys() & values[1].keys())) < 2:
                raise ValueError(
                    f"At least 2 queries are needed to compare runs, but {measure.name} has a value of both {baseline!r} and "
                    f"{candidate!r} for {both}."
                )
            result = paired(*values, test=test, alpha=alpha, resamples=resamples, seed=seed, missing="drop")
            differences.append(_difference(measure, evaluated[baseline], evaluated[candidate], result))
    corrected = adjust([d.result.pvalue for d in differences], method=correction)
    shown = {
        name: replace(result, measures=tuple(parsed), values={m.name: result.values[m.name] for m in parsed})
        for name, result in evaluated.items()
    }
    return Comparison(
        shown,
        tuple(d._replace(pvalue=float(value)) for d, value in zip(differences, corrected, strict=True)),
        tuple(_agreement(evaluated[baseline], evaluated[candidate], overlap_depth, overlap_p) for candidate in candidates),
        correction,
        seed,
    )


def _difference(measure: Measure, a: Evaluation, b: Evaluation, result: PairedComparison) -> Difference:
    depth = measure.top_k or SHOWN
    old, new = a.per_query(measure.name), b.per_query(measure.name)
    change = {query: new[query] - old[query] for query in old if query in new}
    sign = 1 if measure.higher_is_better else -1
    unjudged = [result.per_query(f"unj@{depth}") for result in (a, b)]

    def mean(queries: list[str]) -> tuple[float, float]:
        if not queries:
            return math.nan, math.nan
        before, after = (math.fsum(of[query] for query in queries) * depth / len(queries) for of in unjudged)
        return before, after

    won = [query for query, d in change.items() if sign * d > 1e-9]
    lost = [query for query, d in change.items() if sign * d < -1e-9]
    return Difference(measure.name, a.run, b.run, result, math.nan, len(won), len(lost), depth, mean(won), mean(lost))


def _agreement(a: Evaluation, b: Evaluation, depth: int, p: float) -> Agreement:
    """Overlap and tau of the first documents of every query that is compared."""
    pl = polars()
    assert a.rankings is not None
    assert b.rankings is not None
    of_b = set(b.query_ids)
    number = {query: i for i, query in enumerate(query for query in a.query_ids if query in of_b)}
    frames, lengths = [], []
    for result in (a, b):
        rankings = result.rankings
        assert rankings is not None
        rank = rankings.tied_ranks(depth)
        query = np.array([number.get(q, -1) for q in result.query_ids])[rank.query]
        frame = pl.DataFrame({"query": query, "document": rank.documents, "first": rank.first, "size": rank.size})
        frames.append(frame.filter(pl.col("query") >= 0))
        lengths.append(np.bincount(query[query >= 0], minlength=len(number)))
    both = frames[0].join(frames[1], on=["query", "document"], how="inner", maintain_order="left", suffix="_b")
    query = both["query"].to_numpy()
    first = (both["first"].to_numpy(), both["first_b"].to_numpy())
    size = (both["size"].to_numpy(), both["size_b"].to_numpy())
    rbo = overlaps(query, first, size, (lengths[0], lengths[1]), p)
    tau = taus(query, first[0], first[1], len(number))
    return Agreement(a.run, b.run, _mean(rbo), _mean(tau), depth, p)


def _mean(values: np.ndarray) -> float:
    values = values[~np.isnan(values)]
    return math.fsum(values) / len(values) if len(values) else math.nan


def _p(value: float) -> str:
    return f"{value:.4f}" if value >= 0.0001 else f"{value:.1e}"
