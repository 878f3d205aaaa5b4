"""Losses that compare distributions over the items of a query."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_rank.conventions import Gain
from lightning_rank.functional.batch import Batch


def softmax(batch: Batch, *, gain: Gain = "linear") -> tuple[Tensor, Tensor]:
    """Cross-entropy between the gains and the softmax of the scores: - sum of gain * log softmax(score).

    Source: Bruch et al., "An analysis of the softmax cost function for learning to rank", ICTIR 2019.
    """
    gains = batch.gains(gain, scaled=False)
    value = -batch.lists.sum(torch.where(gains != 0, gains * batch.log_softmax(batch.score), 0.0))
    return value, batch.lists.sum(gains) > 0


def listnet(batch: Batch) -> tuple[Tensor, Tensor]:
    """Cross-entropy between the softmax of the grades and the softmax of the scores (top-one probabilities).

    Source: Cao et al., "Learning to rank: from pairwise approach to listwise approach", ICML 2007.
    """
    wanted = batch.log_softmax(batch.grade).exp() * batch.lists.valid
    if batch.weight is not None:
        wanted = wanted * batch.weight
    value = -batch.lists.sum(torch.where(wanted != 0, wanted * batch.log_softmax(batch.score), 0.0))
    return value, batch.relevant()
