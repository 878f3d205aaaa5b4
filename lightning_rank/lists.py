"""Three layouts in, one view out: the only file that knows how queries lie in memory.

A batch of ranked lists comes as a padded ``[query, item]`` tensor with a mask, as flat items with the query id of each, or as
flat items with offsets. ``arrange`` checks it and returns the items query by query with a ``Lists`` object, whose few
operations (sums and running sums per query, ordering within a query) are all that metrics and losses need to know.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_rank.conventions import sum_dtype, values_are_free
from lightning_rank.flags import as_numbers, by_numpy, count, has_no_gradient, less

# From this many times the depth on, finding the first items of a list beats sorting all of it.
MUCH_LONGER = 16
# Bits of NaN in float32; as whole numbers they come after those of all other keys.
_NAN_BITS = 0x7FC00000


class Lists:
    """Which item belongs to which query; items lie on the last axis, query by query.

    Attributes:
        num_queries: number of queries, Q.
        lengths: ``[Q]``, items per query.
        position: 0-based place of each item within its query, broadcastable to items.
        ids: ``[Q]`` int64 query ids, or None where the caller gave none.
    """

    num_queries: int
    lengths: Tensor
    position: Tensor
    ids: Tensor | None

    def spread(self, per_query: Tensor) -> Tensor:
        """``[Q]`` values, broadcastable to items."""
        raise NotImplementedError

    def sum(self, values: Tensor) -> Tensor:
        """Sum of an item value over each query -> ``[Q]``."""
        raise NotImplementedError

    def count(self, flags: Tensor) -> Tensor:
        """How many are True in each query -> ``[Q]`` int64."""
        raise NotImplementedError

    def max(self, values: Tensor) -> Tensor:
        """Largest value of each query -> ``[Q]``; -inf, or the smallest there is, for a query without items."""
        raise NotImplementedError

    def top(self, values: Tensor) -> Tensor:
        """Largest value of each query, at least 0 -> ``[Q]``, of values that are 0 in padding."""
        return self.max(values).clamp(min=0)

    def cumsum(self, values: Tensor) -> Tensor:
        """Running sum that starts anew at each query."""
        raise NotImplementedError

    def order(self, values: Tensor, *, stable: bool = False, depth: int | None = None) -> tuple[Tensor, Tensor]:
        """Put each query's items in descending order, padding last.

        Args:
            stable: equal values keep their order.
            depth: how many items of each query are asked for, so that the rest may be left out; with them come all that are
                equal to the last of them.

        Returns:
            Indices on the last axis, and keys in that order, which are equal where the values are, and never in padding. Of
            padded lists possibly the first columns only.
        """
        raise NotImplementedError

    def descending(self, values: Tensor) -> Tensor:
        """The values of each query in descending order, without a gradient; 0 in padding."""
        ordered = values.detach().gather(-1, self.order(values.detach())[0])
        return torch.where(self.sorted().valid, ordered, 0)

    def ties_with_above(self, key: Tensor) -> Tensor:
        """Where an item, in the order of its key, has the key of the item above it in its query."""
        raise NotImplementedError

    def sorted(self) -> Lists:
        """The layout of the items after an ``order`` was applied."""
        raise NotImplementedError

    @property
    def starts(self) -> Tensor:
        """``[Q]`` index of the first item of each query, in the flattened items."""
        raise NotImplementedError

    def query_of(self, item: Tensor) -> Tensor:
        """The query of each of some indices in the flattened items."""
        raise NotImplementedError

    def head(self, reach: Tensor) -> tuple[Lists, Callable[[Tensor], Tensor]]:
        """The first ``reach`` items, ``[Q]``, or some more, where looking at a value is free; and what takes them of values."""
        raise NotImplementedError

    def blocks(self, max_items: int, depth: int | None) -> list[tuple[int, int]]:
        """First query and number of queries of parts of about ``max_items`` items, up to twice as many, or one query; only those
        items count that an order of this ``depth`` takes up."""
        raise NotImplementedError

    def part(self, first: int, number: int) -> tuple[Lists, Callable[[Tensor], Tensor]]:
        """The layout of some queries, and what takes their items of values."""
        raise NotImplementedError

    def pad(self, values: Tensor) -> Tensor:
        """Items as ``[Q, longest]``; the value of what is no item is 0. Flat layouts need one sync for the longest."""
        raise NotImplementedError

    @property
    def valid(self) -> Tensor:
        """bool, broadcastable to items: False is padding."""
        raise NotImplementedError

    def name(self, query: int) -> str:
        """How an error names a query."""
        return f"query {query}" if self.ids is None else f"query {query} (id {self.ids[query].item()})"


class PaddedLists(Lists):
    """``[Q, L]`` with a mask, or without padding (mask None)."""

    def __init__(
        self,
        shape: torch.Size,
        mask: Tensor | None,
        device: torch.device,
        ids: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> None:
        """``lengths`` without a mask: the padding stands last in each row; with one: what its sums are."""
        self.shape, self.ids, self._mask = shape, ids, mask
        self.num_queries = shape[0]
        self.is_full, self._is_packed = mask is None and lengths is None, mask is None and lengths is not None
        self.position = torch.arange(shape[1], device=device)
        if lengths is None:
            lengths = torch.full((shape[0],), shape[1], device=device) if mask is None else count(mask)
        self.lengths = lengths

    @property
    def mask(self) -> Tensor | None:
        """bool ``[Q, L]``, False is padding; None without padding."""
        if self._mask is None and not self.is_full:
            self._mask = less(self.position, self.spread(self.lengths))
        return self._mask

    def spread(self, per_query: Tensor) -> Tensor:
        return per_query.unsqueeze(1)

    def sum(self, values: Tensor) -> Tensor:
        return values.sum(-1)

    def count(self, flags: Tensor) -> Tensor:
        return count(flags)

    def max(self, values: Tensor) -> Tensor:
        least = (
            -torch.inf
            if values.is_floating_point()
            else False
            if values.dtype == torch.bool
            else torch.iinfo(values.dtype).min
        )
        if self.shape[1] == 0:
            return values.new_full((self.num_queries,), least)
        return (values if self.is_full else values.masked_fill(self._outside, least)).amax(-1)

    def top(self, values: Tensor) -> Tensor:
        return values.amax(-1).clamp(min=0) if self.shape[1] else values.new_zeros(self.num_queries)

    @cached_property
    def _inside(self) -> Tensor:
        """int32, on the CPU: all bits set in items, none in padding. An AND is five times as fast as ``masked_fill``."""
        assert self.mask is not None
        return as_numbers(self.mask, torch.int32).neg_()

    @property
    def _outside(self) -> Tensor:
        assert self.mask is not None
        return self.mask.logical_not()

    def cumsum(self, values: Tensor) -> Tensor:
        return values.cumsum(-1)

    def order(self, values: Tensor, *, stable: bool = False, depth: int | None = None) -> tuple[Tensor, Tensor]:
        is_much_longer = (
            depth is not None and not stable and depth * MUCH_LONGER < values.shape[-1] and values_are_free(values)
        )
        if depth and is_much_longer and self.is_full and (first := _first(values, depth, largest=True)):
            return first
        key = _descending(values)
        if key.dtype == torch.float32 and values_are_free(key) and not (depth and is_much_longer):
            return self._order_on_cpu(key, depth)
        if not self.is_full:
            # NaN, or the last keys of all; no two are equal.
            last = torch.nan if key.is_floating_point() else torch.iinfo(key.dtype).max - self.position
            key = torch.where(self.valid, key, last)
        if depth and is_much_longer and not self.is_full and (first := _first(key, depth, largest=False)):
            return first
        if key.dtype == torch.float32 and values_are_free(key):
            return self._order_on_cpu(key, depth)
        key, order = torch.sort(key, dim=-1, stable=stable)
        return order, key

    def _order_on_cpu(self, key: Tensor, depth: int | None) -> tuple[Tensor, Tensor]:
        # NumPy sorts integers with vector instructions, several times as fast as torch.sort: so the key goes into the upper
        # half of an int64 and the position into the lower, which also makes it stable. In place, since memory is what costs.
        bits = _as_integers(key)
        if self.mask is not None:
            # NaN sorts behind everything, so padding ends up behind an item whose score is -inf. Each place has one of NaN's 4
            # million bit patterns for itself.
            nan = self.position.int() | _NAN_BITS
            bits.bitwise_xor_(nan).bitwise_and_(self._inside).bitwise_xor_(nan)
        packed = bits.long().bitwise_left_shift_(32).bitwise_or_(self.position)
        packed.numpy().sort(axis=-1)
        if depth is not None and depth < self.shape[1]:
            edge, beyond = (packed.narrow(1, at, 1).bitwise_right_shift(32) for at in (depth - 1, depth))
            if not (edge == beyond).any():
                packed = packed.narrow(1, 0, depth)
        return packed & 0xFFFFFFFF, packed.bitwise_right_shift_(32)

    def descending(self, values: Tensor) -> Tensor:
        if not values.is_floating_point() or not values_are_free(values):
            return super().descending(values)
        key = values.detach().neg()
        if not self.is_full:
            key.masked_fill_(self._outside, torch.inf)
        key.numpy().sort(axis=-1)
        return key.neg_() if self.is_full else torch.where(self.sorted().valid, key.neg_(), 0)

    def ties_with_above(self, key: Tensor) -> Tensor:
        return _equals_previous(key)

    def sorted(self) -> PaddedLists:
        if self.is_full or self._is_packed:
            return self
        return PaddedLists(self.shape, None, self.lengths.device, self.ids, self.lengths)

    def columns(self, number: int) -> PaddedLists:
        """The layout of the first columns; lengths are cut too."""
        if number >= self.shape[1]:
            return self
        shape, device = torch.Size((self.shape[0], number)), self.lengths.device
        if self._is_packed:
            return PaddedLists(shape, None, device, self.ids, self.lengths.clamp(max=number))
        return PaddedLists(shape, None if self.mask is None else self.mask.narrow(1, 0, number), device, self.ids)

    @property
    def starts(self) -> Tensor:
        return torch.arange(self.num_queries, device=self.lengths.device) * self.shape[1]

    def query_of(self, item: Tensor) -> Tensor:
        return item // max(self.shape[1], 1)

    def blocks(self, max_items: int, depth: int | None) -> list[tuple[int, int]]:
        width = self.shape[1] if depth is None else min(self.shape[1], depth * MUCH_LONGER)
        number = -(-self.num_queries // max(self.num_queries * width // max_items, 1))
        return [(first, min(number, self.num_queries - first)) for first in range(0, self.num_queries, number)]

    def part(self, first: int, number: int) -> tuple[PaddedLists, Callable[[Tensor], Tensor]]:
        mask, ids = (None if x is None else x.narrow(0, first, number) for x in (self._mask, self.ids))
        lengths = None if self.is_full else self.lengths.narrow(0, first, number)
        lists = PaddedLists(torch.Size((number, self.shape[1])), mask, self.lengths.device, ids, lengths)
        return lists, lambda values: values.narrow(0, first, number)

    def head(self, reach: Tensor) -> tuple[Lists, Callable[[Tensor], Tensor]]:
        number = min(max(int(reach.max()), 1), self.shape[1]) if self.num_queries else self.shape[1]
        return self.columns(number), lambda values: values.narrow(-1, 0, number)

    def pad(self, values: Tensor) -> Tensor:
        if self.mask is None:
            return values
        if values.dtype == torch.float32 and values_are_free(values) and has_no_gradient(values):
            return (values.view(torch.int32) & self._inside).view(torch.float32)
        return values.masked_fill(self._outside, 0)

    @property
    def valid(self) -> Tensor:
        return torch.ones_like(self.position, dtype=torch.bool) if self.mask is None else self.mask


class JaggedLists(Lists):
    """Flat items; query q lies on ``offsets[q]:offsets[q + 1]``."""

    def __init__(self, offsets: Tensor, num_items: int, ids: Tensor | None = None) -> None:
        self.offsets, self.num_items, self.ids = offsets, num_items, ids
        self.num_queries = offsets.numel() - 1
        self.lengths = offsets.diff()

    @cached_property
    def query(self) -> Tensor:
        """The query of each item."""
        queries = torch.arange(self.num_queries, device=self.offsets.device)
        return torch.repeat_interleave(queries, self.lengths, output_size=self.num_items)

    @cached_property
    def position(self) -> Tensor:  # type: ignore[override]  # made when first asked for, as memory is what costs
        return torch.arange(self.num_items, device=self.offsets.device) - self.spread(self.starts)

    def spread(self, per_query: Tensor) -> Tensor:
        return per_query.index_select(0, self.query)

    def _reduce(self, values: Tensor, how: str, initial: float) -> Tensor:
        # `unsafe` leaves out a check of the offsets that would wait for the device; `arrange` has made it where it is free.
        return torch.segment_reduce(values, how, offsets=self.offsets, unsafe=True, initial=initial)

    def sum(self, values: Tensor) -> Tensor:
        if values.is_floating_point():
            terms = values.to(sum_dtype(values.device))
            if terms.requires_grad:
                return _SegmentSum.apply(terms, self.offsets, self.query).to(values.dtype)
            return self._reduce(terms, "sum", 0).to(values.dtype)
        # Of whole numbers a running sum is exact.
        running = torch.cat([self.offsets.new_zeros(1), values.expand(self.num_items).cumsum(0)])
        return running.index_select(0, self.offsets).diff()

    def count(self, flags: Tensor) -> Tensor:
        return self.sum(flags)

    def max(self, values: Tensor) -> Tensor:
        return self._reduce(values if values.is_floating_point() else values.double(), "max", -torch.inf)

    def cumsum(self, values: Tensor) -> Tensor:
        running = values.cumsum(0, dtype=sum_dtype(values.device))
        before = self.spread(torch.cat([running.new_zeros(1), running]).index_select(0, self.starts))
        return (running - before).to(values.dtype)

    def order(self, values: Tensor, *, stable: bool = False, depth: int | None = None) -> tuple[Tensor, Tensor]:
        key = _descending(values)
        if key.dtype == torch.float32 and values_are_free(key) and self.num_queries:
            place_bits = int(self.lengths.max()).bit_length()
            if place_bits + self.num_queries.bit_length() < 32:
                return self._order_on_cpu(key, place_bits)
        if key.dtype != torch.float32:
            by_value = torch.sort(key, stable=stable).indices
            by_query = torch.sort(self.query.index_select(0, by_value), stable=True).indices
            order = by_value.index_select(0, by_query)
        else:
            # One integer sort: the query in the upper half, the score in the lower. In place, since memory is what costs.
            joined = (self.query << 32).add_(_as_integers(key))
            del key
            key, order = torch.sort(joined, stable=stable)
            return order, key
        return order, key.index_select(0, order)

    def _order_on_cpu(self, key: Tensor, place_bits: int) -> tuple[Tensor, Tensor]:
        # As for padded lists: query, score and position in one integer.
        packed = (self.query << 32).add_(_as_integers(key)).bitwise_left_shift_(place_bits).bitwise_or_(self.position)
        packed.numpy().sort()
        start = torch.arange(self.num_items) - self.position
        return (packed & ((1 << place_bits) - 1)).add_(start), packed.bitwise_right_shift_(place_bits)

    def descending(self, values: Tensor) -> Tensor:
        if values.dtype != torch.float32 or not values_are_free(values):
            return super().descending(values)
        packed = (self.query << 32).add_(_as_integers(values.detach().neg()))
        packed.numpy().sort()
        # The lower half, as a signed number, is the key again.
        bits = packed.bitwise_left_shift_(32).bitwise_right_shift_(32).to(torch.int32)
        return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).view(torch.float32).neg_()

    def ties_with_above(self, key: Tensor) -> Tensor:
        return _equals_previous(key) & (self.position > 0)

    def sorted(self) -> JaggedLists:
        return self

    @property
    def starts(self) -> Tensor:
        return self.offsets.narrow(0, 0, self.num_queries)

    def query_of(self, item: Tensor) -> Tensor:
        return self.query.index_select(0, item)

    def blocks(self, max_items: int, depth: int | None) -> list[tuple[int, int]]:
        # A query belongs to the block in which it starts.
        starts = self.starts.contiguous()
        size = -(-self.num_items // max(self.num_items // max_items, 1))
        bounds = torch.searchsorted(starts, torch.arange(0, self.num_items, max(size, 1))).unique().tolist()
        return [(a, b - a) for a, b in itertools.pairwise([*bounds, self.num_queries])] if bounds else []

    def part(self, first: int, number: int) -> tuple[JaggedLists, Callable[[Tensor], Tensor]]:
        offsets = self.offsets.narrow(0, first, number + 1)
        start, end = int(offsets[0]), int(offsets[-1])
        ids = None if self.ids is None else self.ids.narrow(0, first, number)
        return JaggedLists(offsets - start, end - start, ids), lambda values: values.narrow(0, start, end - start)

    def head(self, reach: Tensor) -> tuple[Lists, Callable[[Tensor], Tensor]]:
        reach = torch.minimum(reach, self.lengths)
        longest, total = (int(reach.max()), int(reach.sum())) if self.num_queries else (0, 0)
        if self.num_queries * longest <= 2 * total:
            # Padding costs less than an index per item, unless it costs memory.
            columns = torch.arange(longest, device=reach.device)
            mask = columns < reach.unsqueeze(1)
            item = torch.where(mask, self.starts.unsqueeze(1) + columns, 0)
            padded = PaddedLists(mask.shape, mask, reach.device, self.ids)
            return padded, lambda values: values[item] * mask
        short = JaggedLists(torch.cat([reach.new_zeros(1), reach.cumsum(0)]), total, self.ids)
        item = short.spread(self.starts) + short.position
        return short, lambda values: values[item]

    def pad(self, values: Tensor) -> Tensor:
        longest = int(self.lengths.max()) if self.num_queries else 0
        padded = values.new_zeros(self.num_queries, longest)
        return padded.index_put((self.query, self.position), values)

    @property
    def valid(self) -> Tensor:
        return torch.ones_like(self.position, dtype=torch.bool)


class _SegmentSum(torch.autograd.Function):
    """``torch.segment_reduce``, whose gradient cannot be differentiated again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, offsets: Tensor, query: Tensor) -> Tensor:
        return torch.segment_reduce(values, "sum", offsets=offsets, unsafe=True, initial=0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient.index_select(0, *ctx.saved_tensors), None, None


def run_bounds(starts: Tensor) -> tuple[Tensor, Tensor]:
    """First and last index, on the last axis, of the run that each item belongs to; bool ``starts``: it begins one."""
    index = torch.arange(starts.shape[-1], device=starts.device).expand(starts.shape)
    if starts.shape[-1] == 0:
        return index, index
    first = torch.where(starts, index, 0).cummax(-1).values
    ends = torch.cat([starts.narrow(-1, 1, starts.shape[-1] - 1), torch.ones_like(starts.narrow(-1, 0, 1))], dim=-1)
    last = torch.where(ends, index, starts.shape[-1]).flip(-1).cummin(-1).values.flip(-1)
    return first, last


def _equals_previous(key: Tensor) -> Tensor:
    """Where a key, on the last axis, equals the one before it; the first equals none."""
    if key.shape[-1] == 0:
        return torch.zeros_like(key, dtype=torch.bool)
    if by_numpy(key) and key.is_contiguous():
        same = torch.empty(key.shape, dtype=torch.bool)
        keys = key.numpy().ravel()
        np.equal(keys[1:], keys[:-1], out=same.numpy().ravel()[1:])
        same.narrow(-1, 0, 1).fill_(False)
        return same
    previous, this = key.narrow(-1, 0, key.shape[-1] - 1), key.narrow(-1, 1, key.shape[-1] - 1)
    return torch.cat([torch.zeros_like(key.narrow(-1, 0, 1), dtype=torch.bool), this == previous], dim=-1)


def _first(key: Tensor, depth: int, *, largest: bool) -> tuple[Tensor, Tensor] | None:
    """Positions and keys of the ``depth`` first of each row and all equal to the last of them; None: too many are equal."""
    first, order = torch.topk(key, depth + 1, dim=-1, largest=largest)
    last, beyond = first[:, depth - 1], first[:, depth]
    if (split := last == beyond).any():
        key_, last_ = key[split], last[split].unsqueeze(1)
        depth = int((key_ >= last_ if largest else key_ <= last_).sum(-1).max())
        if depth * MUCH_LONGER >= key.shape[-1]:
            return None
        first, order = torch.topk(key, depth, dim=-1, largest=largest)
    return order[:, :depth], first[:, :depth]


def _descending(values: Tensor) -> Tensor:
    """Keys, float32, float64 or int64, whose ascending order is the exact descending order of the values; 0.0 and -0.0 tie."""
    if not values.is_floating_point():
        return -1 - values.long()
    return 0.0 - (values.float() if values.dtype in (torch.float16, torch.bfloat16) else values)


def _as_integers(key: Tensor) -> Tensor:
    """int32 that order as float32 keys do: two's complement instead of sign and magnitude; NaN is last."""
    bits = key.view(torch.int32)
    return (bits >> 31).bitwise_and_(0x7FFFFFFF).bitwise_xor_(bits)


def arrange(
    preds: Tensor,
    target: Tensor,
    *,
    mask: Tensor | None = None,
    indexes: Tensor | None = None,
    offsets: Tensor | None = None,
    **items: Tensor | None,
) -> tuple[Lists, Tensor, Tensor, dict[str, Tensor | None]]:
    """Check a batch and lay it out query by query.

    Args:
        preds: scores, ``[Q, L]`` or ``[N]``.
        target: grades, like ``preds``.
        mask: bool like 2-D ``preds``; False is padding, whose content never matters.
        indexes: for 1-D ``preds`` the query id of each item, in any order; with ``offsets`` or 2-D ``preds`` the id of
            each query, ``[Q]``.
        offsets: ``[Q + 1]`` for 1-D ``preds``: query q is ``offsets[q]:offsets[q + 1]``.
        items: further tensors shaped like ``preds``, arranged alike.

    Returns:
        The layout, ``preds``, ``target`` and ``items`` in it (padding set to 0). Queries of flat ``indexes`` come in
        ascending id.

    Raises:
        TypeError: an argument is no tensor, or of a wrong dtype.
        ValueError: shapes, devices or values do not fit.
    """
    named = {"preds": preds, "target": target, "mask": mask, "indexes": indexes, "offsets": offsets, **items}
    for name, tensor in named.items():
        if tensor is None and name not in ("preds", "target"):
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"`{name}` must be a tensor, got {type(tensor).__name__}.")
        if tensor.device != preds.device:
            raise ValueError(
                f"All tensors must lie on one device, got `preds` on {preds.device}, `{name}` on {tensor.device}."
            )
        if name in (*items, "target", "mask") and tensor.shape != preds.shape:
            extra = preds.shape == (*tensor.shape, 1)
            advice = " `preds` has an axis of one score too many: preds.squeeze(-1)." if extra else ""
            raise ValueError(f"`{name}` must have the shape of `preds`, {_shape(preds)}, got {_shape(tensor)}.{advice}")
    for name, tensor in (("preds", preds), ("target", target)):
        if tensor.is_complex():
            raise TypeError(f"`{name}` must hold real numbers, got {tensor.dtype}.")
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(f"`mask` must be bool (True is an item, False is padding), got {mask.dtype}.")
    for name, tensor in (("indexes", indexes), ("offsets", offsets)):
        if tensor is not None and (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool):
            advice = " Is it the mask? Give it as `mask=`." if tensor.dtype == torch.bool else ""
            raise TypeError(f"`{name}` must be whole numbers (torch.long), got {tensor.dtype}.{advice}")
    if preds.ndim == 2:
        return _arrange_padded(preds, target, mask, indexes, offsets, items)
    if preds.ndim != 1:
        raise ValueError(f"`preds` must be [query, item], or flat [item], got the shape {_shape(preds)}.")
    if mask is not None:
        raise ValueError(f"`mask` belongs to [query, item] input; flat `preds` {_shape(preds)} has no padding to mask.")
    if offsets is None and indexes is not None:
        return _arrange_indexed(preds, target, indexes, items)
    if offsets is None:
        offsets = torch.tensor([0, preds.numel()], device=preds.device)
    return _arrange_jagged(preds, target, offsets.long(), indexes, items)


