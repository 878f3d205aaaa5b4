"""Metrics of rankings without ties from their judged documents alone, by numpy.

A run of millions of documents has some thousands that somebody judged, and no other document changes the value of these metrics.
PyTorch, which the metrics of ``lightning_rank.functional`` need, takes longer to load than such a run to read. Definitions are the
same, and so are the values (a test compares them); with ties among judged documents, and for what is not here, those are used.
"""

from __future__ import annotations

import numpy as np

from lightning_rank.conventions import Gain
from lightning_rank.entries import MetricSpec


class Grades:
    """The judged documents of each query, by rank: those of a run, or all of them by grade.

    Attributes:
        query: ``[document]`` number of the query, ascending.
        rank: ``[document]`` 1-based, ascending within the query.
        grade: ``[document]`` float64, >= 0.
        num_queries: of which some may have no document.
    """

    def __init__(self, query: np.ndarray, rank: np.ndarray, grade: np.ndarray, num_queries: int) -> None:
        self.query, self.rank, self.grade, self.num_queries = query, rank, grade, num_queries

    def sum(self, values: np.ndarray, top_k: int | None = None) -> np.ndarray:
        """Sum over the ranks of each query, up to ``top_k`` -> ``[query]``."""
        values = values if top_k is None else values * (self.rank <= top_k)
        return np.bincount(self.query, values, self.num_queries)

    def max(self, values: np.ndarray) -> np.ndarray:
        """The largest value of each query, 0 where all are smaller or none is there -> ``[query]``."""
        largest = np.zeros(self.num_queries)
        np.maximum.at(largest, self.query, values)
        return largest

    def cumsum(self, values: np.ndarray) -> np.ndarray:
        """Running sum of whole numbers that starts anew at each query."""
        running = np.cumsum(values)
        before = np.concatenate([[0.0], np.cumsum(self.sum(values))])
        return running - before[self.query]

    def spread(self, per_query: np.ndarray) -> np.ndarray:
        """A value of each query at its documents."""
        return per_query[self.query]

    def relevant(self, min_relevance: float) -> np.ndarray:
        """1.0 where a document is relevant."""
        return (self.grade >= min_relevance).astype(float)

    def discounted_gain(self, gain: Gain, top: np.ndarray | None) -> np.ndarray:
        """Gain over log2(rank + 1); with ``top``, ``[query]``, gains 2^grade - 1 over 2^top."""
        gains = self.grade
        if gain != "linear" and top is None:
            gains = np.exp2(self.grade) - 1
        elif gain != "linear":
            assert top is not None
            gains = np.exp2(self.grade - self.spread(top)) - np.exp2(-self.spread(top))
        return gains / np.log2(self.rank + 1)


class JudgedByGrade:
    """All judged documents of each query, which ``lightning_rank.functional.ranking.Judged`` are elsewhere."""

    def __init__(self, query: np.ndarray, grade: np.ndarray, num_queries: int) -> None:
        """``query``: ascending; ``grade``: below 0 is 0."""
        grade = grade.clip(min=0)
        order = np.lexsort((-grade, query))
        starts = np.searchsorted(query, np.arange(num_queries))
        rank = np.arange(1, len(query) + 1) - starts[query]
        self._ideal = Grades(query, rank.astype(float), grade[order], num_queries)

    def num_relevant(self, min_relevance: float) -> np.ndarray:
        return self._ideal.sum(self._ideal.relevant(min_relevance))

    def num_other(self, min_relevance: float) -> np.ndarray:
        return self._ideal.sum(1 - self._ideal.relevant(min_relevance))

    def top_grade(self) -> np.ndarray:
        return self._ideal.max(self._ideal.grade)

    def ideal_dcg(self, top_k: int | None, gain: Gain) -> np.ndarray:
        return self._ideal.sum(self._ideal.discounted_gain(gain, self.top_grade()), top_k)


class PlainRanking(Grades):
    """The judged documents that were retrieved, with as much of ``lightning_rank.functional.ranking.Ranking`` as measures use.

    Attributes:
        length: ``[query]`` retrieved documents, judged or not.
        judged: all judged documents.
        known: 1.0 for each document.
        lists: itself.
    """

    def __init__(
        self, query: np.ndarray, rank: np.ndarray, grade: np.ndarray, length: np.ndarray, judged: JudgedByGrade
    ) -> None:
        super().__init__(query, rank.astype(float), grade.clip(min=0), len(length))
        self.length, self.judged = length, judged
        self.known, self.lists = np.ones(len(query)), self

    def head(self, top_k: int | None) -> PlainRanking:
        return self

    def mean_of_tied(self, values: np.ndarray) -> np.ndarray:
        return values

    chance = Grades.relevant

    def other(self, min_relevance: float, *, known: bool) -> np.ndarray:
        """1.0 where a document is judged not relevant."""
        assert known
        return 1 - self.relevant(min_relevance)


def _defined(has_value: np.ndarray, value: np.ndarray) -> np.ndarray:
    return np.where(has_value, value, np.nan)


# As in lightning_rank.functional.metrics, where their documentation is ------------------------------------------------


def dcg(ranking: PlainRanking, top_k: int | None = None, *, gain: Gain = "exp2") -> np.ndarray:
    return _defined(ranking.judged.top_grade() > 0, ranking.sum(ranking.discounted_gain(gain, None), top_k))


