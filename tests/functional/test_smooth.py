"""Metrics as losses, over the table of metrics: against the metric itself, the losses written by hand, and double loops."""

from __future__ import annotations

import math
import pickle

import pytest
import torch

from lightning_rank import SmoothLoss, functional
from lightning_rank.functional import smooth
from lightning_rank.functional.metrics import METRICS

F64 = torch.float64
TARGET = torch.tensor([[3, 0, 1, 0, 2, 0], [0, 1, 0, 0, 2, 1]])


def scores(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 6, generator=generator, dtype=F64).requires_grad_()


def name_of(spec) -> str:
    return f"{spec.name}@3" if spec.takes_top_k else spec.name


every_metric = pytest.mark.parametrize("spec", METRICS.values(), ids=METRICS)


@every_metric
def test_gradient_is_finite_and_alive_in_every_layout(spec):
    preds = scores()
    loss = smooth(name_of(spec), temperature=0.5)
    value = loss(preds, TARGET)
    (gradient,) = torch.autograd.grad(value, preds)
    assert value.isfinite()
    assert gradient.isfinite().all()
    assert (gradient.abs().amax(1) > 1e-4).all()
    # Above all, what raises the relevant items lowers the loss.
    assert (gradient * (TARGET >= 1)).sum() < 0

    flat = preds.detach().flatten().requires_grad_()
    same = loss(flat, TARGET.flatten(), offsets=torch.tensor([0, 6, 12]))
    (flat_gradient,) = torch.autograd.grad(same, flat)
    torch.testing.assert_close(same, value)
    torch.testing.assert_close(flat_gradient.view(2, 6), gradient)

    wide = torch.cat([preds.detach(), torch.full((2, 2), 9.0, dtype=F64)], 1).requires_grad_()
    mask = torch.arange(8).expand(2, 8) < 6
    masked = loss(wide, torch.cat([TARGET, torch.full((2, 2), 3)], 1), mask=mask)
    (wide_gradient,) = torch.autograd.grad(masked, wide)
    torch.testing.assert_close(masked, value)
    torch.testing.assert_close(wide_gradient[:, :6], gradient)
    assert not wide_gradient[:, 6:].any()


@every_metric
def test_gradient_is_that_of_the_value(spec):
    loss = smooth(name_of(spec), temperature=0.7)
    assert torch.autograd.gradcheck(lambda preds: loss(preds, TARGET, reduction="none"), scores(3))


@pytest.mark.parametrize(
    "spec", [s for s in METRICS.values() if not s.needs_cutoff and s.name != "r_precision"], ids=lambda s: s.name
)
def test_without_a_cutoff_a_low_temperature_is_the_metric(spec):
    preds = scores(1).detach()
    metric = getattr(functional, spec.function.__name__)(preds, TARGET)
    value = smooth(spec.name, temperature=1e-4)(preds, TARGET, reduction="none")
    torch.testing.assert_close(value, 1 - metric if spec.bounded else -metric)


@pytest.mark.parametrize("spec", [s for s in METRICS.values() if s.takes_top_k], ids=lambda s: s.name)
def test_a_cutoff_counts_by_the_sigmoid_of_the_smooth_rank(spec):
    # At a temperature near 0 ranks are whole, so that the sigmoid of the cutoff is all that is smooth.
    preds, target = torch.tensor([[4.0, 3.0, 2.0, 1.0]], dtype=F64), torch.tensor([[1, 0, 2, 0]])
    cut = [1 / (1 + math.exp(rank - 2.5)) for rank in (1, 2, 3, 4)]
    gain, seen = (1, 0, 3, 0), [0.2 * 0.8**rank for rank in range(4)]
    dcg = sum(g / math.log2(rank + 2) * c for rank, (g, c) in enumerate(zip(gain, cut, strict=True)))
    hits = cut[0] + cut[2]
    wanted = {
        "dcg": -dcg,
        "ndcg": 1 - dcg / (3 + 1 / math.log2(3)),
        "map": 1 - (cut[0] + cut[2] * 2 / 3) / 2,
        "mrr": 1 - cut[0],
        "precision": 1 - hits / 2,
        "recall": 1 - hits / 2,
        "f1": 1 - 2 * hits / 4,
        "hit_rate": 1 - cut[0],
        "err": 1 - (1 / 16 * cut[0] + 15 / 16 * 3 / 16 / 3 * cut[2]),
        "rbp": 1 - (seen[0] * cut[0] + seen[2] * cut[2]),
        "fall_out": (cut[1] + cut[3]) / 2,
    }[spec.name]
    assert smooth(f"{spec.name}@2", temperature=1e-3)(preds, target).item() == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(
    ("metric", "options", "loss"),
    [
        ("ndcg", {}, "approx_ndcg"),
        ("ndcg@3", {"gain": "linear"}, "approx_ndcg"),
        ("mrr", {}, "approx_mrr"),
        ("mrr@2", {"min_relevance": 2}, "approx_mrr"),
        ("map", {}, "approx_map"),
        ("map@3", {"denominator": "cutoff"}, "approx_map"),
    ],
)
def test_equals_the_losses_that_are_smooth_metrics(metric, options, loss):
    preds, top_k = scores(2), int(metric.partition("@")[2] or 6)
    value = smooth(metric, temperature=0.3, **options)(preds, TARGET)
    shared = {name: option for name, option in options.items() if name != "denominator"}
    wanted = getattr(functional, f"{loss}_loss")(preds, TARGET, temperature=0.3, top_k=top_k, **shared)
    torch.testing.assert_close(value, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(x, preds)[0] for x in (value, wanted)))


