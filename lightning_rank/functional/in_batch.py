"""Softmax over the items of a batch, for two towers: each row's own item against all others, of all processes too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, distributed

from lightning_rank.conventions import check_choice, check_number, value_dtype, values_are_free

REDUCTIONS = ("mean", "sum", "none")
# Logits that are laid out at a time.
MOST_LOGITS = 2**22


def in_batch_softmax_loss(
    query: Tensor,
    item: Tensor,
    *,
    temperature: float = 1.0,
    item_ids: Tensor | None = None,
    log_q: Tensor | None = None,
    reduction: str = "mean",
    gather: bool = True,
) -> Tensor:
    """Minus the log softmax of each query's own item among the items of the batch (sampled softmax, InfoNCE).

    The logit of query i and item j is their dot product / temperature - log_q of j. Items that are row i's item again, by
    ``item_ids``, are left out of row i. Logits are laid out some rows at a time, and not kept.

    Under ``torch.distributed`` the items of all processes are candidates, and gradients flow back to all: with the usual average
    over processes, the gradient is that of the whole batch in one process, for unequal numbers of rows too.

    Args:
        query: ``[row, embedding]``.
        item: ``[row, embedding]``, the item of each row.
        temperature: above 0; for normalised embeddings well below 1.
        item_ids: ``[row]`` whole numbers, the same for the same item.
        log_q: ``[row]`` logarithm of the probability that an item is in a batch, which corrects for popular items.
        reduction: ``"mean"`` over the rows of all processes (0 without any), ``"sum"`` or ``"none"``: ``[row]``.
        gather: False keeps to the items of this process; True needs a call from every process.

    Returns:
        float64 for float64 ``query``, else float32.

    Raises:
        ValueError: shapes or options do not fit; NaN or infinite ``log_q`` (where looking is free).
        TypeError: an argument is no tensor, or of a wrong dtype.

    Source: Henderson et al., "Efficient natural language response suggestion for smart reply", 2017; Yi et al.,
    "Sampling-bias-corrected neural modeling for large corpus item recommendations", RecSys 2019.

    Example:
        >>> import torch
        >>> from lightning_rank.functional import in_batch_softmax_loss
        >>> towers = torch.nn.functional.normalize(torch.tensor([[1.0, 0.2], [0.1, 1.0], [1.0, -1.0]]))
        >>> in_batch_softmax_loss(towers, towers, temperature=0.1, item_ids=torch.tensor([7, 8, 9])).item() < 0.1
        True
    """
    _check(query, item, item_ids, log_q)
    check_number("temperature", temperature, above=0)
    check_choice("reduction", reduction, REDUCTIONS)
    dtype = value_dtype(query)
    query, candidates = query.to(dtype), item.to(dtype)
    correction = query.new_zeros(len(item)) if log_q is None else log_q.to(dtype)
    own_ids = candidate_ids = None if item_ids is None else item_ids.long()
    start, rows, processes = 0, len(query), 1
    if gather and distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        sizes = _sizes(query)
        start, rows, processes = sum(sizes[: distributed.get_rank()]), sum(sizes), len(sizes)
        candidates, correction = (_Gather.apply(values, sizes) for values in (candidates, correction))
        if own_ids is not None:
            candidate_ids = _Gather.apply(own_ids, sizes)
    value = _RowsOfSoftmax.apply(query, candidates, correction, own_ids, candidate_ids, start, temperature)
    if reduction == "none":
        return value
    # Gradients will be averaged over processes: each adds its share of the mean over all rows.
    return value.sum() if reduction == "sum" else value.sum() * processes / max(rows, 1)


def _check(query: Tensor, item: Tensor, item_ids: Tensor | None, log_q: Tensor | None) -> None:
    for name, tensor in {"query": query, "item": item, "item_ids": item_ids, "log_q": log_q}.items():
        if tensor is None and name in ("item_ids", "log_q"):
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"`{name}` must be a tensor, got {type(tensor).__name__}.")
        if name == "item_ids" and (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool):
            raise TypeError(f"`item_ids` must be whole numbers (torch.long), got {tensor.dtype}.")
        if name != "item_ids" and not tensor.is_floating_point():
            raise TypeError(f"`{name}` must be floating point, got {tensor.dtype}.")
        if name in ("item_ids", "log_q") and tensor.shape != query.shape[:1]:
            raise ValueError(f"`{name}` must be one per row, [{len(query)}], got {list(tensor.shape)}.")
    if query.ndim != 2 or query.shape != item.shape:
        raise ValueError(
            f"`query` and `item` must be [row, embedding] of one shape, got {list(query.shape)} and {list(item.shape)}."
        )
    if log_q is not None and values_are_free(log_q) and not log_q.isfinite().all():
        raise ValueError("`log_q` must be finite: the logarithm of a probability above 0.")


class _RowsOfSoftmax(torch.autograd.Function):
    """logsumexp of a row less its own logit; the logits are computed again on the way back."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        item: Tensor,
        log_q: Tensor,
        own_ids: Tensor | None,
        ids: Tensor | None,
        start: int,
        temperature: float,
    ) -> Tensor:
        ctx.start, ctx.temperature = start, temperature
        total, own = query.new_zeros(len(query)), query.new_zeros(len(query))
        for row, size, logits, diagonal in _logits(query, item, log_q, own_ids, ids, start, temperature):
            total.narrow(0, row, size).copy_(logits.logsumexp(1))
            own.narrow(0, row, size).copy_(logits.gather(1, diagonal).squeeze(1))
        ctx.save_for_backward(query, item, log_q, own_ids, ids, total)
        return total - own

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, ...]:
        query, item, log_q, own_ids, ids, total = ctx.saved_tensors
        by_query, by_item, by_log_q = torch.zeros_like(query), torch.zeros_like(item), torch.zeros_like(log_q)
        for row, size, logits, diagonal in _logits(query, item, log_q, own_ids, ids, ctx.start, ctx.temperature):
            share = logits.sub_(total.narrow(0, row, size).unsqueeze(1)).exp_()
            share.scatter_add_(1, diagonal, -torch.ones_like(diagonal, dtype=share.dtype))
            share.mul_(incoming.narrow(0, row, size).unsqueeze(1))
            with _without_autocast(query):
                by_query.narrow(0, row, size).copy_(share @ item)
                by_item += share.T @ query.narrow(0, row, size)
            by_log_q -= share.sum(0)
        return by_query / ctx.temperature, by_item / ctx.temperature, by_log_q, None, None, None, None


