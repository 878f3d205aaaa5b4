from __future__ import annotations

import pytest
import torch

from lightning_rank.models import FeatureTransform, LinearScorer, MLPScorer


def test_standardize_gives_mean_0_and_deviation_1_and_zero_for_a_constant():
    features = torch.cat([torch.randn(100, 3) * torch.tensor([1.0, 1e3, 1e-3]) + 5, torch.full((100, 1), 7.1)], 1)
    transform = FeatureTransform("standardize")
    transform.fit(features)
    out = transform(features)
    torch.testing.assert_close(out.mean(0), torch.zeros(4), atol=1e-3, rtol=0)
    torch.testing.assert_close(out.std(0, correction=0), torch.tensor([1.0, 1, 1, 0]), atol=1e-3, rtol=0)


def test_log1p_is_symmetric():
    transform = FeatureTransform("log1p")
    assert transform(torch.tensor([-1e6, 0.0, 1e6])).tolist() == pytest.approx([-13.8155, 0, 13.8155], abs=1e-3)


def test_none_changes_nothing_though_fitted():
    transform = FeatureTransform("none")
    transform.fit(torch.randn(5, 2))
    x = torch.randn(3, 2)
    assert transform(x) is x


@pytest.mark.parametrize("make", [LinearScorer, lambda **o: MLPScorer([8, 4], dropout=0.5, normalization="layer", **o)])
def test_what_was_learnt_is_in_the_state_and_loads_into_a_scorer_that_has_seen_nothing(make):
    features = torch.randn(20, 5) * 3 + 1
    trained = make(transform="log1p")
    trained.fit_features(features)
    fresh = make(transform="log1p")
    fresh.load_state_dict(trained.state_dict())
    x = torch.randn(2, 7, 5)
    assert torch.equal(fresh.eval()(x), trained.eval()(x))
    assert fresh(x).shape == (2, 7)


def test_items_are_scored_alone():
    scorer = MLPScorer([8], num_features=3, normalization="layer").eval()
    x = torch.randn(4, 6, 3)
    torch.testing.assert_close(scorer(x)[1, 2], scorer(x[1, 2][None, None])[0, 0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"transform": "sqrt"}, "`transform` must be one of"),
        ({"normalization": "batch"}, "`normalization` must be one of"),
        ({"dropout": 1.0}, "`dropout`"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(ValueError, match=words):
        MLPScorer(**options)


def test_there_must_be_data_to_learn_from():
    with pytest.raises(ValueError, match="no item"):
        FeatureTransform().fit(torch.zeros(0, 3))
