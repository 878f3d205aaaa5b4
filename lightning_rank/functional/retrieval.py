"""The best items of a whole catalogue for each query, from embeddings, without the scores of all pairs in memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_rank.conventions import check_top_k, value_dtype, values_are_free
from lightning_rank.flags import at_least, where
from lightning_rank.lists import PaddedLists

# Queries, and items of the catalogue, whose scores are laid out at a time: up to 128 MiB in float32.
QUERIES, ITEMS = 512, 2**16
# Items of one matrix product, whose scores are looked through while they are in the processor's cache; a power of 2.
BLOCK = 2048
# Items of a fine group, and fine groups of a coarse one.
GROUP = 8


class ItemLists(NamedTuple):
    """Items by query: those of query q are ``items[offsets[q]:offsets[q + 1]]``, rows of the catalogue."""

    items: Tensor
    offsets: Tensor

    def of(self, first: int, number: int) -> tuple[Tensor, Tensor]:
        """The items of some queries, ``[N]``, and the query of each, counted from the first."""
        offsets = self.offsets[first : first + number + 1]
        query = torch.arange(number, device=offsets.device).repeat_interleave(offsets.diff())
        return self.items[int(offsets[0]) : int(offsets[-1])], query


def top_items(
    query: Tensor,
    item: Tensor,
    top_k: int,
    *,
    seen: Tensor | None = None,
    seen_mask: Tensor | None = None,
    seen_offsets: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The ``top_k`` items of the largest dot product with each query, exactly, those seen left out.

    Scores are laid out for some queries at a time, so that memory does not grow with queries times items.

    Args:
        query: ``[query, embedding]``.
        item: ``[item, embedding]``, the whole catalogue. For cosines normalise both.
        top_k: how many.
        seen: items, as rows of ``item``, that a query must not get: ``[query, N]``, or flat with ``seen_offsets``.
        seen_mask: bool like 2-D ``seen``, False is padding.
        seen_offsets: ``[query + 1]``: those of query q are ``seen[seen_offsets[q]:seen_offsets[q + 1]]``.

    Returns:
        scores and rows of ``item``, both ``[query, min(top_k, items)]``, the best first; -inf and -1 where no item is left. Which
        of several items with the score of the last place are in is not defined.

    Raises:
        ValueError: shapes do not fit; an embedding is not finite; a seen item is not in the catalogue.
        TypeError: embeddings that are not floating point, items that are not whole numbers.

    Example:
        >>> import torch
        >>> from lightning_rank.functional import top_items
        >>> query, item = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.9, 0.1], [0.5, 0.8], [0.1, 0.2]])
        >>> top_items(query, item, 2, seen=torch.tensor([[0], [2]]))[1]
        tensor([[1, 2],
                [1, 0]])
    """
    check_top_k(top_k)
    check_embeddings("query", query)
    check_embeddings("item", item, like=query)
    lists = None if seen is None else item_lists("seen", seen, seen_mask, seen_offsets, len(query), len(item))
    if seen is None and (seen_mask is not None or seen_offsets is not None):
        raise ValueError("`seen_mask` or `seen_offsets` was given without `seen`.")
    return best(query, item, min(top_k, len(item)), lists)


def check_embeddings(name: str, values: Tensor, like: Tensor | None = None) -> None:
    """Raise for what is no finite ``[row, embedding]``, or of another size than ``like``."""
    if not isinstance(values, Tensor):
        raise TypeError(f"`{name}` must be a tensor, got {type(values).__name__}.")
    if not values.is_floating_point():
        raise TypeError(f"`{name}` must be floating point, got {values.dtype}.")
    if values.ndim != 2:
        raise ValueError(f"`{name}` must be [row, embedding], got {list(values.shape)}.")
    if like is not None and like.shape[1] != values.shape[1]:
        raise ValueError(
            f"Queries and items must have embeddings of one size, got {like.shape[1]}, but {values.shape[1]} for `{name}`."
        )
    # A sum is the cheapest look at all values; it may overflow where they are finite.
    if not values.sum().isfinite() and not (finite := values.isfinite().all(1)).all():
        raise ValueError(
            f"`{name}` must be finite: row {int(finite.long().argmin())} is not. The model has diverged, or divides by zero."
        )


