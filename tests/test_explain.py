from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_rank import functional
from lightning_rank.explain import explain

ARTICLE = torch.tensor([3, 1, 2, 0, 3, 1, 2, 0])


def test_each_position_of_the_article_example():
    result = explain(torch.arange(8, 0, -1), ARTICLE, top_k=5, gain="linear")
    assert [p.grade for p in result.positions] == ARTICLE.tolist()
    assert [p.rank for p in result.positions] == list(range(1, 9))
    assert result.positions[4].dcg == pytest.approx(5.791488, abs=1e-6)
    assert result.positions[4].ideal_dcg == pytest.approx(7.140995, abs=1e-6)
    assert result.positions[2].dcg == pytest.approx(4.630930, abs=1e-6)
    assert [p.ideal_grade for p in result.positions] == sorted(ARTICLE.tolist(), reverse=True)
    assert [p.precision for p in result.positions] == [1, 1, 1, None, 0.8, None, None, None]
    assert [p.reciprocal_rank for p in result.positions] == [1, *[None] * 7]
    assert all(p.contribution == p.discount == 0 for p in result.positions[5:])
    assert result.values["ndcg"] == pytest.approx(0.811020, abs=1e-6)
    assert result.values["map"] == pytest.approx(0.633333, abs=1e-6)


@given(
    st.lists(st.tuples(st.floats(-9, 9), st.integers(-1, 4)), min_size=1, max_size=8, unique_by=lambda pair: pair[0]),
    st.none() | st.integers(1, 9),
)
def test_the_positions_add_up_to_the_metrics(items, top_k):
    preds, target = (torch.tensor(column, dtype=torch.float64) for column in zip(*items, strict=True))
    result = explain(preds, target, top_k=top_k)
    within = result.positions[:top_k]
    assert [preds[p.item].item() for p in result.positions] == sorted(preds.tolist(), reverse=True)
    if target.max() > 0:
        assert within[-1].dcg == pytest.approx(result.values["dcg"])
        assert within[-1].dcg / within[-1].ideal_dcg == pytest.approx(result.values["ndcg"])
    if (target >= 1).any():
        precisions = [p.precision for p in within if p.precision is not None]
        assert sum(precisions) / (target >= 1).sum().item() == pytest.approx(result.values["map"])
        assert sum(p.reciprocal_rank or 0 for p in within) == pytest.approx(result.values["mrr"])
    assert result.values["ndcg"] == pytest.approx(functional.ndcg(preds, target, top_k).item(), nan_ok=True)


def test_padding_is_left_out_and_items_are_counted_in_the_input():
    preds, target = torch.tensor([[torch.nan, 0.5, 9.0, 0.7]]), torch.tensor([[9, 1, 9, 0]])
    result = explain(preds, target, mask=torch.tensor([[False, True, False, True]]))
    assert [(p.item, p.grade) for p in result.positions] == [(3, 0), (1, 1)]


def test_ties_are_marked_and_said():
    result = explain(torch.tensor([0.5, 0.9, 0.5]), torch.tensor([0, 0, 1]))
    assert [p.tied for p in result.positions] == [False, True, True]
    text = str(result)
    assert "2=" in text
    assert "means over all" in text
    assert result.values["mrr"] == pytest.approx((1 / 2 + 1 / 3) / 2)


def test_plain_data_for_json():
    result = explain(torch.tensor([0.5, 0.9]), torch.tensor([0, 1]), gain=[0, 1])
    data = json.loads(json.dumps(result.to_dict()))
    assert data["positions"][0]["item"] == 1
    assert data["values"]["ndcg"] == 1


@pytest.mark.parametrize(
    ("args", "options", "words"),
    [
        ((torch.rand(2, 3), torch.ones(2, 3)), {}, "one query, got 2"),
        ((torch.rand(3), torch.ones(2)), {}, "shape"),
        ((torch.tensor([torch.nan]), torch.ones(1)), {}, "NaN"),
        ((torch.rand(3), torch.ones(3)), {"top_k": 0}, "top_k"),
        ((torch.rand(3), torch.ones(3)), {"gain": "cubic"}, "gain"),
        ((torch.rand(3), torch.ones(3)), {"min_relevance": 0}, "min_relevance"),
    ],
)
def test_bad_input(args, options, words):
    with pytest.raises(ValueError, match=words):
        explain(*args, **options)