def _arrange_padded(preds, target, mask, indexes, offsets, items):  # type: ignore[no-untyped-def]  # private, see arrange
    if offsets is not None:
        raise ValueError(f"`offsets` belongs to flat `preds` [item]; [query, item] {_shape(preds)} takes `mask`.")
    if indexes is not None and indexes.shape != preds.shape[:1]:
        raise ValueError(
            f"With [query, item] `preds` {_shape(preds)}, `indexes` is the id of each query, [{preds.shape[0]}], "
            f"got {_shape(indexes)}."
        )
    lists = PaddedLists(preds.shape, mask, preds.device, None if indexes is None else indexes.long())
    if mask is not None:
        preds, target = lists.pad(preds), lists.pad(target)
        items = {k: v if v is None else lists.pad(v) for k, v in items.items()}
    return lists, preds, target, items


def _arrange_indexed(preds, target, indexes, items):  # type: ignore[no-untyped-def]  # private, see arrange
    if indexes.shape != preds.shape:
        raise ValueError(
            f"With flat `preds` {_shape(preds)}, `indexes` is the query id of each item, got {_shape(indexes)}."
        )
    # Stable, so that items of a query keep their order of arrival.
    indexes, order = torch.sort(indexes.long(), stable=True)
    ids, lengths = torch.unique_consecutive(indexes, return_counts=True)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    items = {k: v if v is None else v[order] for k, v in items.items()}
    return JaggedLists(offsets, preds.numel(), ids), preds[order], target[order], items


