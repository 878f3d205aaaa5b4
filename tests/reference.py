"""Slow references in plain Python: what every metric is by definition, for one query, by loops.

Independent of the library. Ties under ``"average"`` are resolved by listing all orders of the tied items.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, groupby, permutations, product
from statistics import fmean

Numbers = Sequence[float]


def gain_of(grade: float, gain: str | Callable[[float], float]) -> float:
    if callable(gain):
        return gain(grade)
    return 2.0**grade - 1 if gain == "exp2" else float(grade)


def discount(rank: float) -> float:
    return 1 / math.log2(1 + rank)


# Metrics --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """All judged items of a query: their grades, and how many are relevant and not at a threshold."""

    grades: list[float]
    unknown: int  # of the grades, those 0 that stand for an item that nobody judged

    def relevant(self, min_relevance: float) -> int:
        return count_relevant(self.grades, min_relevance)

    def others(self, min_relevance: float) -> int:
        return len(self.grades) - self.unknown - self.relevant(min_relevance)


# A metric takes the grades in rank order (None: nobody judged the item), what is judged, and the cutoff.


def dcg(ranked, judged, k, *, gain="exp2"):
    ranked = [grade or 0.0 for grade in ranked]
    return sum(gain_of(grade, gain) * discount(rank) for rank, grade in enumerate(ranked[:k], 1))


def ndcg(ranked, judged, k, *, gain="exp2"):
    best = dcg(sorted(judged.grades, reverse=True), judged, k, gain=gain)
    return dcg(ranked, judged, k, gain=gain) / best if best > 0 else math.nan


def average_precision(ranked, judged, k, *, min_relevance=1, denominator="relevant"):
    hits, total = 0, 0.0
    for rank, grade in enumerate(ranked[:k], 1):
        if is_relevant(grade, min_relevance):
            hits += 1
            total += hits / rank
    relevant = judged.relevant(min_relevance)
    divisor = {"relevant": relevant, "cutoff": relevant if k is None else min(relevant, k), "hits": max(hits, 1)}
    return total / divisor[denominator]


def reciprocal_rank(ranked, judged, k, *, min_relevance=1):
    return next((1 / rank for rank, grade in enumerate(ranked[:k], 1) if is_relevant(grade, min_relevance)), 0.0)


def precision(ranked, judged, k, *, min_relevance=1):
    return count_relevant(ranked[:k], min_relevance) / (max(len(ranked), 1) if k is None else k)


def recall(ranked, judged, k, *, min_relevance=1):
    return count_relevant(ranked[:k], min_relevance) / judged.relevant(min_relevance)


def hit_rate(ranked, judged, k, *, min_relevance=1):
    return float(count_relevant(ranked[:k], min_relevance) > 0)


def f1(ranked, judged, k, *, min_relevance=1):
    p, r = (function(ranked, judged, k, min_relevance=min_relevance) for function in (precision, recall))
    return 2 * p * r / (p + r) if p else 0.0


def r_precision(ranked, judged, k, *, min_relevance=1):
    return precision(ranked, judged, judged.relevant(min_relevance), min_relevance=min_relevance)


def expected_reciprocal_rank(ranked, judged, k, *, max_grade=4):
    value, reached = 0.0, 1.0
    for rank, grade in enumerate(ranked[:k], 1):
        satisfied = (2.0 ** (grade or 0) - 1) / 2**max_grade
        value += reached * satisfied / rank
        reached *= 1 - satisfied
    return value


def rank_biased_precision(ranked, judged, k, *, p=0.8, min_relevance=1):
    return (1 - p) * sum(p**i for i, grade in enumerate(ranked[:k]) if is_relevant(grade, min_relevance))


def bpref(ranked, judged, k, *, min_relevance=1):
    relevant, others = judged.relevant(min_relevance), judged.others(min_relevance)
    value, above = 0.0, 0
    for grade in ranked:
        if is_relevant(grade, min_relevance):
            value += 1 - (min(above, relevant) / min(others, relevant) if above else 0)
        elif grade is not None:
            above += 1
    return value / relevant


def auc(ranked, judged, k, *, min_relevance=1):
    relevant = [is_relevant(grade, min_relevance) for grade in ranked]
    right = sum(a and not b for a, b in combinations(relevant, 2))
    pairs = sum(relevant) * (len(relevant) - sum(relevant))
    return right / pairs if pairs else math.nan


def fall_out(ranked, judged, k, *, min_relevance=1):
    wrong = sum(grade is not None and grade < min_relevance for grade in ranked[:k])
    return wrong / judged.others(min_relevance)


def is_relevant(grade: float | None, min_relevance: float) -> bool:
    return grade is not None and grade >= min_relevance


def count_relevant(grades: Sequence[float | None], min_relevance: float) -> int:
    return sum(is_relevant(grade, min_relevance) for grade in grades)


METRIC_REFERENCES = {
    "dcg": dcg,
    "ndcg": ndcg,
    "map": average_precision,
    "mrr": reciprocal_rank,
    "precision": precision,
    "recall": recall,
    "hit_rate": hit_rate,
    "f1": f1,
    "r_precision": r_precision,
    "err": expected_reciprocal_rank,
    "rbp": rank_biased_precision,
    "bpref": bpref,
    "auc": auc,
    "fall_out": fall_out,
}


def orders(scores: Numbers, grades: Numbers, ties: str) -> Iterator[list[int]]:
    """The orders of the items, best score first, that the tie rule allows."""
    descending = sorted(range(len(scores)), key=lambda i: -scores[i])
    groups = [list(group) for _, group in groupby(descending, key=lambda i: scores[i])]
    if ties == "average":
        for choice in product(*(permutations(group) for group in groups)):
            yield list(chain.from_iterable(choice))
        return
    sign = {"stable": 0, "optimistic": -1, "pessimistic": 1}[ties]
    yield [i for group in groups for i in sorted(group, key=lambda i: sign * grades[i])]


def num_orders(scores: Numbers) -> int:
    return math.prod(math.factorial(len(list(group))) for _, group in groupby(sorted(scores)))


def metric_value(
    name: str,
    scores: Numbers,
    grades: Numbers,
    top_k: int | None = None,
    *,
    ideal: Numbers | None = None,
    known: Sequence[bool] | None = None,
    ties: str = "average",
    **options,
) -> float:
    """The value of one query; NaN where it has none."""
    known = [True] * len(scores) if known is None else known
    grades = [max(grade, 0) if is_known else None for grade, is_known in zip(grades, known, strict=True)]
    if ideal is None:
        judged = Judged([grade or 0 for grade in grades], grades.count(None))
    else:
        judged = Judged([max(grade, 0) for grade in ideal], 0)
    if is_empty(name, judged, options.get("min_relevance", 1)):
        return math.nan
    function = METRIC_REFERENCES[name]
    by_grade = [grade or 0 for grade in grades]
    # AUC counts pairs of the list: where it has none, it has none in any order.
    return fmean(function([grades[i] for i in order], judged, top_k, **options) for order in orders(scores, by_grade, ties))


def is_empty(name: str, judged: Judged, min_relevance: float) -> bool:
    if name in ("dcg", "ndcg", "err"):
        return max(judged.grades, default=0) == 0
    return (judged.others(min_relevance) if name == "fall_out" else judged.relevant(min_relevance)) == 0
