"""Intervals of means, the share of a value that ties make, and plots."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from lightning_rank.functional import ndcg, reciprocal_rank, tie_spread
from lightning_rank.metrics import MAP, MRR, NDCG, RankingMetrics


def batch(queries: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(queries, 12, generator=generator), torch.randint(0, 3, (queries, 12), generator=generator)


@pytest.mark.parametrize("queries", [5, 30, 1000])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_interval_is_that_of_students_t(queries, level):
    preds, target = batch(queries)
    metric = NDCG(5)
    for part in range(0, queries, 7):
        metric.update(preds[part : part + 7], target[part : part + 7])
    values = ndcg(preds.double(), target, 5).numpy()
    low, high = stats.t.interval(level, queries - 1, values.mean(), stats.sem(values))
    got = metric.interval(level)
    assert got.value == pytest.approx(values.mean(), rel=1e-6)
    assert got.standard_error == pytest.approx(stats.sem(values), rel=1e-5)
    assert (got.low, got.high) == pytest.approx((low, high), rel=1e-3 if queries < 10 else 1e-5)
    assert got.num_queries == queries


def test_intervals_hold_the_true_mean_as_often_as_they_say():
    truth = ndcg(*batch(20_000, seed=1), 5).mean().item()
    held = 0
    for seed in range(200):
        metric = NDCG(5)
        metric.update(*batch(20, seed=seed + 2))
        _, low, high, *_ = metric.interval(0.9)
        held += low <= truth <= high
    # 200 trials at 0.9 have a standard error of 0.021.
    assert 0.83 <= held / 200 <= 0.96


def test_skipped_queries_do_not_count_and_one_query_has_no_interval():
    preds, target = batch(3)
    target[1:] = 0
    metric = MAP(empty_target_action="skip")
    metric.update(preds, target)
    got = metric.interval()
    assert got.num_queries == 1
    assert math.isnan(got.low)
    assert math.isnan(got.standard_error)


def test_the_same_from_rows_of_ids_and_of_items():
    preds, target = batch(6)
    whole, rows, items = (RankingMetrics(["ndcg@3", "mrr"], prefix="x/") for _ in range(3))
    whole.update(preds, target)
    rows.update(preds, target, indexes=torch.arange(6))
    items.update(preds.flatten(), target.flatten(), torch.arange(6).repeat_interleave(12))
    for other in (rows, items):
        for name, interval in whole.interval().items():
            assert other.interval()[name] == pytest.approx(interval, rel=1e-6)


def test_only_a_mean_has_an_interval():
    metric = MRR(aggregation="median")
    metric.update(*batch(4))
    with pytest.raises(ValueError, match=r"the aggregation is 'median'"):
        metric.interval()
    with pytest.raises(ValueError, match="`level`"):
        NDCG().interval(95)


def test_tie_spread_is_best_minus_worst_order():
    preds, target = torch.tensor([[0.5, 0.5, 0.5, 0.1], [4.0, 3.0, 2.0, 1.0]]), torch.tensor([[0, 0, 1, 1], [0, 1, 0, 0]])
    spread = tie_spread("mrr@2", preds, target)
    assert spread.tolist() == [1.0, 0.0]
    best = reciprocal_rank(preds, target, 2, ties="optimistic")
    worst = reciprocal_rank(preds, target, 2, ties="pessimistic")
    assert torch.equal(spread, best - worst)


def test_tie_spread_takes_layouts_options_and_metrics_without_cutoff():
    preds, target = torch.tensor([1.0, 1.0, 2.0, 2.0]), torch.tensor([0, 2, 0, 1])
    offsets = torch.tensor([0, 2, 4])
    assert (tie_spread("ndcg", preds, target, offsets=offsets, gain="linear") > 0).all()
    assert tie_spread("auc", preds, target, offsets=offsets).tolist() == [1, 1]
    assert tie_spread("mrr", preds, target, offsets=offsets, min_relevance=2)[1].isnan()
    assert (tie_spread("fall_out@1", preds, target, offsets=offsets) > 0).all()
    with pytest.raises(ValueError, match="Unknown metric"):
        tie_spread("ndgc", preds, target)


def test_plots(tmp_path):
    plt = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    plt.switch_backend("agg")
    metrics = RankingMetrics(["ndcg@5", "map", "ndcg@1"])
    metrics.update(*batch(9))
    figure, ax = metrics.plot()
    values = metrics.compute()
    curve, line = ax.get_lines()
    assert curve.get_xdata().tolist() == [1, 5]
    assert curve.get_ydata().tolist() == pytest.approx([values["ndcg@1"].item(), values["ndcg@5"].item()])
    assert line.get_ydata()[0] == pytest.approx(values["map"].item())
    figure.savefig(tmp_path / "curve.png")
    single = NDCG(5)
    single.update(*batch(9))
    figure, ax = single.plot()
    assert ax.get_lines()[0].get_ydata()[0] == pytest.approx(single.compute().item())
    plt.close("all")
