"""A page to play with rankings: how each position earns its part of a metric, for the queries of one run or two."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from lightning_rank.conventions import check_choice
from lightning_rank.data.runs import Judgements, Run
from lightning_rank.data.trec import writing
from lightning_rank.offline.evaluate import UNJUDGED_BELOW_0, Evaluation, evaluate
from lightning_rank.offline.measures import parse_measures

LANGUAGES = ("en", "zh")
_TEXT = 200  # characters shown of a query or a document


@dataclass(frozen=True, repr=False)
class ExplainPage:
    """A page of HTML that needs nothing else, neither network nor server; shows itself in a notebook.

    Attributes:
        html: the page.
        queries: those on it.
        total: how many there were to choose from.
        measure: by which they were chosen.
    """

    html: str
    queries: tuple[str, ...]
    total: int
    measure: str

    def write(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the page.

        Raises:
            FileExistsError: a file is there and ``overwrite`` is False.
        """
        with writing(path, overwrite=overwrite) as file:
            file.write(self.html.encode())

    def __repr__(self) -> str:
        size = len(self.html.encode()) / 1000
        return f"<ExplainPage: {len(self.queries):,} of {self.total:,} queries, {size:.0f} kB>"

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.html)}" style="width:100%;height:800px;border:0"></iframe>'