def cubic_rank(ranking, *, min_relevance=1):
    """A metric of one's own."""
    relevant = ranking.relevant(min_relevance)
    total = ranking.sum(relevant)
    return torch.where(total > 0, ranking.sum(relevant / ranking.rank**3) / total.clamp(min=1), torch.nan)


def test_a_metric_of_ones_own():
    preds, target = scores(), TARGET.clone()
    target[1] = 0
    values = smooth(cubic_rank, temperature=0.5, min_relevance=2)(preds, target, reduction="none")
    x = preds[0].detach()
    rank = [0.5 + torch.sigmoid((x - x[i]) / 0.5).sum().item() for i in range(6)]
    assert values.tolist() == pytest.approx([1 - (rank[0] ** -3 + rank[4] ** -3) / 2, 0])
    # The query without a value has no part in the mean.
    torch.testing.assert_close(smooth(cubic_rank, temperature=0.5, min_relevance=2)(preds, target), values[0])


def test_long_lists_take_the_near_linear_ranks():
    generator = torch.Generator().manual_seed(0)
    preds = torch.randn(1, 20_000, generator=generator, dtype=F64).requires_grad_()
    target = (torch.rand(1, 20_000, generator=generator) < 0.3).long()
    (gradient,) = torch.autograd.grad(smooth("ndcg@100")(preds, target), preds)
    (wanted,) = torch.autograd.grad(functional.approx_ndcg_loss(preds, target, top_k=100), preds)
    torch.testing.assert_close(gradient, wanted)


def test_query_weights():
    preds, weight = scores(), torch.tensor([1.0, 3.0])
    values = smooth("err")(preds, TARGET, reduction="none")
    torch.testing.assert_close(smooth("err")(preds, TARGET, weight=weight), (values * weight).sum() / 4)
    with pytest.raises(ValueError, match="a weight per query"):
        smooth("err")(preds, TARGET, weight=torch.ones(2, 6))


@pytest.mark.parametrize(
    ("metric", "options", "message"),
    [
        ("recall", {}, "give a cutoff: 'recall@10'"),
        ("err", {"gain": "linear"}, "`gain` means nothing for a smooth err"),
        ("err", {"ties": "stable"}, "`ties` means nothing"),
        ("auc@3", {}, "takes no cutoff"),
        ("ndgc", {}, "ndcg"),
        ("err", {"temperature": 0}, "`temperature`"),
        ("rbp", {"p": 2}, "`p`"),
    ],
)
def test_what_means_nothing_is_refused(metric, options, message):
    with pytest.raises(ValueError, match=message):
        smooth(metric, **options)


def test_what_is_no_metric_is_refused():
    with pytest.raises(TypeError, match="`metric` must be a name"):
        smooth(3)


@pytest.mark.parametrize("metric", ["err@10", cubic_rank], ids=["name", "function"])
def test_module(metric):
    loss = SmoothLoss(metric, temperature=0.5, reduction="sum")
    again = pickle.loads(pickle.dumps(loss))
    assert repr(again) == repr(loss)
    torch.testing.assert_close(again(scores(), TARGET), smooth(metric, temperature=0.5)(scores(), TARGET, reduction="sum"))
    with pytest.raises(ValueError, match="reduction"):
        SmoothLoss(metric, reduction="median")


@pytest.mark.parametrize("spec", METRICS.values(), ids=METRICS)
def test_metrics_that_need_a_cutoff_do_not_depend_on_the_order(spec):
    metric, preds = getattr(functional, spec.function.__name__), scores().detach()
    assert torch.equal(metric(preds, TARGET), metric(-preds, TARGET)) == spec.needs_cutoff
