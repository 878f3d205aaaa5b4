"""One function per loss: from laid-out scores and grades to one value per query. The table at the foot lists them all.

A loss returns its value and, for each query, whether it carries signal. A query without (no relevant item) has value 0 and
gradient 0, and is not counted in a mean.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lightning_rank.conventions import (
    Gain,
    check_choice,
    check_gain,
    check_number,
    check_top_k,
    discount,
    gains_of,
    options_of,
    unknown,
    value_dtype,
    values_are_free,
)
from lightning_rank.lists import Lists, arrange, check_grades, check_scores

REDUCTIONS = ("mean", "sum", "none")


@dataclass(frozen=True)
class Batch:
    """What a loss is computed from.

    Attributes:
        lists: the layout.
        score: scores of the items, float32 or float64.
        grade: grades >= 0 of the same dtype.
        weight: item weights of the same dtype, or None.
    """

    lists: Lists
    score: Tensor
    grade: Tensor
    weight: Tensor | None

    def gains(self, gain: Gain, *, scaled: bool) -> Tensor:
        """Weighted gains of the items, 0 in padding; ``scaled``: the exp2 gains of a query over 2^top grade."""
        top = self.lists.spread(self.lists.max(self.grade.detach()).clamp(min=0)) if scaled else None
        gains = gains_of(self.grade, gain, top) * self.lists.valid
        return gains if self.weight is None else gains * self.weight

    def log_softmax(self, values: Tensor) -> Tensor:
        """Logarithm of the softmax of an item value within each query."""
        lists = self.lists
        highest = lists.max(values.detach())
        shifted = values - lists.spread(torch.where(highest > -torch.inf, highest, 0.0))
        total = lists.sum(torch.where(lists.valid, shifted.exp(), 0.0))
        return shifted - lists.spread(torch.log(torch.where(total > 0, total, 1.0)))


def approx_ndcg(
    batch: Batch, *, top_k: int | None = None, gain: Gain = "exp2", temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """1 - NDCG with smooth ranks: 1 + the sum over the other items of sigmoid((their score - the item's) / temperature).

    A small temperature is closer to NDCG and has smaller gradients where scores lie far apart. Under ``top_k`` an item
    counts by sigmoid(top_k + 1/2 - rank), so that one below the cutoff is still pulled in; the value may then fall below 0.
    All pairs of a query are laid out: O(items^2) memory; on a device, flat lists cost one wait, for the longest one.

    Source: Qin, Liu and Li, "A general approximation framework for direct optimization of information retrieval measures",
    Information Retrieval 2010; Bruch et al., "Revisiting approximate metric optimization in the age of deep neural networks",
    SIGIR 2019.
    """
    lists = batch.lists
    score, gains = lists.pad(batch.score), lists.pad(batch.gains(gain, scaled=True))
    item = lists.pad(torch.ones_like(batch.score) * lists.valid)
    beats = torch.sigmoid((score.unsqueeze(1) - score.unsqueeze(2)) / temperature)
    # The item itself adds sigmoid(0) = 1/2 to its sum.
    soft_rank = (beats * item.unsqueeze(1)).sum(-1) + 0.5
    discounted = gains * discount(soft_rank)
    ideal = torch.sort(gains, dim=-1, descending=True).values
    ideal = ideal * discount(torch.arange(1, gains.shape[-1] + 1, device=gains.device, dtype=gains.dtype))
    if top_k is not None:
        cut = torch.sigmoid(top_k + 0.5 - soft_rank)
        discounted = discounted * torch.where(lists.lengths.unsqueeze(1) <= top_k, 1.0, cut)
        ideal = ideal.narrow(1, 0, min(top_k, ideal.shape[1]))
    best = ideal.sum(-1)
    signal = best > 0
    value = 1 - discounted.sum(-1) / torch.where(signal, best, 1.0)
    return value, signal


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
    return value, batch.lists.max(batch.grade) > 0


@dataclass(frozen=True)
class LossSpec:
    """A row of the table of losses.

    Attributes:
        name: the short name, as in ``"approx_ndcg@10"``.
        function: from a ``Batch`` to per-query values and signal.
        shift_invariant: a constant added to the scores of a query changes nothing.
        options: the loss's own options and their defaults.
    """

    name: str
    function: Callable[..., tuple[Tensor, Tensor]]
    shift_invariant: bool = True
    options: dict[str, Any] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", {option.name: option.default for option in options_of(self.function)})


LOSSES: dict[str, LossSpec] = {
    spec.name: spec
    for spec in (
        LossSpec("approx_ndcg", approx_ndcg),
        LossSpec("softmax", softmax),
        LossSpec("listnet", listnet),
    )
}


def find_loss(name: str) -> LossSpec:
    """The row of a loss by its name, with or without ``_loss``."""
    try:
        return LOSSES[name.removesuffix("_loss")]
    except KeyError:
        raise unknown("loss", name, tuple(LOSSES)) from None


def check_options(spec: LossSpec, options: dict[str, Any]) -> None:
    """Raise ValueError for an option that the loss has not, or whose value is impossible."""
    for name, value in options.items():
        if name not in spec.options:
            raise ValueError(
                f"`{name}` means nothing for the loss {spec.name}; it takes {', '.join(spec.options) or 'no options'}."
            )
        if name == "gain":
            check_gain(value)
        elif name == "top_k":
            check_top_k(value)
        else:
            check_number(name, value, above=0)


def on_lists(spec: LossSpec) -> Callable[..., Tensor]:
    """The public form of a loss: scores and grades in one of the layouts -> the reduced value."""

    def loss(
        preds: Tensor,
        target: Tensor,
        mask: Tensor | None = None,
        indexes: Tensor | None = None,
        offsets: Tensor | None = None,
        *,
        weight: Tensor | None = None,
        reduction: str = "mean",
        global_mean: bool = False,
        **options: Any,
    ) -> Tensor:
        check_options(spec, options)
        check_choice("reduction", reduction, REDUCTIONS)
        query_weight, item_weight = _split_weight(weight, preds)
        lists, preds, target, items = arrange(
            preds, target, mask=mask, indexes=indexes, offsets=offsets, weight=item_weight
        )
        check_scores(lists, preds)
        check_grades(lists, target)
        dtype = value_dtype(preds)
        item_weight = _checked_weight(items["weight"], preds.shape, dtype)
        query_weight = _checked_weight(query_weight, torch.Size((lists.num_queries,)), dtype)
        batch = Batch(lists, preds.to(dtype), target.to(dtype).clamp(min=0), item_weight)
        value, signal = spec.function(batch, **options)
        value = torch.where(signal, value, 0.0)
        return _reduce(value, signal.to(dtype), query_weight, reduction, global_mean)

    shared = inspect.signature(loss)
    parameters = [p for p in shared.parameters.values() if p.kind is not p.VAR_KEYWORD]
    parameters[5:5] = options_of(spec.function)
    loss.__signature__ = shared.replace(parameters=parameters)  # type: ignore[attr-defined]  # functions take any
    loss.__name__ = loss.__qualname__ = f"{spec.function.__name__}_loss"
    loss.__module__ = "lightning_rank.functional"  # where pickle finds it
    own_doc = inspect.cleandoc(spec.function.__doc__ or "")
    loss.__doc__ = f"{own_doc}\n\n{_SHARED_DOC.replace('LOSS', loss.__name__)}"
    return loss


def _split_weight(weight: Tensor | None, preds: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """A weight is one per query, or one per item: which, its shape tells."""
    if weight is not None and not isinstance(weight, Tensor):
        raise TypeError(f"`weight` must be a tensor, got {type(weight).__name__}.")
    return (None, weight) if weight is not None and weight.shape == preds.shape else (weight, None)


def _checked_weight(weight: Tensor | None, shape: torch.Size, dtype: torch.dtype) -> Tensor | None:
    if weight is None:
        return None
    if weight.shape != shape:
        raise ValueError(
            f"`weight` must be one per query, {list(shape)}, or have the shape of `preds`, got {list(weight.shape)}."
        )
    if values_are_free(weight) and not ((weight >= 0) & (weight < torch.inf)).all():
        raise ValueError("`weight` must be finite and >= 0, got a negative, infinite or NaN weight.")
    return weight.to(dtype)


def _reduce(value: Tensor, signal: Tensor, weight: Tensor | None, reduction: str, global_mean: bool) -> Tensor:
    if weight is not None:
        value, signal = value * weight, signal * weight
    if reduction == "none":
        return value
    if reduction == "sum":
        return value.sum()
    count, processes = signal.sum(), 1
    if global_mean and torch.distributed.is_available() and torch.distributed.is_initialized():
        # Strategies average gradients over processes, so that each divides by the mean count.
        torch.distributed.all_reduce(count)
        processes = torch.distributed.get_world_size()
    return value.sum() * processes / torch.where(count > 0, count, 1.0)


_SHARED_DOC = """Args:
    preds: scores ``[query, item]``, or flat ``[item]``; any real number, higher is better.
    target: grades like ``preds``; higher is better, 0 or below is not relevant.
    mask: bool like 2-D ``preds``, False is padding.
    indexes: for flat ``preds`` the query id of each item, in any order; otherwise the id of each query.
    offsets: for flat ``preds``, ``[query + 1]``: query q is ``offsets[q]:offsets[q + 1]``.
    weight: ``[query]`` multiplies a query's value, and the mean divides by the weights; like ``preds``, it multiplies
        what an item contributes (its gain), as inverse propensities do.
    reduction: ``"mean"`` over the queries with signal (a batch with none gives 0, with gradient 0), ``"sum"``, or
        ``"none"``: ``[query]``, in ascending id for flat ``indexes``.
    global_mean: divide by the number of queries with signal over all processes, so that DDP equals one process.

Values are float64 for float64 ``preds``, else float32.

Raises:
    ValueError: shapes or options do not fit, or an option means nothing here; NaN scores or grades, a weight that is
        negative or not finite (where looking is free: on the CPU in eager mode).
    TypeError: a wrong dtype.

Example:
    >>> import torch
    >>> from lightning_rank.functional import LOSS
    >>> scores = torch.tensor([[0.2, 1.5, -0.3]], requires_grad=True)
    >>> loss = LOSS(scores, torch.tensor([[2, 0, 1]]))
    >>> loss.backward()
    >>> bool(loss > 0), bool(scores.grad.isfinite().all())
    (True, True)"""
