"""Names of measures, in our spelling and in trec_eval's, and what only trec_eval computes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_rank.conventions import unknown
from lightning_rank.entries import MetricSpec, parse_name
from lightning_rank.offline.plain import PLAIN

# Per-query values from a ranking (of lightning_rank.functional, or a PlainRanking), the least relevant grade, and p.
Of = Callable[[Any, float, float], Any]

CUTOFFS = (5, 10, 15, 20, 30, 100, 200, 500, 1000)

OFFICIAL = "num_q num_ret num_rel num_rel_ret map gm_map Rprec bpref recip_rank iprec_at_recall P"
ALL_TREC = (
    f"{OFFICIAL} recall_5,10,15,20,30,100,200,500,1000 gm_bpref Rprec_mult utility 11pt_avg binG ndcg ndcg_cut map_cut "
    "relative_P success set_P set_relative_P set_recall set_map set_F num_nonrel_judged_ret rbp rbp_resid unj"
)
SETS = {"official": OFFICIAL, "all_trec": ALL_TREC}


@dataclass(frozen=True)
class Measure:
    """One measure of a ranking.

    Attributes:
        name: as it was asked for.
        trec_name: trec_eval's spelling; ours where it has none.
        metric: its name in the table of metrics; None for what only trec_eval has.
        top_k: its cutoff.
        of: per-query values of the others, from a ranking, the grade from which a document is relevant, and ``p``.
        over_queries: ``"mean"``, ``"sum"``, or ``"geometric"`` mean.
        is_count: values are whole numbers.
        needs_order: it is no expectation under ties, and so needs an order of tied documents.
        higher_is_better: False where a smaller value is better.
        bounded: whether the value of a query lies in [0, 1].
    """

    name: str
    trec_name: str
    metric: str | None = None
    top_k: int | None = None
    of: Of | None = None
    over_queries: str = "mean"
    is_count: bool = False
    needs_order: bool = False
    higher_is_better: bool = True
    bounded: bool = True


# What only trec_eval has; written so that tensors and arrays do --------------------------------------------------------


def _num_rel(ranking: Any, relevance: float, p: float) -> Any:
    return ranking.judged.num_relevant(relevance)


def _num_rel_ret(ranking: Any, relevance: float, p: float) -> Any:
    return ranking.sum(ranking.relevant(relevance))


def _num_other_ret(ranking: Any, relevance: float, p: float) -> Any:
    return ranking.sum(ranking.other(relevance, known=True))


def _set_precision(ranking: Any, relevance: float, p: float) -> Any:
    return _num_rel_ret(ranking, relevance, p) / ranking.length.clip(min=1)


def _set_recall(ranking: Any, relevance: float, p: float) -> Any:
    return _num_rel_ret(ranking, relevance, p) / _num_rel(ranking, relevance, p).clip(min=1)


def _set_relative(ranking: Any, relevance: float, p: float) -> Any:
    most = _num_rel(ranking, relevance, p).clip(max=ranking.length)
    return _num_rel_ret(ranking, relevance, p) / most.clip(min=1)


def _set_map(ranking: Any, relevance: float, p: float) -> Any:
    return _set_precision(ranking, relevance, p) * _set_recall(ranking, relevance, p)


def _set_f(ranking: Any, relevance: float, p: float) -> Any:
    both = ranking.length + _num_rel(ranking, relevance, p)
    return 2 * _num_rel_ret(ranking, relevance, p) / both.clip(min=1)


def _utility(found: float, other: float, missed: float) -> Of:
    """So much for each relevant document retrieved, each other one retrieved, each relevant one missed."""

    def of(ranking: Any, relevance: float, p: float) -> Any:
        hits = _num_rel_ret(ranking, relevance, p)
        return found * hits + other * (ranking.length - hits) + missed * (_num_rel(ranking, relevance, p) - hits)

    return of


def _discounted_by_others(ranking: Any, relevance: float, p: float) -> Any:
    """``binG``: over log2(2 + documents not relevant above) for each relevant one, as a share of all."""
    relevant = ranking.relevant(relevance)
    others_above = (ranking.rank - ranking.lists.cumsum(relevant)) * relevant
    discount = np.log2(2 + others_above) if isinstance(others_above, np.ndarray) else (2 + others_above).log2()
    return ranking.sum(relevant / discount) / _num_rel(ranking, relevance, p).clip(min=1)


def _relative_precision(top_k: int) -> Of:
    def of(ranking: Any, relevance: float, p: float) -> Any:
        most = _num_rel(ranking, relevance, p).clip(min=1, max=top_k)
        return ranking.sum(ranking.chance(relevance), top_k) / most

    return of


def _precision_at_multiple(multiple: float) -> Of:
    def of(ranking: Any, relevance: float, p: float) -> Any:
        cutoff = (_num_rel(ranking, relevance, p) * multiple + 0.9) // 1
        within = ranking.rank <= ranking.lists.spread(cutoff)
        return ranking.sum(ranking.chance(relevance) * within) / cutoff.clip(min=1)

    return of


def _interpolated(ranking: Any, relevance: float, recall: float) -> Any:
    """The largest precision at or after the rank where this share of the relevant documents is found."""
    relevant = ranking.relevant(relevance)
    found = ranking.lists.cumsum(relevant)
    # Rounded to the nearest, as trec_eval does from version 10 on.
    needed = (ranking.judged.num_relevant(relevance) * recall + 0.5) // 1
    counts = relevant * (found >= ranking.lists.spread(needed))
    return ranking.lists.max(found / ranking.rank * counts).clip(min=0)


def _precision_at_recall(recall: float) -> Of:
    return lambda ranking, relevance, p: _interpolated(ranking, relevance, recall)


def _mean_precision_at(recalls: Sequence[float]) -> Of:
    return lambda ranking, relevance, p: sum(_interpolated(ranking, relevance, r) for r in recalls) / len(recalls)


def _judged(ranking: Any) -> Any:
    """At each rank the chance that somebody judged the document there."""
    return ranking.mean_of_tied(ranking.known + 0 * ranking.grade)


def _share_unjudged(top_k: int) -> Of:
    def of(ranking: Any, relevance: float, p: float) -> Any:
        return (ranking.length.clip(max=top_k) - ranking.sum(_judged(ranking), top_k)).clip(min=0) / top_k

    return of


def _share_judged(top_k: int | None) -> Of:
    def of(ranking: Any, relevance: float, p: float) -> Any:
        shown = ranking.length if top_k is None else ranking.length.clip(max=top_k)
        return ranking.sum(_judged(ranking), top_k) / shown.clip(min=1)

    return of


def _rbp_residual(ranking: Any, relevance: float, p: float) -> Any:
    # What comes after the last document is as unknown as what nobody judged; of a query without any, trec_eval says 0.
    seen = ranking.sum(_judged(ranking) * (1 - p) * p ** (ranking.rank - 1))
    return ((ranking.length > 0) * 1.0 - seen).clip(min=0)


def graded_rbp(top_k: int | None) -> Of:
    """The ``rbp`` of trec_eval: a document adds its grade as a share of the best grade of the query, whatever is relevant."""

    def of(ranking: Any, relevance: float, p: float) -> Any:
        share = ranking.mean_of_tied(ranking.grade) / ranking.lists.spread(ranking.judged.top_grade().clip(min=1e-300))
        return ranking.sum(share * (1 - p) * p ** (ranking.rank - 1), top_k)

    return of


_PLAIN: dict[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure("num_q", "num_q", of=lambda r, g, p: r.length * 0 + 1, over_queries="sum", is_count=True),
        Measure("num_ret", "num_ret", of=lambda r, g, p: r.length, over_queries="sum", is_count=True),
        Measure("num_rel", "num_rel", of=_num_rel, over_queries="sum", is_count=True),
        Measure("num_rel_ret", "num_rel_ret", of=_num_rel_ret, over_queries="sum", is_count=True),
        Measure("num_nonrel_judged_ret", "num_nonrel_judged_ret", of=_num_other_ret, over_queries="sum", is_count=True,
                higher_is_better=False),
        Measure("gm_map", "gm_map", metric="map", over_queries="geometric"),
        Measure("gm_bpref", "gm_bpref", metric="bpref", over_queries="geometric"),
        Measure("set_P", "set_P", of=_set_precision),
        Measure("set_recall", "set_recall", of=_set_recall),
        Measure("set_relative_P", "set_relative_P", of=_set_relative),
        Measure("set_map", "set_map", of=_set_map),
        Measure("set_F", "set_F", of=_set_f),
        Measure("utility", "utility", of=_utility(1, -1, 0), bounded=False),
        Measure("binG", "binG", of=_discounted_by_others, needs_order=True),
        Measure("11pt_avg", "11pt_avg", of=_mean_precision_at([i / 10 for i in range(11)]), needs_order=True),
        Measure("rbp_resid", "rbp_resid", of=_rbp_residual, higher_is_better=False),
        Measure("judged", "judged", of=_share_judged(None)),
    )
}  # fmt: skip
# trec_eval's name without a cutoff, with one, and the metric.
_TREC_NAMES = {"Rprec": "r_precision", "recip_rank": "mrr"}
_TREC_CUT = {"P": "precision", "recall": "recall", "ndcg_cut": "ndcg", "map_cut": "map", "success": "hit_rate"}
_OF_METRIC = {metric: trec for trec, metric in _TREC_NAMES.items()}
_CUT_OF_METRIC = {metric: trec for trec, metric in _TREC_CUT.items()}
# Families of trec_eval: what makes one, its parameters by default, and how they are written.
_FAMILIES: dict[str, tuple[Callable[[float], Of], tuple[float, ...], str]] = {
    "relative_P": (lambda k: _relative_precision(int(k)), CUTOFFS, "d"),
    "Rprec_mult": (_precision_at_multiple, tuple(i / 5 for i in range(1, 11)), ".2f"),
    "iprec_at_recall": (_precision_at_recall, tuple(i / 10 for i in range(11)), ".2f"),
    "unj": (lambda k: _share_unjudged(int(k)), (5, 10, 20), "d"),
}
_DEFAULT_CUTOFFS = {"success": (1, 5, 10)}


def parse_measures(names: str | Iterable[str]) -> list[Measure]:
    """Measures by name, in both spellings: ``"ndcg@10 map P_5 recip_rank"``, a list of them, or a set of trec_eval's.

    A family of trec_eval takes its cutoffs after a dot, ``"P.5,10"``, or after an underscore, ``"P_5,10"``; without, those
    of trec_eval (but for ``recall``, which is the recall of the whole list). ``utility`` and ``11pt_avg`` take numbers in the same
    way. Sets are ``official`` and ``all_trec``.

    Raises:
        ValueError: an unknown name, with the nearest ones; a cutoff that is no whole number >= 1; no name at all.
    """
    texts = names.split() if isinstance(names, str) else [name for text in names for name in text.split()]
    measures: dict[str, Measure] = {}
    for text in texts:
        for part in _separated(text):
            for measure in _parsed(part):
                measures.setdefault(measure.name, measure)
    if not measures:
        raise ValueError("There must be at least one measure, such as 'ndcg@10'.")
    return list(measures.values())


def _separated(text: str) -> list[str]:
    """``"ndcg@10,map,P.5,10"`` -> its names; a number after a comma is another cutoff of the name before."""
    parts: list[str] = []
    for part in filter(None, text.split(",")):
        if parts and re.fullmatch(r"-?[\d.]+", part):
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    return parts


def _parsed(name: str) -> Sequence[Measure]:
    if name in SETS:
        return parse_measures(SETS[name])
    if name in _PLAIN:
        return [_PLAIN[name]]
    match = re.fullmatch(r"(judged|unj)@(\d+)", name)
    if match and int(match[2]) >= 1:
        k, judged = int(match[2]), match[1] == "judged"
        of = _share_judged(k) if judged else _share_unjudged(k)
        return [Measure(name, f"{match[1]}_{k}", of=of, higher_is_better=judged)]
    match = re.fullmatch(r"(utility|11pt_avg)[._](.+)", name)
    if match:
        return [_with_numbers(match[1], match[2])]
    match = re.fullmatch(r"([A-Za-z_]+?)(?:[._]([\d.][\d.,]*))?", name)
    family, parameters = (match[1], match[2]) if match else (name, None)
    if family in _FAMILIES:
        make, defaults, written = _FAMILIES[family]
        numbers = defaults if parameters is None else _numbers(name, parameters, whole=written == "d")
        return [
            Measure(
                f"{family}_{int(x) if written == 'd' else x:{written}}", f"{family}_{int(x) if written == 'd' else x:{written}}",
                of=make(x), needs_order=family == "iprec_at_recall", higher_is_better=family != "unj",
            )
            for x in numbers
        ]  # fmt: skip
    if family in _TREC_CUT and (parameters is not None or family not in PLAIN):
        cutoffs = _DEFAULT_CUTOFFS.get(family, CUTOFFS) if parameters is None else _numbers(name, parameters, whole=True)
        return [Measure(f"{family}_{int(k)}", f"{family}_{int(k)}", _TREC_CUT[family], int(k)) for k in cutoffs]
    if name in _TREC_NAMES:
        return [Measure(name, name, _TREC_NAMES[name])]
    base = name.partition("@")[0]
    table = PLAIN if base in _names(PLAIN) else all_metrics()
    if base not in _names(table):
        if base.lower() != base and base.lower() in (*table, *_PLAIN, *_FAMILIES, *_TREC_CUT, *_TREC_NAMES):
            return _parsed(name.lower())
        known = (*table, *SETS, *_PLAIN, *_TREC_NAMES, *_TREC_CUT, *_FAMILIES)
        raise unknown("measure", name, tuple(dict.fromkeys(known)))
    spec, top_k = parse_name(name, table)
    trec = _OF_METRIC.get(spec.name, spec.name) if top_k is None else f"{_CUT_OF_METRIC.get(spec.name, spec.name)}_{top_k}"
    return [Measure(name, trec, spec.name, top_k, higher_is_better=spec.higher_is_better, bounded=spec.bounded)]


def _with_numbers(family: str, text: str) -> Measure:
    """``utility_2,-1,0,0`` and ``11pt_avg_.25,.5,.75``, whose numbers belong together."""
    name = f"{family}_{text}"
    try:
        numbers = [float(x) for x in text.split(",")]
    except ValueError:
        numbers = []
    if family == "utility":
        if len(numbers) != 4 or numbers[3]:
            raise ValueError(
                "utility takes four numbers, for each relevant document retrieved, each other one retrieved, each relevant one "
                f"missed, and 0 for all others, whose number nobody knows, as in 'utility_2,-1,0,0'; got {name!r}."
            )
        return Measure(name, name, of=_utility(*numbers[:3]), bounded=False)
    if not numbers or not all(0 <= x <= 1 for x in numbers):
        raise ValueError(f"11pt_avg takes shares of recall between 0 and 1, as in '11pt_avg_.25,.5,.75', got {name!r}.")
    return Measure(name, name, of=_mean_precision_at(numbers), needs_order=True)


def _numbers(name: str, text: str, *, whole: bool) -> list[float]:
    try:
        numbers = sorted({float(x) for x in text.split(",") if x})
    except ValueError:
        numbers = []
    if not numbers or (whole and any(x < 1 or x != int(x) for x in numbers)):
        raise ValueError(f"The cutoffs in {name!r} must be {'whole numbers >= 1' if whole else 'numbers'}, as in 'P_5,10'.")
    return numbers


def all_metrics() -> Mapping[str, MetricSpec]:
    """The table of metrics, imported when it is needed, as it loads PyTorch."""
    from lightning_rank.functional.metrics import METRICS

    return METRICS


def _names(table: Mapping[str, MetricSpec]) -> set[str]:
    return {*table, *(spec.function.__name__ for spec in table.values())}