def _arrange_jagged(preds, target, offsets, ids, items):  # type: ignore[no-untyped-def]  # private, see arrange
    if offsets.ndim != 1 or offsets.numel() == 0:
        raise ValueError(f"`offsets` must be [number of queries + 1], got {_shape(offsets)}.")
    if values_are_free(offsets) and (
        offsets[0] != 0 or offsets[-1] != preds.numel() or (offsets.numel() > 1 and bool((offsets.diff() < 0).any()))
    ):
        raise ValueError(
            f"`offsets` must start at 0, never fall, and end at the number of items, {preds.numel()}; "
            f"got {_abridged(offsets)}."
        )
    if ids is not None and ids.shape != (offsets.numel() - 1,):
        raise ValueError(f"With `offsets`, `indexes` is the id of each query, [{offsets.numel() - 1}], got {_shape(ids)}.")
    return JaggedLists(offsets, preds.numel(), None if ids is None else ids.long()), preds, target, items


def check_scores(lists: Lists, preds: Tensor) -> None:
    """Raise ValueError for a NaN score, naming the query; only where looking is free."""
    _check_no_nan(lists, preds, "`preds` must not be NaN", "The model has diverged, or divides by zero.")


def check_grades(lists: Lists, target: Tensor) -> None:
    """Raise ValueError for a grade that is NaN or infinite, naming the query; only where looking is free."""
    finite = _check_no_nan(
        lists, target, "`target` must not be NaN", "Mask items that nobody judged, or give them grade 0."
    )
    if not finite and target.numel() and target.max() == torch.inf:
        query = int((lists.count(target == torch.inf) > 0).nonzero()[0])
        raise ValueError(f"`target` must be finite, got an infinite grade in {lists.name(query)}.")


def _check_no_nan(lists: Lists, values: Tensor, rule: str, advice: str) -> bool:
    """Whether all values are finite, or looking is not free; False: perhaps."""
    # A sum is the cheapest look at all values; it is also NaN for inf - inf, or inf in half precision.
    if not values.is_floating_point() or not values_are_free(values) or math.isfinite(values.detach().sum()):
        return True
    if not values.isnan().any():
        return False
    bad = lists.sum(values.isnan().long())
    query = int((bad > 0).nonzero()[0])
    raise ValueError(
        f"{rule}, got {int(bad[query])} NaN in {lists.name(query)}; {int((bad > 0).sum())} of {lists.num_queries} "
        f"queries have one. {advice}"
    )


def _shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))


def _abridged(tensor: Tensor) -> str:
    values = tensor.tolist()
    return str(values if len(values) <= 8 else [*values[:4], "...", *values[-3:]])
