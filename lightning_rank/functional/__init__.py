"""Pure functions: one per metric and one per loss, from scores and grades to per-query values."""

from lightning_rank.functional.in_batch import in_batch_softmax_loss
from lightning_rank.functional.losses import LOSSES
from lightning_rank.functional.losses import on_lists as _loss
from lightning_rank.functional.metrics import METRICS, tie_spread
from lightning_rank.functional.metrics import on_lists as _metric
from lightning_rank.functional.retrieval import top_items
from lightning_rank.functional.smooth import smooth

dcg = _metric(METRICS["dcg"])
ndcg = _metric(METRICS["ndcg"])
average_precision = _metric(METRICS["map"])
reciprocal_rank = _metric(METRICS["mrr"])
precision = _metric(METRICS["precision"])
recall = _metric(METRICS["recall"])
hit_rate = _metric(METRICS["hit_rate"])
f1 = _metric(METRICS["f1"])
r_precision = _metric(METRICS["r_precision"])
expected_reciprocal_rank = _metric(METRICS["err"])
rank_biased_precision = _metric(METRICS["rbp"])
bpref = _metric(METRICS["bpref"])
auc = _metric(METRICS["auc"])
fall_out = _metric(METRICS["fall_out"])

approx_ndcg_loss = _loss(LOSSES["approx_ndcg"])
approx_mrr_loss = _loss(LOSSES["approx_mrr"])
approx_map_loss = _loss(LOSSES["approx_map"])
ranknet_loss = _loss(LOSSES["ranknet"])
lambdarank_loss = _loss(LOSSES["lambdarank"])
lambda_loss = _loss(LOSSES["lambda"])
pairwise_hinge_loss = _loss(LOSSES["pairwise_hinge"])
softmax_loss = _loss(LOSSES["softmax"])
listnet_loss = _loss(LOSSES["listnet"])
unique_softmax_loss = _loss(LOSSES["unique_softmax"])
listmle_loss = _loss(LOSSES["listmle"])
plistmle_loss = _loss(LOSSES["plistmle"])
xendcg_loss = _loss(LOSSES["xendcg"])
neural_ndcg_loss = _loss(LOSSES["neural_ndcg"])
plrank_loss = _loss(LOSSES["plrank"])
ordinal_loss = _loss(LOSSES["ordinal"])
pointwise_bce_loss = _loss(LOSSES["pointwise_bce"])
pointwise_mse_loss = _loss(LOSSES["pointwise_mse"])

__all__ = [
    "approx_map_loss",
    "approx_mrr_loss",
    "approx_ndcg_loss",
    "auc",
    "average_precision",
    "bpref",
    "dcg",
    "expected_reciprocal_rank",
    "f1",
    "fall_out",
    "hit_rate",
    "in_batch_softmax_loss",
    "lambda_loss",
    "lambdarank_loss",
    "listmle_loss",
    "listnet_loss",
    "ndcg",
    "neural_ndcg_loss",
    "ordinal_loss",
    "pairwise_hinge_loss",
    "plistmle_loss",
    "plrank_loss",
    "pointwise_bce_loss",
    "pointwise_mse_loss",
    "precision",
    "r_precision",
    "rank_biased_precision",
    "ranknet_loss",
    "recall",
    "reciprocal_rank",
    "smooth",
    "softmax_loss",
    "tie_spread",
    "top_items",
    "unique_softmax_loss",
    "xendcg_loss",
]
