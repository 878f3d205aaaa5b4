"""The table of losses, and their public form: scores and grades in any layout -> the reduced value.

A loss is a function from a ``Batch`` to the value of each query and, for each, whether it carries signal. A query without (no
relevant item) has value 0 and gradient 0, and is not counted in a mean.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lightning_rank.conventions import (
    check_choice,
    check_gain,
    check_number,
    check_top_k,
    options_of,
    unknown,
    value_dtype,
    values_are_free,
)
from lightning_rank.functional.approximate import approx_ndcg
from lightning_rank.functional.batch import Batch
from lightning_rank.functional.listwise import listnet, softmax
from lightning_rank.lists import arrange, check_grades, check_scores

REDUCTIONS = ("mean", "sum", "none")


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
