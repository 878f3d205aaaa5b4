"""Pure functions: one per metric and one per loss, from scores and grades to per-query values."""

from lightning_rank.functional.losses import LOSSES
from lightning_rank.functional.losses import on_lists as _loss
from lightning_rank.functional.metrics import METRICS
from lightning_rank.functional.metrics import on_lists as _metric

dcg = _metric(METRICS["dcg"])
ndcg = _metric(METRICS["ndcg"])
average_precision = _metric(METRICS["map"])
reciprocal_rank = _metric(METRICS["mrr"])
precision = _metric(METRICS["precision"])
recall = _metric(METRICS["recall"])
hit_rate = _metric(METRICS["hit_rate"])

approx_ndcg_loss = _loss(LOSSES["approx_ndcg"])
softmax_loss = _loss(LOSSES["softmax"])
listnet_loss = _loss(LOSSES["listnet"])

__all__ = [
    "approx_ndcg_loss",
    "average_precision",
    "dcg",
    "hit_rate",
    "listnet_loss",
    "ndcg",
    "precision",
    "recall",
    "reciprocal_rank",
    "softmax_loss",
]
