from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_rank import models
from lightning_rank.models import FeatureTransform, LinearScorer, MLPScorer, SelfAttentionScorer
from tests.conftest import SEEDS


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


SCORERS = (
    LinearScorer,
    lambda **options: MLPScorer([8, 4], dropout=0.5, normalization="layer", **options),
    lambda **options: SelfAttentionScorer(width=8, dropout=0.5, **options),
)


@pytest.mark.parametrize("make", SCORERS)
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


def attention(**options: object) -> SelfAttentionScorer:
    """In float64, so that what must be equal is equal within rounding."""
    return SelfAttentionScorer(**{"num_features": 3, "width": 8, "blocks": 2, "dropout": 0.0, **options}).double()


SIZES = st.lists(st.integers(0, 6), min_size=1, max_size=4)


@given(SIZES, st.integers(0, 3), st.sampled_from((float("nan"), float("inf"), 1e300)), SEEDS)
def test_attention_sees_neither_padding_nor_other_queries_nor_order(sizes, extra, garbage, seed):
    """A padded, mixed-up batch gives the scores and the gradients of its queries one by one."""
    torch.manual_seed(seed)
    scorer = attention()
    queries = [torch.randn(size, 3, dtype=torch.float64) for size in sizes]
    wanted = torch.randn(len(sizes), 6, dtype=torch.float64)  # what each score is multiplied by in the sum that is derived

    alone = [scorer(query.unsqueeze(0)).squeeze(0) for query in queries]
    sum((scores * weights[: len(scores)]).sum() for scores, weights in zip(alone, wanted, strict=True)).backward()
    gradients = [parameter.grad.clone() for parameter in scorer.parameters()]
    scorer.zero_grad()

    width = max(sizes) + extra
    features = torch.full((len(sizes), width, 3), garbage, dtype=torch.float64)
    mask = torch.zeros(len(sizes), width, dtype=torch.bool)
    places = [torch.randperm(width)[:size] for size in sizes]
    for row, (query, slots) in enumerate(zip(queries, places, strict=True)):
        features[row, slots], mask[row, slots] = query, True
    scores = scorer(features, mask=mask)
    assert scores.isfinite().all()
    together = [scores[row, slots] for row, slots in enumerate(places)]
    sum((scores * weights[: len(scores)]).sum() for scores, weights in zip(together, wanted, strict=True)).backward()

    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-9)
    for expected, parameter in zip(gradients, scorer.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-9, atol=1e-9)


def test_attention_scores_an_item_in_view_of_the_others():
    torch.manual_seed(0)
    scorer, x = attention(), torch.randn(1, 4, 3, dtype=torch.float64)
    other = x.clone()
    other[0, 3] += 1
    assert ((scorer(x) - scorer(other))[0, :3].abs() > 1e-4).all()
    # Nor does a score hang on the others alone.
    assert scorer(x)[0].unique().numel() == 4


def test_attention_reaches_every_parameter_and_feature():
    torch.manual_seed(0)
    scorer, x = attention(), torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(scorer, x)
    (scorer(x) ** 2).sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in scorer.parameters())
    assert (x.grad.abs() > 0).all()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0), (3, 4)])
def test_attention_over_nothing_is_no_nan(shape, training):
    scorer = attention(dropout=0.5).train(training)
    features = torch.full((*shape, 3), torch.nan, dtype=torch.float64)
    scores = scorer(features, mask=torch.zeros(shape, dtype=torch.bool))
    assert scores.shape == shape
    scores.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in scorer.parameters())


def test_attention_takes_any_leading_axes():
    scorer, x = attention(), torch.randn(2, 5, 4, 3, dtype=torch.float64)
    mask = torch.rand(2, 5, 4) < 0.7
    scores = scorer(x, mask)
    torch.testing.assert_close(scores[1], scorer(x[1], mask[1]))
    torch.testing.assert_close(scores[1, 2], scorer(x[1, 2], mask[1, 2]))


def test_attention_drops_units_in_training_only():
    scorer, x = attention(dropout=0.5), torch.randn(2, 4, 3, dtype=torch.float64)
    assert not torch.equal(scorer(x), scorer(x))
    scorer.eval()
    assert torch.equal(scorer(x), scorer(x))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"transform": "sqrt"}, "`transform` must be one of"),
        ({"width": 10, "heads": 4}, "`width` must be a multiple of `heads`, got 10 and 4"),
        ({"blocks": 0}, "`blocks` must be a whole number >= 1, got 0"),
        ({"heads": 1.0}, "`heads` must be a whole number >= 1"),
        ({"dropout": 1.0}, "`dropout`"),
    ],
)
def test_bad_options_of_attention(options, words):
    with pytest.raises(ValueError, match=words):
        SelfAttentionScorer(**options)


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


@pytest.mark.parametrize("kind", ["standardize", "log1p"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_scale_of_features_is_learnt_some_items_at_a_time(monkeypatch, kind, dtype):
    generator = torch.Generator().manual_seed(0)
    features = (torch.randn(1000, 5, generator=generator) * 3 + torch.tensor([0.0, 50, -7, 0, 1])).to(dtype)
    features[:, 3] = 4.0
    whole, parts = FeatureTransform(kind), FeatureTransform(kind)
    whole.fit(features)
    monkeypatch.setattr(models, "_ITEMS_AT_A_TIME", 17)
    parts.fit(features)
    torch.testing.assert_close(parts.mean, whole.mean)
    torch.testing.assert_close(parts.scale, whole.scale)
    exact = features.double() if kind == "standardize" else features.double().sign() * features.double().abs().log1p()
    torch.testing.assert_close(parts.mean, exact.mean(0).float())
    deviation = (1 / exact.std(0, correction=0)[[0, 1, 2, 4]]).float()
    torch.testing.assert_close(parts.scale[[0, 1, 2, 4]], deviation)
    assert parts.scale[3] == 0