def item_lists(
    name: str, items: Tensor, mask: Tensor | None, offsets: Tensor | None, num_queries: int, num_items: int
) -> ItemLists:
    """Items by query from padded or flat input, checked."""
    for part, tensor in {name: items, f"{name}_mask": mask, f"{name}_offsets": offsets}.items():
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"`{part}` must be a tensor, got {type(tensor).__name__}.")
        whole = not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool
        if part == f"{name}_mask" and tensor.dtype != torch.bool:
            raise TypeError(f"`{part}` must be bool, got {tensor.dtype}.")
        if part != f"{name}_mask" and not whole:
            raise TypeError(f"`{part}` must be whole numbers (torch.long), got {tensor.dtype}.")
    if offsets is not None:
        if mask is not None:
            raise ValueError(f"`{name}` takes `{name}_mask` or `{name}_offsets`, not both.")
        if items.ndim != 1 or offsets.shape != (num_queries + 1,):
            raise ValueError(
                f"`{name}` must be [N] and `{name}_offsets` [{num_queries + 1}], one more than the queries, got "
                f"{list(items.shape)} and {list(offsets.shape)}."
            )
        offsets = offsets.long()
        if offsets[0] != 0 or offsets[-1] != len(items) or (offsets.diff() < 0).any():
            raise ValueError(f"`{name}_offsets` must rise from 0 to {len(items)}, the length of `{name}`.")
    else:
        if items.ndim == 1 and mask is None:
            items = items.unsqueeze(1)  # one for each query
        if items.ndim != 2 or len(items) != num_queries or (mask is not None and mask.shape != items.shape):
            came = f"{list(items.shape)}" + ("" if mask is None else f" with a mask {list(mask.shape)}")
            raise ValueError(
                f"`{name}` must be [{num_queries}, N], a row for each query, with a `{name}_mask` of that shape where there is "
                f"padding; or flat with `{name}_offsets`. Got {came}."
            )
        if mask is None:
            offsets = torch.arange(num_queries + 1, device=items.device) * items.shape[1]
            items = items.flatten()
        else:
            offsets = torch.cat([mask.new_zeros(1, dtype=torch.int64), mask.sum(1).cumsum(0)])
            items = items[mask]
    items = items.long()
    if len(items) and (items.min() < 0 or items.max() >= num_items):
        wrong = items[(items < 0) | (items >= num_items)][0]
        advice = f" Is it padding? Give `{name}_mask`, False there." if mask is None and wrong < 0 else ""
        raise ValueError(f"`{name}` must be rows of the {num_items} items, 0 to {num_items - 1}, got {int(wrong)}.{advice}")
    return ItemLists(items, offsets)


