"""Queries and how they become batches: whole queries of similar length, padded or end to end, each in one batch of one process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn.functional import pad
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from lightning_rank.conventions import check_choice

LAYOUTS = ("padded", "jagged")


@dataclass(frozen=True, eq=False)
class RankingDataset(Dataset):
    """Queries and their items, query by query.

    ``dataset[q]`` is one query, ``dataset[[q1, q2, ...]]`` a padded batch: a dict of ``features`` ``[query, item, feature]``
    float32, ``target`` ``[query, item]``, ``mask`` (False is padding) and ``query`` ``[query]``, the number of each query. One
    query alone has no padding and no first axis. A jagged batch has the items of all its queries end to end: ``features``
    ``[item, feature]``, ``target`` ``[item]``, ``offsets`` ``[query + 1]`` and ``query``; nothing in it is padding, and one
    query is a batch of one.

    Attributes:
        features: ``[item, feature]`` float32, or float16 to take half the room.
        grades: ``[item]`` float32.
        offsets: ``[query + 1]`` int64: query q is ``offsets[q]:offsets[q + 1]``.
        query_ids: the text of each query's id.
        document_ids: the text of each item's id; None where the source has none.
        rows: ``[item]`` int64, the place of the item in the source, counted from 0 over what holds an item; None: as here.
        max_items: the longest list of a batch. Of a longer one, items graded above 0 come first, then the others, at random
            among equals and anew each time: only training may cut lists. None: never.
        layout: of a batch, ``"padded"`` or ``"jagged"``.

    Example:
        >>> data = RankingDataset(torch.eye(3), torch.tensor([2.0, 0.0, 1.0]), torch.tensor([0, 1, 3]), ["a", "b"])
        >>> data[[0, 1]]["mask"]
        tensor([[ True, False],
                [ True,  True]])
        >>> replace(data, layout="jagged")[[1, 0]]["offsets"]
        tensor([0, 2, 3])
    """

    features: Tensor
    grades: Tensor
    offsets: Tensor
    query_ids: Sequence[str]
    document_ids: Sequence[str] | None = None
    rows: Tensor | None = None
    max_items: int | None = None
    layout: str = "padded"

    def __post_init__(self) -> None:
        check_choice("layout", self.layout, LAYOUTS)

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
            return batch if self.layout == "jagged" else {name: value[0] for name, value in batch.items()}
        queries = torch.as_tensor(query, dtype=torch.int64)
        start = self.offsets[queries]
        length = self.offsets[queries + 1] - start
        longest = int(length.max()) if len(queries) else 0
        place = torch.arange(longest)
        mask = place < length[:, None]
        items = start[:, None] + place
        if self.max_items is not None and longest > self.max_items:
            first = (self.grades[torch.where(mask, items, 0)] > 0).float() + torch.rand(items.shape)
            kept = torch.where(mask, first, -1.0).topk(self.max_items).indices.sort().values
            items, mask = items.gather(1, kept), mask.gather(1, kept)
        if self.layout == "jagged":
            items = items[mask]
            offsets = pad(mask.sum(1).cumsum(0), (1, 0))
            return {
                "features": self._features(items), "target": self.grades[items], "offsets": offsets, "query": queries,
            }  # fmt: skip
        items = torch.where(mask, items, 0)
        if not len(self.grades):
            items = items[:, :0]
        # Only the padding is written a second time: this is the largest thing here.
        features = self._features(items.flatten())
        padding = (~mask).flatten().nonzero().squeeze(1)
        features = features.index_fill_(0, padding, 0.0).unflatten(0, items.shape)
        target = self.grades[items].masked_fill_(~mask, 0.0)
        return {"features": features, "target": target, "mask": mask, "query": queries}

    def _features(self, items: Tensor) -> Tensor:
        return self.features.index_select(0, items).float()

    def widened(self, num_features: int) -> RankingDataset:
        """The same data with zero features added, up to ``num_features``; what a sparse source leaves out is 0.

        Raises:
            ValueError: there are more than ``num_features`` already.
        """
        if self.num_features == num_features:
            return self
        if self.num_features > num_features:
            raise ValueError(
                f"The data has {self.num_features} features, the model was made for {num_features}: declare the larger number "
                "as `num_features` before training."
            )
        return replace(self, features=pad(self.features, (0, num_features - self.num_features)))


class QueryBatchSampler(DistributedSampler):
    """Batches of whole queries of similar length, so that little is padding; over several processes each query is in one batch.

    By number of queries (``batch_size``), shuffled: queries are shuffled, sorted by length within pools of 32 batches, cut into
    batches, and the batches shuffled. By number of items (``batch_items``), shuffled: queries are shuffled within classes of
    length that differ by at most a tenth, cut into batches, and the batches shuffled. Otherwise all are sorted by length. Every
    epoch has the same number of batches.

    Over processes, those of one step have their queries dealt out in turn, so that all take equally many steps, with lists
    equally long, and no query is repeated or lost; the last batch may be one query smaller in some, and empty where there are
    fewer queries than processes. The order depends on ``seed`` and epoch alone, so that it is the same in every process and
    after resuming; ``state_dict`` holds the place in an epoch.

    It is a ``DistributedSampler`` to Lightning, which therefore does not put one of its own around it.

    Args:
        lengths: ``[query]`` items per query.
        batch_size: queries per batch and process, at most; None: as many as ``batch_items`` lets in.
        shuffle: another order each epoch.
        seed: of that order.
        batch_items: items per batch and process, at most and padding included; a longer list is a batch of its own.
        num_replicas, rank: processes and the number of this one; None takes them from ``torch.distributed`` where that runs.

    Raises:
        ValueError: no whole number where one is needed; neither ``batch_size`` nor ``batch_items``.

    Example:
        >>> list(QueryBatchSampler(torch.tensor([5, 1, 4, 2]), batch_size=2))
        [[1, 3], [2, 0]]
        >>> list(QueryBatchSampler(torch.tensor([5, 1, 4, 2]), batch_size=None, batch_items=5))
        [[0], [2], [3, 1]]
    """

    def __init__(
        self,
        lengths: Tensor,
        batch_size: int | None = None,
        *,
        shuffle: bool = False,
        seed: int = 0,
        batch_items: int | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        if batch_size is None and batch_items is None:
            raise ValueError("`batch_size` (queries) or `batch_items` must say how large a batch is; both are None.")
        for name, value in (("batch_size", batch_size), ("batch_items", batch_items)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                unit = "queries" if name == "batch_size" else "items"
                raise ValueError(f"`{name}` must be a whole number of {unit} >= 1, got {value!r}.")
        if (num_replicas is None) != (rank is None):
            raise ValueError(f"`num_replicas` and `rank` go together, got {num_replicas} and {rank}.")
        if rank is not None and not 0 <= rank < (num_replicas or 0):
            raise ValueError(f"`rank` must be one of the {num_replicas} processes, counted from 0, got {rank}.")
        self.lengths, self.batch_size, self.shuffle, self.seed, self.batch_items = (
            lengths, batch_size, shuffle, seed, batch_items,
        )  # fmt: skip
        self._replicas, self._rank = num_replicas, rank
        self.epoch = 0
        self.start = 0
        self._cut: tuple[int, list[int]] | None = None

    @property
    def num_replicas(self) -> int:  # type: ignore[override]  # known once the processes have found one another
        """Number of processes."""
        if self._replicas is not None:
            return self._replicas
        return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1

    @property
    def rank(self) -> int:  # type: ignore[override]
        """Number of this process."""
        if self._rank is not None:
            return self._rank
        return distributed.get_rank() if self.num_replicas > 1 else 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order; Lightning calls this at the start of each epoch."""
        if epoch != self.epoch:
            self.start = 0  # what was to go on has ended
        self.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """What ``load_state_dict`` needs to go on at the batch ``start``."""
        return {"epoch": self.epoch, "start": self.start}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where another one stopped: the next iteration, and only that, begins with the batch ``start``."""
        self.epoch, self.start = state_dict["epoch"], state_dict["start"]

    def __len__(self) -> int:
        return len(self._sizes())

    def __iter__(self) -> Iterator[list[int]]:
        start, self.start = self.start, 0
        rank, replicas = self.rank, self.num_replicas
        for batch in self._batches()[start:]:
            yield batch[rank::replicas].tolist()

    def _sizes(self) -> list[int]:
        """Queries of each batch, over all processes, in the order in which batches are cut."""
        replicas = self.num_replicas
        if self._cut is None or self._cut[0] != replicas:
            self._cut = (replicas, self._cut_sizes(replicas))
        return self._cut[1]

    def _cut_sizes(self, replicas: int) -> list[int]:
        number, sizes = len(self.lengths), []
        if self.batch_items is None:
            size = replicas * self.batch_size  # type: ignore[operator]  # one of both is given
            sizes = [size] * (number // size) + ([number % size] if number % size else [])
        else:
            # From the longest on, by the upper end of each class of length: then the cuts are those of any epoch.
            longest = self._classes().sort(descending=True).values.tolist()
            most = number if self.batch_size is None else self.batch_size
            place = 0
            while place < number:
                own = min(max(1, self.batch_items // max(longest[place], 1)), most)
                sizes.append(min(replicas * own, number - place))
                place += sizes[-1]
        if len(sizes) > 1 and sizes[-1] < replicas:
            # Shared with the batch before, so that no process has an empty one.
            both = sizes[-2] + sizes[-1]
            sizes[-2:] = [both - both // 2, both // 2]
        return sizes

    def _classes(self) -> Tensor:
        """``[query]`` the longest length of the class of each query's length; without shuffling each length is a class."""
        if not self.shuffle:
            return self.lengths
        # Eight classes for each doubling; short lists have a class per length.
        return (2 ** ((self.lengths.clamp(min=1).double().log2() * 8).ceil() / 8)).floor().long()

    def _batches(self) -> list[Tensor]:
        """All batches of the epoch, over all processes."""
        sizes = self._sizes()
        if not self.shuffle:
            by_items = self.batch_items is not None
            return list(torch.argsort(self.lengths, stable=True, descending=by_items).split(sizes))
        generator = torch.Generator().manual_seed(hash((self.seed, self.epoch)) % 2**63)
        order = torch.randperm(len(self.lengths), generator=generator)
        if self.batch_items is not None:
            order = order[torch.argsort(self._classes()[order], stable=True, descending=True)]
        else:
            pools = order.split(32 * self.num_replicas * self.batch_size)  # type: ignore[operator]  # one of both is given
            order = torch.cat([pool[torch.argsort(self.lengths[pool], stable=True)] for pool in pools]) if pools else order
        batches = order.split(sizes)
        return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


class QueryLoader(DataLoader):
    """A DataLoader that goes on in the middle of an epoch where it was saved, for a ``QueryBatchSampler`` as ``sampler``.

    Lightning saves its state in checkpoints.
    """

    _given = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # a generator, so that what is given is counted
        sampler: Any = self.sampler
        self._given = sampler.start
        for batch in super().__iter__():
            self._given += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """The place in the epoch, behind the last batch that was given; at its end, the start of another."""
        sampler: Any = self.sampler
        return {"epoch": sampler.epoch, "start": self._given if self._given < len(self) else 0}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Begin the next iteration at that place."""
        sampler: Any = self.sampler
        sampler.load_state_dict(state_dict)
