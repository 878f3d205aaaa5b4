"""Metrics turned into losses: what is written on a ranking is computed on smooth ranks instead."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lightning_rank.conventions import check_number, sum_dtype
from lightning_rank.functional.approximate import shares_of_largest
from lightning_rank.functional.batch import Batch
from lightning_rank.functional.losses import LossSpec, on_lists
from lightning_rank.functional.metrics import MetricSpec, check_options, parse_name
from lightning_rank.functional.ranking import Judged, Ranking
from lightning_rank.functional.soft_ranks import soft_ranks


class SmoothRanking(Ranking):
    """A ranking whose items stay in the order of arrival and have smooth ranks; its expectations are smooth counts.

    Attributes:
        rank: 1 + the sum over the other items of sigmoid((their score - the item's) / temperature).
    """

    def __init__(self, batch: Batch, temperature: float) -> None:
        judged = Judged(batch.lists, batch.grade.detach(), None, None, batch.grade.dtype)
        super().__init__(batch.lists, batch.grade, None, batch.lists.lengths, None, judged, None, None)
        self._score, self._temperature = batch.score, temperature
        self.rank, _ = soft_ranks(batch.lists, batch.score, temperature=temperature)

    def _down_to(self, counted: Tensor) -> Tensor:
        """The smooth sum of an item value over the items down to each, itself included."""
        return soft_ranks(self.lists, self._score, temperature=self._temperature, counted=counted)[1]

    def head(self, top_k: int | None) -> Ranking:
        return self

    def within(self, limit: Tensor) -> Tensor:
        return torch.sigmoid(self.lists.spread(limit) + 0.5 - self.rank).to(self.rank.dtype)

    def sum(self, values: Tensor, top_k: int | None = None) -> Tensor:
        if top_k is not None:
            whole = self.lists.spread(self.lists.lengths <= top_k)
            values = values * torch.where(whole, 1.0, torch.sigmoid(top_k + 0.5 - self.rank))
        return self.lists.sum(values.to(sum_dtype(values.device)))

    def expected_precision(self, min_relevance: float) -> Tensor:
        relevant = self.relevant(min_relevance)
        return relevant * self._down_to(relevant) / self.rank

    def others_above_and_tied(self, min_relevance: float, *, known: bool) -> tuple[Tensor, Tensor]:
        other = self.other(min_relevance, known=known)
        return self._down_to(other) - other, torch.zeros_like(other)

    def chance_of_first(self, min_relevance: float) -> Tensor:
        """1 at the relevant item of the smallest rank; items that are equal in it share."""
        relevant = self.relevant(min_relevance)
        return shares_of_largest(self.lists, relevant / self.rank, relevant > 0)

    def chance_to_stop(self, satisfied: Tensor) -> Tensor:
        passing = torch.log1p(-satisfied).clamp(min=-1000)
        return torch.exp(self._down_to(passing) - passing) * satisfied


def smooth(
    metric: str | MetricSpec | Callable[..., Tensor], *, temperature: float = 1.0, **options: Any
) -> Callable[..., Tensor]:
    """Turn a metric into a loss: 1 - its value where ranks are smooth (-DCG, which has no best value; fall-out itself).

    The smooth rank of an item is 1 + the sum over the others of sigmoid((their score - the item's) / temperature); a cutoff
    counts an item by sigmoid(top_k + 1/2 - rank), so that one below it is still pulled in. As the temperature falls, the loss
    becomes that of the metric, but for items next to a cutoff; a small one has small gradients where scores lie far apart.
    O(items log items) time.

    Args:
        metric: a name such as ``"err@10"``, a row of the table of metrics, or a function of your own, from a ``Ranking`` to
            ``[query]`` values in [0, 1] (NaN: the query has none), written on what a ``Ranking`` offers.
        temperature: as above.
        options: the metric's own, such as ``gain="linear"``; also ``top_k`` for a row of the table.

    Returns:
        A loss with the arguments of all others: ``loss(preds, target, mask=, indexes=, offsets=, weight=, reduction=,
        global_mean=)``; a weight is one per query.

    Raises:
        ValueError: an unknown name, an option that means nothing, or a metric that does not depend on the order, such as
            recall without a cutoff.
        TypeError: no metric.

    Example:
        >>> import torch
        >>> loss = smooth("err@10", temperature=0.5)
        >>> scores = torch.tensor([[0.2, 1.5, -0.3]], requires_grad=True)
        >>> loss(scores, torch.tensor([[2, 0, 1]])).backward()
        >>> bool(scores.grad[0, 0] < 0 < scores.grad[0, 1])
        True

    Source: Qin, Liu and Li, "A general approximation framework for direct optimization of information retrieval measures",
    Information Retrieval 2010.
    """
    check_number("temperature", temperature, above=0)
    if isinstance(metric, str):
        metric, top_k = parse_name(metric)
        if top_k is not None:
            options["top_k"] = top_k
    if isinstance(metric, MetricSpec):
        values, name = _values_of(metric, **options), metric.name
    elif callable(metric):
        values, name = partial(metric, **options), getattr(metric, "__name__", "metric")
    else:
        raise TypeError(
            f"`metric` must be a name, a row of METRICS or a function of a Ranking, got {type(metric).__name__}."
        )
    spec = metric if isinstance(metric, MetricSpec) else None

    def function(batch: Batch) -> tuple[Tensor, Tensor]:
        if batch.weight is not None:
            raise ValueError(
                f"A smooth {name} takes a weight per query, [query]; what an item weighs in it is not defined."
            )
        ranking = SmoothRanking(batch, temperature)
        value = values(ranking)
        signal = value.isnan().logical_not()
        value = torch.where(signal, value, 0.0).to(batch.score.dtype)
        if ranking.invalid is not None:
            value, signal = torch.where(ranking.invalid, torch.nan, value), signal | ranking.invalid
        if spec is not None and not spec.higher_is_better:
            return value, signal
        return (1 - value if spec is None or spec.bounded else -value), signal

    function.__doc__ = f"Smooth {name}."
    return on_lists(LossSpec(f"smooth_{name}", function))


def _values_of(metric: MetricSpec, *, top_k: int | None = None, **options: Any) -> Callable[[Ranking], Tensor]:
    """A metric with its options, as a function of a ranking."""
    if metric.needs_cutoff and top_k is None:
        raise ValueError(
            f"{metric.name} of the whole list does not depend on its order; give a cutoff: '{metric.name}@10'."
        )
    if strange := sorted(options.keys() - metric.options.keys()):
        raise ValueError(f"{', '.join(f'`{name}`' for name in strange)} means nothing for a smooth {metric.name}.")
    metric.check_top_k(top_k)
    check_options(options)
    return lambda ranking: metric.values(ranking, top_k, metric.options | options)