def ndcg(ranking: PlainRanking, top_k: int | None = None, *, gain: Gain = "exp2") -> np.ndarray:
    top = ranking.judged.top_grade()
    best = ranking.judged.ideal_dcg(top_k, gain)
    has_value = (top > 0) & (best > 0)
    value = ranking.sum(ranking.discounted_gain(gain, top), top_k)
    return _defined(has_value, value / np.where(has_value, best, 1.0))


def average_precision(
    ranking: PlainRanking, top_k: int | None = None, *, min_relevance: float = 1, denominator: str = "relevant"
) -> np.ndarray:
    total, relevant = ranking.judged.num_relevant(min_relevance), ranking.relevant(min_relevance)
    divisor = total
    if denominator == "hits":
        divisor = ranking.sum(relevant, top_k)
    elif denominator == "cutoff" and top_k is not None:
        divisor = total.clip(max=top_k)
    precisions = relevant * ranking.cumsum(relevant) / ranking.rank
    return _defined(total > 0, ranking.sum(precisions, top_k) / divisor.clip(min=1))


def _first(ranking: PlainRanking, min_relevance: float) -> np.ndarray:
    relevant = ranking.relevant(min_relevance)
    return relevant * (ranking.cumsum(relevant) == 1)


def reciprocal_rank(ranking: PlainRanking, top_k: int | None = None, *, min_relevance: float = 1) -> np.ndarray:
    value = ranking.sum(_first(ranking, min_relevance) / ranking.rank, top_k)
    return _defined(ranking.judged.num_relevant(min_relevance) > 0, value)


def hit_rate(ranking: PlainRanking, top_k: int | None = None, *, min_relevance: float = 1) -> np.ndarray:
    value = ranking.sum(_first(ranking, min_relevance), top_k)
    return _defined(ranking.judged.num_relevant(min_relevance) > 0, value)


def precision(ranking: PlainRanking, top_k: int | None = None, *, min_relevance: float = 1) -> np.ndarray:
    hits = ranking.sum(ranking.relevant(min_relevance), top_k)
    value = hits / (ranking.length.clip(min=1) if top_k is None else top_k)
    return _defined(ranking.judged.num_relevant(min_relevance) > 0, value)


def recall(ranking: PlainRanking, top_k: int | None = None, *, min_relevance: float = 1) -> np.ndarray:
    total = ranking.judged.num_relevant(min_relevance)
    return _defined(total > 0, ranking.sum(ranking.relevant(min_relevance), top_k) / total.clip(min=1))


def f1(ranking: PlainRanking, top_k: int | None = None, *, min_relevance: float = 1) -> np.ndarray:
    total, hits = ranking.judged.num_relevant(min_relevance), ranking.sum(ranking.relevant(min_relevance), top_k)
    return _defined(total > 0, 2 * hits / ((ranking.length if top_k is None else top_k) + total).clip(min=1))


def r_precision(ranking: PlainRanking, *, min_relevance: float = 1) -> np.ndarray:
    total = ranking.judged.num_relevant(min_relevance)
    hits = ranking.sum(ranking.relevant(min_relevance) * (ranking.rank <= ranking.spread(total)))
    return _defined(total > 0, hits / total.clip(min=1))


def rank_biased_precision(
    ranking: PlainRanking, top_k: int | None = None, *, p: float = 0.8, min_relevance: float = 1
) -> np.ndarray:
    seen = ranking.relevant(min_relevance) * (1 - p) * p ** (ranking.rank - 1)
    return _defined(ranking.judged.num_relevant(min_relevance) > 0, ranking.sum(seen, top_k))


def bpref(ranking: PlainRanking, *, min_relevance: float = 1) -> np.ndarray:
    total, others = ranking.judged.num_relevant(min_relevance), ranking.judged.num_other(min_relevance)
    relevant = ranking.relevant(min_relevance)
    above = np.minimum(ranking.cumsum(1 - relevant), ranking.spread(total))
    penalty = above / ranking.spread(np.minimum(others, total).clip(min=1))
    return _defined(total > 0, ranking.sum(relevant * (1 - penalty)) / total.clip(min=1))


def fall_out(ranking: PlainRanking, top_k: int | None = None, *, min_relevance: float = 1) -> np.ndarray:
    others = ranking.judged.num_other(min_relevance)
    return _defined(others > 0, ranking.sum(ranking.other(min_relevance, known=True), top_k) / others.clip(min=1))


PLAIN: dict[str, MetricSpec] = {
    spec.name: spec
    for spec in (
        MetricSpec("dcg", dcg, bounded=False),
        MetricSpec("ndcg", ndcg),
        MetricSpec("map", average_precision),
        MetricSpec("mrr", reciprocal_rank),
        MetricSpec("precision", precision),
        MetricSpec("recall", recall),
        MetricSpec("hit_rate", hit_rate),
        MetricSpec("f1", f1),
        MetricSpec("r_precision", r_precision),
        MetricSpec("rbp", rank_biased_precision),
        MetricSpec("bpref", bpref),
        MetricSpec("fall_out", fall_out, higher_is_better=False),
    )
}
