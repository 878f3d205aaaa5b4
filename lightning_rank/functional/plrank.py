"""The Plackett-Luce policy gradient of NDCG."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_rank.conventions import Gain, discount
from lightning_rank.functional.batch import Batch, gumbel_noise
from lightning_rank.functional.levels import Places, centred, with_gradient


def plrank(
    batch: Batch,
    *,
    top_k: int | None = None,
    gain: Gain = "exp2",
    num_samples: int = 16,
    generator: torch.Generator | None = None,
    noise: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """1 - the expected NDCG when rankings are drawn by picking items with probability exp(score) (Plackett-Luce).

    Value and gradient are estimated from ``num_samples`` rankings, drawn as scores with Gumbel noise from ``generator``, or
    with explicit ``noise`` [sample, *shape of ``preds``]; the gradient (PL-Rank-3) has no bias and far less variance than
    REINFORCE. O(n log n) for each sample. The gradient of one sample does not sum to 0 over the items; its expectation does.

    Source: Oosterhuis, "Computationally efficient optimization of Plackett-Luce ranking models for relevance and fairness",
    SIGIR 2021; "Learning-to-rank at the speed of sampling", SIGIR 2022.
    """
    lists, score = batch.lists, centred(batch)
    gains = batch.gains(gain, scaled=True).detach().to(score.dtype)
    best, signal = ideal_dcg(batch, gains, top_k)
    reward = gains / lists.spread(best)
    if noise is None:
        noise = gumbel_noise(num_samples, score, generator)
    gradient, drawn = torch.zeros_like(score), torch.zeros_like(score)
    for sample in noise.to(score.dtype).unbind(0):
        one_drawn, one_gradient = _one_sample(batch, score, reward, score + sample, top_k)
        drawn, gradient = drawn + one_drawn, gradient + one_gradient
    value = 1 - with_gradient(batch, drawn / len(noise), gradient / len(noise))
    return value, signal


def _one_sample(batch: Batch, score: Tensor, reward: Tensor, perturbed: Tensor, top_k: int | None) -> tuple[Tensor, Tensor]:
    """Discounted rewards of the items at the places of one ranking, and the gradient of their expected sum."""
    places = Places(batch, perturbed)
    score, reward = places.take(score), places.take(reward)
    discounts = discount((places.place + 1).to(score.dtype))
    if top_k is not None:
        discounts = torch.where(places.place < top_k, discounts, 0.0)
    drawn = torch.where(places.valid, discounts * reward, 0.0)
    # What is won from this place on, and what there was to choose from; in logarithms, as only their quotients are moderate.
    won = places.sum_from_here(drawn)
    log_left = places.log_sum_from_here(score)
    direct = reward * torch.exp(score + places.log_sum_to_here(discounts.log() - log_left))
    risk = torch.exp(score + places.log_sum_to_here(won.log() - log_left))
    return drawn, places.put_back(won - drawn + direct - risk)


def ideal_dcg(batch: Batch, gains: Tensor, top_k: int | None) -> tuple[Tensor, Tensor]:
    """``[Q]`` the largest DCG of the gains, 1 where there is none, and whether there is."""
    places = Places(batch, gains)
    discounts = discount((places.place + 1).to(gains.dtype))
    if top_k is not None:
        discounts = torch.where(places.place < top_k, discounts, 0.0)
    best = batch.lists.sum(torch.where(places.valid, places.take(gains) * discounts, 0.0))
    return torch.where(best > 0, best, 1.0), best > 0