def explain_page(
    judgements: Judgements,
    runs: Run | Sequence[Run] | Mapping[str, Run],
    measure: str = "ndcg@10",
    *,
    queries: Sequence[str] | None = None,
    documents: int | None = None,
    query_texts: Mapping[str, str] | None = None,
    document_texts: Mapping[str, str] | None = None,
    lang: str = "en",
    max_bytes: int = 400_000,
    **options: Any,
) -> ExplainPage:
    """A page on which a reader reorders rankings, edits grades, and sees every metric move.

    It shows NDCG, DCG, AP, RR, precision and recall with the ideal and the relevant documents of all judgements: the values of
    ``evaluate``, also where scores are tied, until the reader chooses an order.

    Args:
        judgements: the judged documents of each query.
        runs: one, or two, the baseline first.
        measure: by which queries are listed: those that lost most against the baseline first; of one run, the worst first.
            Its cutoff is the one that the page begins with.
        queries: which; None: all.
        documents: how many of each query and run; None: 20, or as many as the cutoff.
        query_texts, document_texts: what is shown beside an id.
        lang: ``"en"`` or ``"zh"``.
        max_bytes: of the page. Queries beyond it are left out, with a warning that says how many are kept.
        options: of ``evaluate``, such as ``convention="trec_eval"`` or ``gain="linear"``.

    Raises:
        ValueError: more than two runs, or two of one name; an unknown query; a measure that is no mean over queries; a gain
            other than ``"exp2"`` and ``"linear"``; fewer documents than the cutoff; not even one query fits; as ``evaluate``.

    Warns:
        UserWarning: queries were left out.

    Example:
        >>> from lightning_rank.report import explain_page
        >>> judged = Judgements.from_dict({"q1": {"a": 2, "b": 0, "c": 1}})
        >>> old = Run.from_dict({"q1": {"b": 0.9, "a": 0.5, "c": 0.1}}, name="old")
        >>> new = Run.from_dict({"q1": {"a": 0.7, "b": 0.6, "c": 0.2}}, name="new")
        >>> page = explain_page(judged, [old, new])
        >>> page.queries
        ('q1',)
        >>> page.write("page.html")  # doctest: +SKIP
    """
    check_choice("lang", lang, LANGUAGES)
    if documents is not None and (isinstance(documents, bool) or not isinstance(documents, int) or documents < 1):
        raise ValueError(f"`documents` must be a whole number >= 1, or None, got {documents!r}.")
    named = _named(runs)
    parsed = parse_measures(measure)
    if len(parsed) != 1 or parsed[0].over_queries != "mean":
        raise ValueError(f"`measure` must be one measure that is a mean over queries, such as 'ndcg@10', got {measure!r}.")
    cutoff = parsed[0].top_k
    if documents is not None and cutoff is not None and documents < cutoff:
        raise ValueError(
            f"{measure} looks at {cutoff} documents, so that many must be on the page, got documents={documents}."
        )
    # Also NDCG and MAP, so that their options always mean something.
    asked = list(dict.fromkeys([parsed[0].name, "ndcg", "map"]))
    found = [evaluate(judgements, replace(run, name=name), asked, **options) for name, run in named.items()]
    if found[0].conventions["gain"] not in ("exp2", "linear"):
        raise ValueError(f"On the page `gain` must be 'exp2' or 'linear', got {options.get('gain')!r}.")
    pool = _Pool(judgements, found, documents or max(20, cutoff or 0), query_texts or {}, document_texts or {})
    order = pool.order(parsed[0].name, parsed[0].higher_is_better, queries)

    words = json.loads(_file("explain_words.json"))[lang]
    settings = {
        "words": words,
        "runs": list(named),
        "measure": parsed[0].name,
        "better": 1 if parsed[0].higher_is_better else -1,
        "k": cutoff,
        "gain": found[0].conventions["gain"],
        "relevant": float(found[0].conventions["min_relevance"]),
        "denominator": found[0].conventions["denominator"],
        "ties": found[0].conventions["ties"],
        "total": len(order),
    }
    parts = {"lang": "zh-CN" if lang == "zh" else lang, "script": _file("explain.js")}
    parts |= {name: escape(text) for name, text in words.items()}

    def filled(entries: Sequence[str]) -> str:
        data = f'{_json(settings)[:-1]},"queries":[{",".join(entries)}]}}'
        # In one go, so that nothing in the data is taken for a place to fill.
        return re.sub(r"@@(\w+)@@", lambda match: (parts | {"data": data})[match[1]], _file("explain.html"))

    size = len(filled([]).encode())
    kept: list[str] = []
    for entry in map(_json, pool.entries(order)):
        size += len(entry.encode()) + 1
        if size > max_bytes:
            break
        kept.append(entry)
    if not kept:
        raise ValueError(
            f"The page of one query would have {size:,} bytes, more than {max_bytes:,}: take fewer documents, or allow a larger "
            "page (max_bytes, --max-kb)."
        )
    if len(kept) < len(order):
        first = "that lost most" if len(named) > 1 else "with the worst values"
        warnings.warn(
            f"The page keeps {len(kept):,} of {len(order):,} queries, those {first} in {measure}: it may have {max_bytes:,} bytes. "
            "Name queries, take fewer documents, or allow a larger page (max_bytes, --max-kb).",
            stacklevel=2,
        )
    return ExplainPage(filled(kept), tuple(order[: len(kept)]), len(order), parsed[0].name)


def _named(runs: Run | Sequence[Run] | Mapping[str, Run]) -> dict[str, Run]:
    if isinstance(runs, Run):
        runs = [runs]
    given = (
        list(runs.items())
        if isinstance(runs, Mapping)
        else [(run.name or f"run {i}", run) for i, run in enumerate(runs, 1)]
    )
    named = dict(given)
    if len(named) < len(given):
        raise ValueError(f"Runs must have names of their own, got {', '.join(repr(name) for name, _ in given)}.")
    if not 1 <= len(named) <= 2:
        raise ValueError(f"The page shows one run, or two with the baseline first, got {len(named)}.")
    return named


