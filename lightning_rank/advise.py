"""Which metric to watch, and the classic mistakes, from the user's own numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from lightning_rank.conventions import EMPTY_TARGET_ACTIONS, check_choice, check_number, check_top_k
from lightning_rank.functional.metrics import parse_name
from lightning_rank.functional.ranking import rank
from lightning_rank.lists import arrange, check_grades

ANSWERS = ("many", "one")

# A share of queries, or of items, from which a warning is worth reading.
MANY_EMPTY = 0.1
MANY_TIED = 0.1


class Facts(NamedTuple):
    """What the grades (and scores) of some queries look like; ``a.merged(b)`` is that of both together.

    Attributes:
        queries: number of queries with items.
        empty: queries without a relevant item.
        single: queries with exactly one relevant item.
        relevant: relevant items.
        items: items.
        longest: items of the longest list.
        long_enough: queries with more items than the cutoff; all, without one.
        tied: items that share their score with another of their query; 0 without scores.
        lowest_grade: the smallest grade above 0; infinite if there is none.
        top_grade: the largest grade.
    """

    queries: int
    empty: int
    single: int
    relevant: int
    items: int
    longest: int
    long_enough: int
    tied: int
    lowest_grade: float
    top_grade: float

    @property
    def is_graded(self) -> bool:
        """Whether there is more than one grade above 0."""
        return self.lowest_grade < self.top_grade

    def merged(self, other: Facts) -> Facts:
        """The facts of both."""
        counts = ("queries", "empty", "single", "relevant", "items", "long_enough", "tied")
        return self._replace(
            longest=max(self.longest, other.longest),
            lowest_grade=min(self.lowest_grade, other.lowest_grade),
            top_grade=max(self.top_grade, other.top_grade),
            **{name: getattr(self, name) + getattr(other, name) for name in counts},
        )


@dataclass(frozen=True)
class Advice:
    """A recommendation and warnings; prints as text.

    Attributes:
        metric: the name of the main metric, such as ``"ndcg@10"``.
        beside: the two to watch beside it.
        reason: why, in a sentence.
        warnings: one sentence each, with the numbers that caused it.
        facts: what it was derived from.
    """

    metric: str
    beside: tuple[str, str]
    reason: str
    warnings: tuple[str, ...]
    facts: Facts

    def __str__(self) -> str:
        lines = [f"Watch {self.metric}, and beside it {self.beside[0]} and {self.beside[1]}: {self.reason}"]
        return "\n".join(lines + [f"- {warning}" for warning in self.warnings])


def facts_of(
    target: Tensor,
    preds: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    indexes: Tensor | None = None,
    offsets: Tensor | None = None,
    top_k: int | None = None,
    min_relevance: float = 1,
) -> Facts:
    """Count what advice depends on. Shapes and errors as for ``advise``."""
    if not isinstance(target, Tensor):
        raise TypeError(f"`target` must be a tensor, got {type(target).__name__}.")
    lists, grades, _, _ = arrange(target, target, mask=mask, indexes=indexes, offsets=offsets)
    check_grades(lists, grades)
    grades = grades.double().clamp(min=0)
    relevant = lists.sum(((grades >= min_relevance) & lists.valid).long())
    has_items = lists.lengths > 0
    tied = 0
    if preds is not None:
        ranking = rank(preds, target, mask=mask, indexes=indexes, offsets=offsets)
        tied = int(((ranking.tie_size() > 1) & ranking.lists.valid).sum())
    positive = grades[grades > 0]
    return Facts(
        queries=int(has_items.sum()),
        empty=int((has_items & (relevant == 0)).sum()),
        single=int((relevant == 1).sum()),
        relevant=int(relevant.sum()),
        items=int(lists.lengths.sum()),
        longest=int(lists.lengths.max()) if lists.num_queries else 0,
        long_enough=int((lists.lengths > (top_k or 0)).sum()),
        tied=tied,
        lowest_grade=float(positive.min()) if len(positive) else math.inf,
        top_grade=float(positive.max()) if len(positive) else 0.0,
    )


def advise(
    target: Tensor,
    *,
    preds: Tensor | None = None,
    answers: str = "many",
    top_k: int = 10,
    metrics: Sequence[str] = (),
    empty_target_action: str = "neg",
    min_relevance: float = 1,
    mask: Tensor | None = None,
    indexes: Tensor | None = None,
    offsets: Tensor | None = None,
) -> Advice:
    """Recommend the main metric, its cutoff and two to watch beside it, and warn of what is easily misread.

    Args:
        target: grades ``[query, item]``, or flat ``[item]``.
        preds: scores like ``target``; None leaves out what scores can tell (ties).
        answers: whether a user wants ``"many"`` good answers or ``"one"``.
        top_k: how deep users look.
        metrics: names of the metrics in use, which warnings are about.
        empty_target_action: what is in use for queries without a relevant item.
        min_relevance: the grade from which an item is relevant.
        mask, indexes, offsets: the layout, as for metrics.

    Raises:
        ValueError: shapes or options do not fit, a NaN grade, no query at all.

    Example:
        >>> import torch
        >>> advice = advise(torch.tensor([[3, 0, 1, 0], [0, 2, 0, 0]]), top_k=3)
        >>> advice.metric, advice.beside
        ('ndcg@3', ('recall@3', 'mrr'))
    """
    check_choice("answers", answers, ANSWERS)
    check_top_k(top_k)
    check_number("min_relevance", min_relevance, above=0)
    check_choice("empty_target_action", empty_target_action, EMPTY_TARGET_ACTIONS)
    facts = facts_of(target, preds, mask=mask, indexes=indexes, offsets=offsets, top_k=top_k, min_relevance=min_relevance)
    if facts.queries == 0:
        raise ValueError("There is no query to advise on.")
    # A cutoff as deep as the lists cuts nothing, and recall there is always 1.
    cut = f"@{top_k}" if top_k < facts.longest else ""
    if answers == "one":
        main, beside = f"mrr{cut}", (f"hit_rate@{min(top_k, max(1, facts.longest - 1))}", f"ndcg{cut}")
        reason = (
            "one good answer is enough, so the rank of the first one decides; the hit rate says how often there is one."
        )
    elif facts.is_graded:
        main, beside = f"ndcg{cut}", (f"recall{cut}" if cut else "map", "mrr")
        reason = "grades differ and many answers count, so the best should stand on top; the other two say what is missed."
    else:
        main, beside = f"map{cut}", (f"recall{cut}" if cut else "mrr", f"ndcg{cut}")
        reason = "relevance is binary and all answers count, so each should be found, and early."
    found = warnings_on(facts, top_k=top_k, metrics=metrics, empty_target_action=empty_target_action)
    if len(metrics) > 1:
        found.append(
            "Values of different metrics, cutoffs or conventions do not compare: an NDCG of 0.8 is not better than a MAP of 0.6."
        )
    return Advice(main, beside, reason, tuple(found), facts)


def warnings_on(
    facts: Facts, *, top_k: int = 10, metrics: Sequence[str] = (), empty_target_action: str = "neg"
) -> list[str]:
    """What is easily misread about these metrics on such data, a sentence each, with the numbers."""
    used = [parse_name(name) for name in metrics]
    names = {spec.name for spec, _ in used}
    found = []
    graded_metrics = names & {"ndcg", "dcg", "err"}
    if facts.relevant and not facts.is_graded and (graded_metrics or not metrics):
        found.append(
            f"Grades are binary (0 and {facts.top_grade:g}): NDCG then only discounts ranks, and its gain means nothing. "
            "MAP, or MRR for one answer, says the same more plainly."
        )
    if facts.is_graded and names and not graded_metrics:
        found.append(
            f"Grades go up to {facts.top_grade:g}, but {', '.join(sorted(names))} read them as relevant or not: NDCG or ERR would "
            "see whether the best stand first."
        )
    deepest = max([cutoff for _, cutoff in used if cutoff is not None], default=0 if used else top_k)
    if 0 < facts.longest <= deepest:
        found.append(
            f"No list has more than {facts.longest} items, so a cutoff of {deepest} cuts nothing: the value does not change with k."
        )
    elif facts.long_enough < facts.queries / 2 and names & {"precision", "f1"}:
        found.append(
            f"Only {facts.long_enough} of {facts.queries} queries have more than {top_k} items: for shorter lists precision@k "
            "cannot reach 1."
        )
    if facts.empty > MANY_EMPTY * facts.queries and empty_target_action in ("neg", "pos"):
        counts = {"neg": "0, however good the ranker", "pos": "1, however bad the ranker"}[empty_target_action]
        found.append(
            f"{facts.empty} of {facts.queries} queries have no relevant item and count {counts}: the mean is at "
            f"{'most' if empty_target_action == 'neg' else 'least'} "
            f"{(facts.queries - facts.empty if empty_target_action == 'neg' else facts.empty) / facts.queries:.3f}. "
            "empty_target_action='skip' leaves them out."
        )
    if facts.tied > MANY_TIED * facts.items:
        found.append(
            f"{facts.tied} of {facts.items} items have a score that another of their query has too: values are means over the "
            "orders of tied items (tie_spread says how far apart those lie), and tools that break ties otherwise differ."
        )
    with_relevant = facts.queries - facts.empty
    if with_relevant and facts.single == with_relevant:
        found.append(
            "Every query has one relevant item: MAP and MRR are then the same number, and precision@k is at most 1/k."
        )
    return found
