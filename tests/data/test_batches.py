from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from lightning_rank.data.batches import QueryBatchSampler, RankingDataset


def dataset(lengths: list[int], **options: object) -> RankingDataset:
    """Items whose single feature is their number, from 1."""
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    items = torch.arange(1.0, int(offsets[-1]) + 1)
    return RankingDataset(items[:, None], items % 3, offsets, [f"q{i}" for i in range(len(lengths))], **options)


def test_one_query_is_not_padded():
    query = dataset([2, 3])[1]
    assert query["features"].squeeze(-1).tolist() == [3, 4, 5]
    assert query["target"].tolist() == [0, 1, 2]
    assert query["mask"].all()
    assert query["query"] == 1
    assert torch.equal(dataset([2, 3])[-1]["features"], query["features"])
    with pytest.raises(IndexError, match="There are 2 queries, got 2"):
        dataset([2, 3])[2]


def test_a_batch_is_padded_to_its_longest_list():
    batch = dataset([2, 0, 3, 9])[[2, 0, 1]]
    assert batch["features"].squeeze(-1).tolist() == [[3, 4, 5], [1, 2, 0], [0, 0, 0]]
    assert batch["target"].tolist() == [[0, 1, 2], [1, 2, 0], [0, 0, 0]]
    assert batch["mask"].sum(1).tolist() == [3, 2, 0]
    assert batch["query"].tolist() == [2, 0, 1]


def test_max_items_keeps_relevant_items_first_and_samples_the_others_anew():
    # Of nine items, six are graded above 0.
    cut = dataset([9, 2], max_items=7)[[0, 1]]
    assert cut["mask"].sum(1).tolist() == [7, 2]
    assert (cut["target"][0] > 0).sum() == 6
    assert cut["features"][1, :2].squeeze(-1).tolist() == [10, 11]
    assert torch.equal(cut["features"][0].squeeze(-1).sort().values, cut["features"][0].squeeze(-1)), "order is kept"
    seen = {tuple(dataset([9], max_items=7)[[0]]["features"].flatten().tolist()) for _ in range(50)}
    assert len(seen) == 3, "each of the three others has its turn"
    assert all((dataset([9], max_items=4)[[0]]["target"] > 0).all() for _ in range(5))


def test_widened_adds_zero_features_and_refuses_to_drop_any():
    wide = dataset([2]).widened(3)
    assert wide.features.tolist() == [[1, 0, 0], [2, 0, 0]]
    with pytest.raises(ValueError, match="has 3 features, the model was made for 2"):
        wide.widened(2)


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 9), st.booleans(), st.integers(0, 3))
def test_each_query_is_in_one_batch(lengths, batch_size, shuffle, epoch):
    sampler = QueryBatchSampler(torch.tensor(lengths, dtype=torch.int64), batch_size, shuffle=shuffle)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert sorted(q for batch in batches for q in batch) == list(range(len(lengths)))
    assert len(batches) == len(sampler)
    assert all(len(batch) <= batch_size for batch in batches)


def test_batches_hold_lists_of_similar_length():
    lengths = torch.randint(1, 100, (1000,), generator=torch.Generator().manual_seed(0))
    for shuffle in (False, True):
        sampler = QueryBatchSampler(lengths, 10, shuffle=shuffle)
        padded = sum(len(batch) * int(lengths[batch].max()) for batch in sampler)
        assert padded < 1.1 * lengths.sum()


def test_the_order_is_that_of_seed_and_epoch():
    def order(seed: int, epoch: int) -> list[list[int]]:
        sampler = QueryBatchSampler(torch.ones(50, dtype=torch.int64), 4, shuffle=True, seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)


@pytest.mark.parametrize("size", [0, -1, 2.5, True])
def test_batch_size_is_checked(size):
    with pytest.raises(ValueError, match="batch_size"):
        QueryBatchSampler(torch.ones(3), size)


def test_a_dataloader_with_workers_gives_the_same_batches():
    data = dataset([3, 1, 2, 5])
    sampler = QueryBatchSampler(data.lengths, 2)
    alone = list(DataLoader(data, sampler=sampler, batch_size=None))
    helped = list(DataLoader(data, sampler=sampler, batch_size=None, num_workers=2))
    for one, other in zip(alone, helped, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