@torch.no_grad()
def best(
    query: Tensor, item: Tensor, number: int, seen: ItemLists | None, memory: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Scores and items, ``[query, number]``, as ``top_items`` returns them, but also for more than there are.

    ``memory``, as ``memory_for`` makes it, serves several calls: fresh pages cost a part of what the products do.
    """
    dtype = value_dtype(query)
    query, item = query.to(dtype), item.to(dtype)
    memory = memory_for(item, len(query)) if memory is None else memory
    all_scores = query.new_full((len(query), number), -torch.inf)
    all_items = torch.full((len(query), number), -1, device=query.device)
    for first in range(0, len(query), QUERIES):
        rows = query[first : first + QUERIES]
        hidden = None if seen is None else seen.of(first, len(rows))
        scores, items = all_scores[first : first + QUERIES], all_items[first : first + QUERIES]
        for start in range(0, len(item), ITEMS):
            chunk = item[start : start + ITEMS]
            here = hidden
            if hidden is not None and len(item) > ITEMS:
                inside = (hidden[0] >= start) & (hidden[0] < start + len(chunk))
                here = hidden[0][inside] - start, hidden[1][inside]
            new_scores, new_items = _best_of_chunk(rows, chunk, number, here, memory)
            if start:
                new_scores, place = torch.cat([scores, new_scores], 1).topk(number, 1)
                new_items = torch.cat([items, new_items + start], 1).gather(1, place)
            scores[:, : new_scores.shape[1]], items[:, : new_items.shape[1]] = new_scores, new_items
    return all_scores, all_items.masked_fill_(all_scores == -torch.inf, -1)


def memory_for(item: Tensor, num_queries: int = QUERIES) -> Tensor:
    """Room for the scores that are laid out at a time."""
    return item.new_empty(min(num_queries, QUERIES) * min(-(-len(item) // BLOCK) * BLOCK, ITEMS))


def _best_of_chunk(
    query: Tensor, item: Tensor, number: int, seen: tuple[Tensor, Tensor] | None, memory: Tensor
) -> tuple[Tensor, Tensor]:
    """The ``number`` best of some items for some queries, or as many as there are.

    A matrix product costs about as much as one ``topk`` of its values, so that selection must look at few of them. The
    ``number``-th largest of the maxima of groups of items bounds the score of the last place from below, tightly where groups are
    many; only in groups whose maximum reaches it can an item be among the best.
    """
    n, blocks = len(query), -(-len(item) // BLOCK)
    scores = memory[: blocks * n * BLOCK].view(blocks, n, BLOCK)
    fine = query.new_empty(blocks, n, BLOCK // GROUP)
    hidden, ends = (None, []) if seen is None else _by_block(*seen, blocks, n)
    for b in range(blocks):
        part = item[b * BLOCK : (b + 1) * BLOCK]
        torch.mm(query, part.T, out=scores[b, :, : len(part)])
        if len(part) < BLOCK:
            scores[b, :, len(part) :] = -torch.inf
        if hidden is not None:
            scores.view(-1).index_fill_(0, hidden[ends[b] : ends[b + 1]], -torch.inf)
        # The items of a group are not neighbours: a maximum over the outer of two axes is much the faster one.
        torch.amax(scores[b].view(n, GROUP, -1), 1, out=fine[b])
    coarse = fine.view(blocks, n, GROUP, -1).amax(2)
    maxima = coarse.transpose(0, 1).reshape(n, -1)
    if maxima.shape[1] <= number:
        values, place = scores.transpose(0, 1).reshape(n, -1).topk(min(number, len(item)), 1)
        return values, place
    # So many groups and no more: those that are tied with the last one may be all there are.
    group = _largest(maxima, number)
    least = maxima.gather(1, group).amin(1).clamp(min=torch.finfo(scores.dtype).min)  # nothing that was left out
    row = torch.arange(n, device=query.device)
    # From coarse groups to fine ones to items, each as its place in memory.
    at = _members(_in_memory(row[:, None], group, n, BLOCK // GROUP**2), BLOCK // GROUP**2)
    at, row, _ = _reaching(fine, at.view(n, -1), row, least)
    at, row, values = _reaching(scores, _members(at, BLOCK // GROUP), row, least)
    # Ragged rows to padded ones.
    count = torch.bincount(row, minlength=n)
    place = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
    width = max(int(count.max()), 1)
    place += row * width
    padded = values.new_full((n, width), -torch.inf)
    padded.view(-1).index_copy_(0, place, values)
    items = at.new_zeros(n, width)
    items.view(-1).index_copy_(0, place, at // (n * BLOCK) * BLOCK + (at & (BLOCK - 1)))
    if values_are_free(padded):
        place = PaddedLists(padded.shape, None, padded.device).order(padded)[0].narrow(1, 0, min(number, width))
        return padded.gather(1, place), items.gather(1, place)
    values, place = padded.topk(min(number, width), 1)
    return values, items.gather(1, place)


def _largest(values: Tensor, number: int) -> Tensor:
    """``[row, number]``, the places of the largest values of each row, in any order."""
    if not values_are_free(values):
        return values.topk(number, 1, sorted=False).indices
    # NumPy parts several times as fast as topk, and values more than twice as fast as places.
    kth, width = values.shape[1] - number, values.shape[1]
    least = torch.from_numpy(np.partition(values.numpy(), kth, axis=1)[:, kth : kth + 1])
    places = where(at_least(values, least))
    if len(places) == len(values) * number:
        return (places % width).view(-1, number)
    return torch.from_numpy(values.numpy().argpartition(kth, axis=1)[:, kth:])  # ties


def _by_block(items: Tensor, query: Tensor, blocks: int, n: int) -> tuple[Tensor, list[int]]:
    """Where ``[blocks, n, BLOCK]`` has items of queries, block by block, and where each block starts and ends."""
    places = _in_memory(query, items, n, BLOCK)
    if values_are_free(places):
        places.numpy().sort()  # several times as fast as PyTorch's
    else:
        places = places.sort().values
    ends = torch.searchsorted(places, torch.arange(blocks + 1, device=places.device) * (n * BLOCK))
    return places, ends.tolist()


def _in_memory(row: Tensor, column: Tensor, n: int, width: int) -> Tensor:
    """Where ``[block, n, width]`` has the column of a row, columns counted through all blocks."""
    shift = width.bit_length() - 1  # a power of 2; a shift is much the faster division
    return (((column >> shift) * n + row) << shift) + (column & (width - 1))


def _members(at: Tensor, width: int) -> Tensor:
    """``[..., GROUP]``: the places of the members of groups, from the places of the groups in ``[block, n, width]``."""
    first = at + (at >> (width.bit_length() - 1)) * (width * GROUP - width)
    return first.unsqueeze(-1) + torch.arange(0, width * GROUP, width, device=at.device)


def _reaching(values: Tensor, at: Tensor, row: Tensor, least: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of places ``[R, N]`` whose rows are ``row`` ``[R]``: those whose value reaches the row's bound; their rows, their values."""
    # Several threads gather rows, but only one would select from a vector.
    found = values.view(1, -1).expand(GROUP, -1).gather(1, at.view(GROUP, -1)).view(at.shape)
    places = where(at_least(found, least.index_select(0, row).unsqueeze(1)))
    row = row.index_select(0, places // at.shape[1])
    return at.view(-1).index_select(0, places), row, found.view(-1).index_select(0, places)