def _logits(
    query: Tensor, item: Tensor, log_q: Tensor, own_ids: Tensor | None, ids: Tensor | None, start: int, temperature: float
) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """Some rows at a time: the first, how many, their logits, and the column of the own item of each, ``[row, 1]``."""
    rows = max(1, MOST_LOGITS // max(1, len(item)))
    for row in range(0, len(query), rows):
        size = min(rows, len(query) - row)
        with _without_autocast(query):
            logits = query.narrow(0, row, size) @ item.T
        logits = logits.div_(temperature).sub_(log_q)
        diagonal = torch.arange(start + row, start + row + size, device=query.device).unsqueeze(1)
        if own_ids is not None and ids is not None:
            again = own_ids.narrow(0, row, size).unsqueeze(1) == ids
            logits.masked_fill_(again.scatter(1, diagonal, False), -torch.inf)
        yield row, size, logits, diagonal


def _without_autocast(like: Tensor) -> AbstractContextManager[Any]:
    device = like.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def _sizes(query: Tensor) -> list[int]:
    """Rows of each process."""
    size = torch.tensor([len(query)], device=query.device)
    sizes = [torch.zeros_like(size) for _ in range(distributed.get_world_size())]
    distributed.all_gather(sizes, size)
    return [int(size) for size in sizes]


class _Gather(torch.autograd.Function):
    """The rows of all processes, one process after the other; what comes back is summed over processes."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, sizes: list[int]) -> Tensor:
        ctx.start, ctx.size = sum(sizes[: distributed.get_rank()]), len(values)
        # All processes must send as many rows.
        padded = values.new_zeros((max(sizes), *values.shape[1:]))
        padded.narrow(0, 0, len(values)).copy_(values)
        parts = [torch.empty_like(padded) for _ in sizes]
        distributed.all_gather(parts, padded)
        return torch.cat([part.narrow(0, 0, size) for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None]:
        incoming = incoming.contiguous().clone()
        distributed.all_reduce(incoming)
        return incoming.narrow(0, ctx.start, ctx.size), None
