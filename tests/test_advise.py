from __future__ import annotations

import pytest
import torch

from lightning_rank.advise import advise, facts_of
from lightning_rank.functional.metrics import METRICS, parse_name


def grades(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows)


GRADED = grades([3, 0, 1, 0, 0], [0, 2, 0, 1, 0])
BINARY = grades([1, 0, 1, 0, 0], [0, 1, 0, 1, 0])


@pytest.mark.parametrize(
    ("target", "answers", "main"),
    [(GRADED, "many", "ndcg@3"), (BINARY, "many", "map@3"), (GRADED, "one", "mrr@3"), (BINARY, "one", "mrr@3")],
)
def test_the_main_metric_follows_grades_and_use(target, answers, main):
    advice = advise(target, answers=answers, top_k=3)
    assert advice.metric == main
    assert len(set(advice.beside)) == 2
    for name in (advice.metric, *advice.beside):
        assert parse_name(name)[0].name in METRICS
    assert str(advice).startswith(f"Watch {main}, and beside it {advice.beside[0]} and {advice.beside[1]}: ")


@pytest.mark.parametrize("answers", ["many", "one"])
@pytest.mark.parametrize("target", [GRADED, BINARY])
def test_no_metric_is_advised_that_a_cutoff_beyond_the_lists_makes_constant(target, answers):
    advice = advise(target, answers=answers, top_k=10)
    assert "@" not in advice.metric
    assert not {"recall@5", "recall@10", "recall", "hit_rate@5", "hit_rate@10"} & {advice.metric, *advice.beside}


def said(target: torch.Tensor, words: str, **options: object) -> bool:
    return any(words in warning for warning in advise(target, **options).warnings)


def test_binary_grades_under_ndcg():
    assert said(BINARY, "Grades are binary (0 and 1)", metrics=["ndcg@3"], top_k=3)
    assert not said(GRADED, "Grades are binary", metrics=["ndcg@3"], top_k=3)
    assert not said(BINARY, "Grades are binary", metrics=["map@3"], top_k=3)


def test_grades_that_a_binary_metric_does_not_see():
    assert said(GRADED, "Grades go up to 3, but map, mrr read them as relevant or not", metrics=["map", "mrr"], top_k=3)
    assert not said(GRADED, "read them as relevant or not", metrics=["map", "ndcg"], top_k=3)


def test_a_cutoff_beyond_the_lists():
    assert said(GRADED, "No list has more than 5 items, so a cutoff of 10 cuts nothing", metrics=["ndcg@10"])
    short = torch.tensor([[True] * 5, [True] * 2 + [False] * 3, [True] * 2 + [False] * 3])
    words = "Only 1 of 3 queries have more than 3 items"
    assert said(GRADED[[0, 1, 1]], words, mask=short, top_k=3, metrics=["precision@3"])
    assert not said(GRADED[[0, 1, 1]], words, mask=short, top_k=3, metrics=["ndcg@3"])
    assert not said(GRADED, "cuts nothing", metrics=["map", "mrr"])
    assert not said(GRADED, "cuts nothing", metrics=["ndcg@3"], top_k=3)


def test_many_empty_queries_name_the_bound_that_they_set():
    target = torch.cat([GRADED, torch.zeros(2, 5)])
    assert said(
        target, "2 of 4 queries have no relevant item and count 0, however good the ranker: the mean is at most 0.500"
    )
    assert said(target, "count 1, however bad the ranker: the mean is at least 0.500", empty_target_action="pos")
    assert not said(target, "no relevant item", empty_target_action="skip")
    # The bound is the one that the metric has.
    metric_of_ideal = [float(row.max() > 0) for row in target]
    assert sum(metric_of_ideal) / 4 == 0.5


def test_heavy_ties():
    scores = torch.tensor([[1.0, 1.0, 1.0, 0.5, 0.2], [1.0, 2.0, 3.0, 4.0, 5.0]])
    assert facts_of(GRADED, scores).tied == 3
    assert said(GRADED, "3 of 10 items have a score that another of their query has too", preds=scores)
    assert not said(GRADED, "tied", preds=torch.arange(10.0).view(2, 5))


def test_one_relevant_item_each():
    assert said(grades([1, 0, 0], [0, 0, 1], [0, 0, 0]), "MAP and MRR are then the same number")
    assert not said(BINARY, "the same number")


def test_values_of_different_metrics():
    assert said(GRADED, "do not compare", metrics=["ndcg@3", "map"])
    assert not said(GRADED, "do not compare", metrics=["ndcg@3"])


def test_facts_of_batches_merge_to_the_facts_of_all():
    scores = torch.tensor([[1.0, 1.0, 1.0, 0.5, 0.2], [1.0, 2.0, 3.0, 3.0, 5.0]])
    parts = [facts_of(GRADED[i : i + 1], scores[i : i + 1], top_k=3) for i in range(2)]
    assert parts[0].merged(parts[1]) == facts_of(GRADED, scores, top_k=3)


def test_layouts_agree():
    offsets = torch.tensor([0, 5, 10])
    assert facts_of(GRADED.flatten(), offsets=offsets) == facts_of(GRADED)
    assert facts_of(GRADED.flatten(), indexes=torch.tensor([7] * 5 + [3] * 5)) == facts_of(GRADED)


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        (torch.zeros(0, 3), {}, "no query"),
        (grades([torch.nan, 1.0]), {}, "NaN"),
        (GRADED, {"answers": "some"}, "`answers` must be one of"),
        (GRADED, {"top_k": 0}, "top_k"),
        (GRADED, {"metrics": ["ndgc"]}, "Unknown metric"),
        (GRADED, {"empty_target_action": "none"}, "empty_target_action"),
    ],
)
def test_bad_input(target, options, words):
    with pytest.raises(ValueError, match=words):
        advise(target, **options)
