"""Names of measures, in our spelling and in trec_eval's, and what only trec_eval computes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_rank.conventions import unknown
from lightning_rank.functional.metrics import METRICS, MetricSpec, parse_name
from lightning_rank.functional.ranking import Ranking

CUTOFFS = (5, 10, 15, 20, 30, 100, 200, 500, 1000)

OFFICIAL = "num_q num_ret num_rel num_rel_ret map gm_map Rprec bpref recip_rank iprec_at_recall P"
ALL_TREC = (
    f"{OFFICIAL} recall_5,10,15,20,30,100,200,500,1000 gm_bpref Rprec_mult utility 11pt_avg ndcg ndcg_cut map_cut relative_P "
    "success set_P set_relative_P set_recall set_map set_F num_nonrel_judged_ret rbp rbp_resid unj"
)
SETS = {"official": OFFICIAL, "all_trec": ALL_TREC}


@dataclass(frozen=True)
class Measure:
    """One measure of a ranking.

    Attributes:
        name: as it was asked for.
        trec_name: trec_eval's spelling; ours where it has none.
        spec: the row of the table of metrics; None for what only trec_eval has.
        top_k: its cutoff.
        of: per-query values of the others, from a ranking, the grade from which a document is relevant, and ``p``.
        over_queries: ``"mean"``, ``"sum"``, or ``"geometric"`` mean.
        is_count: values are whole numbers.
        needs_order: it is no expectation under ties, and so needs an order of tied documents.
        higher_is_better: False where a smaller value is better.
    """

    name: str
    trec_name: str
    spec: MetricSpec | None = None
    top_k: int | None = None
    of: Callable[[Ranking, float, float], Tensor] | None = None
    over_queries: str = "mean"
    is_count: bool = False
    needs_order: bool = False
    higher_is_better: bool = True


# What only trec_eval has: from a ranking, the least relevant grade, and p -----------------------------------------------


def _hits(ranking: Ranking, relevance: float, top_k: int | None = None) -> Tensor:
    return ranking.sum(ranking.chance(relevance), top_k)


def _num_ret(ranking: Ranking, relevance: float, p: float) -> Tensor:
    return ranking.length.double()


def _num_rel(ranking: Ranking, relevance: float, p: float) -> Tensor:
    return ranking.judged.num_relevant(relevance)


def _num_rel_ret(ranking: Ranking, relevance: float, p: float) -> Tensor:
    return ranking.sum(ranking.relevant(relevance))


def _num_other_ret(ranking: Ranking, relevance: float, p: float) -> Tensor:
    return ranking.sum(ranking.other(relevance, known=True))


def _set_precision(ranking: Ranking, relevance: float, p: float) -> Tensor:
    return _num_rel_ret(ranking, relevance, p) / ranking.length.clamp(min=1)


def _set_recall(ranking: Ranking, relevance: float, p: float) -> Tensor:
    return _num_rel_ret(ranking, relevance, p) / ranking.judged.num_relevant(relevance).clamp(min=1)


def _set_relative(ranking: Ranking, relevance: float, p: float) -> Tensor:
    most = torch.minimum(ranking.judged.num_relevant(relevance), ranking.length)
    return _num_rel_ret(ranking, relevance, p) / most.clamp(min=1)


def _set_map(ranking: Ranking, relevance: float, p: float) -> Tensor:
    return _set_precision(ranking, relevance, p) * _set_recall(ranking, relevance, p)


def _set_f(ranking: Ranking, relevance: float, p: float) -> Tensor:
    both = ranking.length + ranking.judged.num_relevant(relevance)
    return 2 * _num_rel_ret(ranking, relevance, p) / both.clamp(min=1)


def _utility(ranking: Ranking, relevance: float, p: float) -> Tensor:
    return 2 * _num_rel_ret(ranking, relevance, p) - ranking.length


def _relative_precision(top_k: int) -> Callable[[Ranking, float, float], Tensor]:
    def of(ranking: Ranking, relevance: float, p: float) -> Tensor:
        most = ranking.judged.num_relevant(relevance).clamp(min=1, max=top_k)
        return _hits(ranking, relevance, top_k) / most

    return of


def _precision_at_multiple(multiple: float) -> Callable[[Ranking, float, float], Tensor]:
    def of(ranking: Ranking, relevance: float, p: float) -> Tensor:
        cutoff = (ranking.judged.num_relevant(relevance) * multiple + 0.9).floor()
        within = ranking.rank <= ranking.lists.spread(cutoff)
        return ranking.sum(ranking.chance(relevance) * within) / cutoff.clamp(min=1)

    return of


def _interpolated(ranking: Ranking, relevance: float, recall: float) -> Tensor:
    """The largest precision at or after the rank where this share of the relevant documents is found."""
    relevant = ranking.relevant(relevance)
    found = ranking.lists.cumsum(relevant)
    # Rounded to the nearest, as trec_eval does from version 10 on.
    needed = (ranking.judged.num_relevant(relevance) * recall + 0.5).floor()
    counts = relevant * (found >= ranking.lists.spread(needed))
    return ranking.lists.max(found / ranking.rank * counts).clamp(min=0)


def _precision_at_recall(recall: float) -> Callable[[Ranking, float, float], Tensor]:
    return lambda ranking, relevance, p: _interpolated(ranking, relevance, recall)


def _eleven_points(ranking: Ranking, relevance: float, p: float) -> Tensor:
    return torch.stack([_interpolated(ranking, relevance, i / 10) for i in range(11)]).mean(0)


def _unjudged(ranking: Ranking) -> Tensor:
    if ranking.known is None:
        return torch.zeros_like(ranking.grade)
    return ranking.mean_of_tied((ranking.known.logical_not() & ranking.lists.valid).to(ranking.grade.dtype))


def _share_unjudged(top_k: int) -> Callable[[Ranking, float, float], Tensor]:
    return lambda ranking, relevance, p: ranking.sum(_unjudged(ranking), top_k) / top_k


def _share_judged(top_k: int | None) -> Callable[[Ranking, float, float], Tensor]:
    def of(ranking: Ranking, relevance: float, p: float) -> Tensor:
        shown = ranking.length.double() if top_k is None else ranking.length.double().clamp(max=top_k)
        return (shown - ranking.sum(_unjudged(ranking), top_k)) / shown.clamp(min=1)

    return of


def _rbp_residual(ranking: Ranking, relevance: float, p: float) -> Tensor:
    seen = ranking.sum(_unjudged(ranking) * (1 - p) * p ** (ranking.rank - 1))
    # What comes after the last document is as unknown; of a query without any, trec_eval says 0.
    return seen + p ** ranking.length.double() * (ranking.length > 0)


def graded_rbp(top_k: int | None) -> Callable[[Ranking, float, float], Tensor]:
    """The ``rbp`` of trec_eval: a document adds its grade as a share of the best grade of the query, whatever is relevant."""

    def of(ranking: Ranking, relevance: float, p: float) -> Tensor:
        share = ranking.mean_of_tied(ranking.grade) / ranking.lists.spread(ranking.judged.top_grade().clamp(min=1e-300))
        return ranking.sum(share * (1 - p) * p ** (ranking.rank - 1), top_k)

    return of


_PLAIN: dict[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure("num_q", "num_q", of=lambda r, g, p: torch.ones_like(r.length).double(), over_queries="sum", is_count=True),
        Measure("num_ret", "num_ret", of=_num_ret, over_queries="sum", is_count=True),
        Measure("num_rel", "num_rel", of=_num_rel, over_queries="sum", is_count=True),
        Measure("num_rel_ret", "num_rel_ret", of=_num_rel_ret, over_queries="sum", is_count=True),
        Measure("num_nonrel_judged_ret", "num_nonrel_judged_ret", of=_num_other_ret, over_queries="sum", is_count=True,
                higher_is_better=False),
        Measure("gm_map", "gm_map", spec=METRICS["map"], over_queries="geometric"),
        Measure("gm_bpref", "gm_bpref", spec=METRICS["bpref"], over_queries="geometric"),
        Measure("set_P", "set_P", of=_set_precision),
        Measure("set_recall", "set_recall", of=_set_recall),
        Measure("set_relative_P", "set_relative_P", of=_set_relative),
        Measure("set_map", "set_map", of=_set_map),
        Measure("set_F", "set_F", of=_set_f),
        Measure("utility", "utility", of=_utility),
        Measure("11pt_avg", "11pt_avg", of=_eleven_points, needs_order=True),
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
_FAMILIES: dict[str, tuple[Callable[[float], Callable[[Ranking, float, float], Tensor]], tuple[float, ...], str]] = {
    "relative_P": (lambda k: _relative_precision(int(k)), CUTOFFS, "d"),
    "Rprec_mult": (_precision_at_multiple, tuple(i / 5 for i in range(1, 11)), ".2f"),
    "iprec_at_recall": (_precision_at_recall, tuple(i / 10 for i in range(11)), ".2f"),
    "unj": (lambda k: _share_unjudged(int(k)), (5, 10, 20), "d"),
}
_DEFAULT_CUTOFFS = {"success": (1, 5, 10)}


def parse_measures(names: str | Iterable[str]) -> list[Measure]:
    """Measures by name, in both spellings: ``"ndcg@10 map P_5 recip_rank"``, a list of them, or a set of trec_eval's.

    A family of trec_eval takes its cutoffs after a dot, ``"P.5,10"``, or after an underscore, ``"P_5,10"``; without, those
    of trec_eval (but for ``recall``, which is the recall of the whole list). Sets are ``official`` and ``all_trec``.

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
        if parts and re.fullmatch(r"[\d.]+", part):
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
    if family in _TREC_CUT and (parameters is not None or family not in METRICS):
        cutoffs = _DEFAULT_CUTOFFS.get(family, CUTOFFS) if parameters is None else _numbers(name, parameters, whole=True)
        spec = METRICS[_TREC_CUT[family]]
        return [Measure(f"{family}_{int(k)}", f"{family}_{int(k)}", spec, int(k)) for k in cutoffs]
    if name in _TREC_NAMES:
        return [Measure(name, name, METRICS[_TREC_NAMES[name]])]
    base = name.partition("@")[0]
    if base not in METRICS and base not in {spec.function.__name__ for spec in METRICS.values()}:
        raise unknown("measure", name, KNOWN)
    spec, top_k = parse_name(name)
    trec = _OF_METRIC.get(spec.name, spec.name) if top_k is None else f"{_CUT_OF_METRIC.get(spec.name, spec.name)}_{top_k}"
    return [Measure(name, trec, spec, top_k, higher_is_better=spec.higher_is_better)]


def _numbers(name: str, text: str, *, whole: bool) -> list[float]:
    try:
        numbers = sorted({float(x) for x in text.split(",") if x})
    except ValueError:
        numbers = []
    if not numbers or (whole and any(x < 1 or x != int(x) for x in numbers)):
        raise ValueError(f"The cutoffs in {name!r} must be {'whole numbers >= 1' if whole else 'numbers'}, as in 'P_5,10'.")
    return numbers


KNOWN = tuple(dict.fromkeys([*METRICS, *SETS, *_PLAIN, *_TREC_NAMES, *_TREC_CUT, *_FAMILIES]))