class _Pool:
    """Queries of which some go onto the page."""

    def __init__(
        self,
        judgements: Judgements,
        found: Sequence[Evaluation],
        depth: int,
        query_texts: Mapping[str, str],
        document_texts: Mapping[str, str],
    ) -> None:
        self.judgements, self.found, self.depth = judgements, found, depth
        self.query_texts, self.document_texts = query_texts, document_texts
        self.number = [{query: i for i, query in enumerate(result.query_ids)} for result in found]
        self.tied = []
        for result in found:
            assert result.rankings is not None
            self.tied.append(result.rankings.run.tied_with_above(result.rankings.order))

    def order(self, measure: str, higher_is_better: bool, queries: Sequence[str] | None) -> list[str]:
        """The queries of all runs, or those asked for, the worst or most lost first."""
        self.values = [result.per_query(measure) for result in self.found]
        known = [query for query in self.found[0].query_ids if all(query in number for number in self.number)]
        if queries is not None:
            wanted = list(dict.fromkeys(map(str, queries)))
            judged = set(known)
            if unknown := [query for query in wanted if query not in judged]:
                near = get_close_matches(unknown[0], known, n=3)
                hint = (
                    f" Did you mean {' or '.join(map(repr, near))}?" if near else f" There is {', '.join(known[:3])}, ..."
                )
                raise ValueError(f"The query {unknown[0]!r} is not among the {len(known):,} that are judged.{hint}")
            known = wanted
        sign = 1 if higher_is_better else -1

        def badness(query: str) -> float:
            values = [of.get(query) for of in self.values]
            if None in values:  # left out of the mean
                return np.inf
            return sign * (values[-1] - (values[0] if len(values) > 1 else 0))  # type: ignore[operator]  # no None is left

        return sorted(known, key=badness)

    def entries(self, queries: Sequence[str]) -> Iterator[dict[str, Any]]:
        """What the page must know of each query."""
        in_rank_order = [result.rankings.grades_in_rank_order() for result in self.found]  # type: ignore[union-attr]
        number = {query: i for i, query in enumerate(self.judgements.query_ids)}
        for query in queries:
            place: dict[str, int] = {}
            grades: list[float | None] = []
            listed = []
            for result, own, tied, all_grades in zip(self.found, self.number, self.tied, in_rank_order, strict=True):
                rankings = result.rankings
                assert rankings is not None
                start, length = int(rankings.starts[own[query]]), int(rankings.lengths[own[query]])
                rows = np.arange(start, start + min(self.depth, length))
                same = [int(i) for i in np.flatnonzero(tied[rows])]
                behind = tied[start + len(rows) : start + length]
                beyond = all_grades[start + len(rows) :][: len(behind) if behind.all() else int(behind.argmin())]
                in_run = rows if rankings.order is None else rankings.order[rows]
                documents = rankings.run.documents.gather(in_run).to_list()
                for document, grade in zip(documents, all_grades[rows].tolist(), strict=True):
                    if document not in place:
                        place[document] = len(place)
                        grades.append(self._plain(grade))
                listed.append({
                    "order": [place[d] for d in documents], "retrieved": length, "tied": same,
                    "beyond": [self._plain(grade) for grade in beyond.tolist()],
                })  # fmt: skip
            start, end = self.judgements.offsets[number[query] : number[query] + 2].tolist()
            judged = zip(self.judgements.documents[start:end].to_list(), self.judgements.grades[start:end], strict=True)
            rest = np.array([grade for document, grade in judged if grade > 0 and document not in place])
            counted = zip(*np.unique(rest, return_counts=True), strict=True)
            entry = {
                "id": query,
                "docs": list(place),
                "grades": grades,
                "rest": [[self._plain(grade), int(count)] for grade, count in counted],
                "runs": listed,
                "values": [of.get(query) for of in self.values],
            }
            if query in self.query_texts:
                entry["text"] = self.query_texts[query][:_TEXT]
            if self.document_texts:
                entry["texts"] = [self.document_texts.get(document, "")[:_TEXT] for document in place]
            yield entry

    def _plain(self, grade: float) -> float | None:
        """A grade for JSON; None where nobody judged."""
        below_0_is_unjudged = self.found[0].conventions["convention"] in UNJUDGED_BELOW_0
        if np.isnan(grade) or (grade < 0 and below_0_is_unjudged):
            return None
        return int(grade) if grade == int(grade) else float(grade)


def _json(value: Any) -> str:
    """JSON that may stand inside a script element."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _file(name: str) -> str:
    return files("lightning_rank.report").joinpath(name).read_text(encoding="utf-8")
