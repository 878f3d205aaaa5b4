from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_rank.data.synthetic import BayesOptimalScorer, make_ranking
from lightning_rank.metrics import NDCG


def ndcg(data, score) -> float:
    metric = NDCG(10)
    metric.update(score(data.features), data.grades, offsets=data.offsets)
    return metric.compute().item()


def test_the_same_seed_gives_the_same_data_and_splits_share_the_utility():
    first, again, other = make_ranking(20, seed=3), make_ranking(20, seed=3), make_ranking(20, seed=3, split=1)
    assert torch.equal(first.features, again.features)
    assert torch.equal(first.grades, again.grades)
    assert not torch.equal(first.features[:5], other.features[:5])
    without_noise = make_ranking(200, seed=3, split=1, difficulty=0.0)
    assert ndcg(without_noise, BayesOptimalScorer(seed=3)) == pytest.approx(1)


def test_grades_and_lengths_are_as_documented():
    data = make_ranking(2000, min_items=5, max_items=9)
    assert data.lengths.unique().tolist() == [5, 6, 7, 8, 9]
    shares = torch.stack([(data.grades >= grade).double().mean() for grade in (1, 2, 3)])
    assert shares.tolist() == pytest.approx([0.31, 0.115, 0.03], abs=0.02)
    utility = BayesOptimalScorer()(data.features)
    assert utility.mean().item() == pytest.approx(0, abs=0.03)
    assert utility.var().item() == pytest.approx(1, abs=0.05)


def test_difficulty_lowers_what_can_be_reached_and_nothing_beats_the_optimal_scorer():
    torch.manual_seed(0)
    reached = []
    for difficulty in (0.1, 0.4, 0.8):
        data = make_ranking(1000, difficulty=difficulty)
        optimal = BayesOptimalScorer()
        reached.append(ndcg(data, optimal))
        # Even one that is fitted to this very sample, but linear; and the optimal one disturbed.
        linear = torch.linalg.lstsq(data.features, data.grades[:, None]).solution
        assert ndcg(data, lambda x, w=linear: (x @ w)[:, 0]) < reached[-1]
        assert ndcg(data, lambda x, f=optimal: f(x) + 0.3 * torch.randn(len(x))) < reached[-1]
    assert reached[0] > reached[1] > reached[2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"difficulty": 1.0}, "difficulty"),
        ({"difficulty": -0.1}, "difficulty"),
        ({"num_queries": 0}, "num_queries"),
        ({"min_items": 5, "max_items": 4}, "max_items"),
        ({"num_features": 1}, "num_features"),
    ],
)
def test_bad_numbers(options, words):
    with pytest.raises(ValueError, match=words):
        make_ranking(**{"num_queries": 3, **options})


def test_the_scorer_is_a_module_of_any_leading_shape():
    scorer = BayesOptimalScorer(num_features=6)
    assert isinstance(scorer, nn.Module)
    assert scorer(torch.randn(2, 3, 6)).shape == (2, 3)
