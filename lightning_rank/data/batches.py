"""Queries in memory, and how they become batches: whole queries, padded, of similar length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import Dataset, Sampler


@dataclass(frozen=True, eq=False)
class RankingDataset(Dataset):
    """Queries and their items, query by query in memory.

    ``dataset[q]`` is one query, ``dataset[[q1, q2, ...]]`` a padded batch: a dict of ``features`` ``[query, item, feature]``,
    ``target`` ``[query, item]``, ``mask`` (False is padding) and ``query`` ``[query]``, the number of each query. One query
    alone has no padding and no first axis.

    Attributes:
        features: ``[item, feature]`` float32.
        grades: ``[item]`` float32.
        offsets: ``[query + 1]`` int64: query q is ``offsets[q]:offsets[q + 1]``.
        query_ids: the text of each query's id.
        document_ids: the text of each item's id; None where the source has none.
        rows: ``[item]`` int64, the place of the item in the source, counted from 0 over what holds an item; None: as here.
        max_items: the longest list of a batch. Of a longer one, items graded above 0 come first, then the others, at random
            among equals and anew each time: only training may cut lists. None: never.

    Example:
        >>> data = RankingDataset(torch.eye(3), torch.tensor([2.0, 0.0, 1.0]), torch.tensor([0, 1, 3]), ["a", "b"])
        >>> data[[0, 1]]["mask"]
        tensor([[ True, False],
                [ True,  True]])
    """

    features: Tensor
    grades: Tensor
    offsets: Tensor
    query_ids: Sequence[str]
    document_ids: Sequence[str] | None = None
    rows: Tensor | None = None
    max_items: int | None = None

    def __len__(self) -> int:
        return len(self.query_ids)

    @property
    def num_features(self) -> int:
        """Number of features."""
        return self.features.shape[1]

    @property
    def lengths(self) -> Tensor:
        """``[query]`` items per query."""
        return self.offsets.diff()

    def __getitem__(self, query: int | Sequence[int]) -> dict[str, Tensor]:
        if isinstance(query, int):
            if not -len(self) <= query < len(self):
                raise IndexError(f"There are {len(self)} queries, got {query}.")
            batch = self[[query % len(self)]]
            return {name: value[0] for name, value in batch.items()}
        queries = torch.as_tensor(query, dtype=torch.int64)
        start, length = self.offsets[queries], self.lengths[queries]
        longest = int(length.max()) if len(queries) else 0
        place = torch.arange(longest)
        mask = place < length[:, None]
        items = torch.where(mask, start[:, None] + place, 0)
        if self.max_items is not None and longest > self.max_items:
            first = (self.grades[items] > 0).float() + torch.rand(items.shape)
            kept = torch.where(mask, first, -1.0).topk(self.max_items).indices.sort().values
            items, mask = items.gather(1, kept), mask.gather(1, kept)
        return {
            "features": torch.where(mask[..., None], self.features[items], 0.0)
            if len(self.features)
            else self.features[items],
            "target": torch.where(mask, self.grades[items], 0.0),
            "mask": mask,
            "query": queries,
        }

    def widened(self, num_features: int) -> RankingDataset:
        """The same data with zero features added, up to ``num_features``; what a sparse source leaves out is 0.

        Raises:
            ValueError: there are more than ``num_features`` already.
        """
        if self.num_features > num_features:
            raise ValueError(
                f"The data has {self.num_features} features, the model was made for {num_features}: declare the larger number "
                "as `num_features` before training."
            )
        return replace(self, features=pad(self.features, (0, num_features - self.num_features)))


class QueryBatchSampler(Sampler[list[int]]):
    """Batches of whole queries of similar length, so that little is padding.

    Shuffled, each epoch has another order: queries are shuffled, sorted by length within pools of 32 batches, cut into batches,
    and the batches shuffled. Otherwise all are sorted by length. The order depends on ``seed`` and epoch alone, so that it is the
    same in every process and after resuming.

    Args:
        lengths: ``[query]`` items per query.
        batch_size: queries per batch; the last one may have fewer.
        shuffle: another order each epoch.
        seed: of that order.

    Raises:
        ValueError: ``batch_size`` is below 1.

    Example:
        >>> list(QueryBatchSampler(torch.tensor([5, 1, 4, 2]), batch_size=2))
        [[1, 3], [2, 0]]
    """

    def __init__(self, lengths: Tensor, batch_size: int, *, shuffle: bool = False, seed: int = 0) -> None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"`batch_size` must be a whole number of queries >= 1, got {batch_size!r}.")
        self.lengths, self.batch_size, self.shuffle, self.seed = lengths, batch_size, shuffle, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order; Lightning calls this at the start of each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-len(self.lengths) // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        if not self.shuffle:
            order = torch.argsort(self.lengths, stable=True)
            yield from (batch.tolist() for batch in order.split(self.batch_size) if len(batch))
            return
        generator = torch.Generator().manual_seed(hash((self.seed, self.epoch)) % 2**63)
        pools = torch.randperm(len(self.lengths), generator=generator).split(32 * self.batch_size)
        batches = [
            batch
            for pool in pools
            for batch in pool[torch.argsort(self.lengths[pool], stable=True)].split(self.batch_size)
            if len(batch)
        ]
        for i in torch.randperm(len(batches), generator=generator).tolist():
            yield batches[i].tolist()
