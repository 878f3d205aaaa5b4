"""Losses of each item by itself, averaged over the items of a query so that long lists do not dominate."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from lightning_rank.functional.batch import Batch


def pointwise_bce(batch: Batch) -> tuple[Tensor, Tensor]:
    """Mean over the items of the cross-entropy of the target, in [0, 1], and sigmoid(score): scores become probabilities.

    Targets above 1 are refused: divide grades by the largest there is, for graded relevance, or pass ``target > 0``.
    """
    return _mean(batch, binary_cross_entropy_with_logits(batch.score, batch.grade, reduction="none"))


def pointwise_mse(batch: Batch) -> tuple[Tensor, Tensor]:
    """Mean over the items of (score - grade)^2: scores become grades."""
    return _mean(batch, (batch.score - batch.grade).square())


def ordinal(batch: Batch) -> tuple[Tensor, Tensor]:
    """Mean over the items of the sum over k of the binary cross-entropy of logit k and grade >= k, for k = 1..K.

    ``preds`` has the K logits of an item on a last axis; to rank items, sum their sigmoids (the expected grade). Grades above
    K are refused.

    Source: Cheng, Wang and Pollastri, "A neural network approach to ordinal regression", IJCNN 2008.
    """
    logits = batch.score
    threshold = torch.arange(1, logits.shape[-1] + 1, device=logits.device, dtype=logits.dtype)
    reached = (batch.grade.unsqueeze(-1) >= threshold).to(logits.dtype)
    return _mean(batch, binary_cross_entropy_with_logits(logits, reached, reduction="none").sum(-1))


def _mean(batch: Batch, terms: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean over the items of each query; what has a positive weight has signal."""
    lists = batch.lists
    weight = torch.ones_like(terms) * lists.valid if batch.weight is None else batch.weight
    total = lists.sum(weight)
    value = lists.sum(torch.where(weight > 0, weight * terms, 0.0)) / torch.where(total > 0, total, 1.0)
    return value, total > 0
