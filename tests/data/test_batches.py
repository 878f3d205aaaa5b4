from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from lightning_rank import functional
from lightning_rank.data.batches import QueryBatchSampler, QueryLoader, RankingDataset
from lightning_rank.functional.losses import LOSSES
from lightning_rank.metrics import RankingMetrics


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


# Jagged ---------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 6), min_size=1, max_size=8), st.data())
def test_a_jagged_batch_is_the_padded_one_without_its_padding(lengths, data):
    queries = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=6))
    padded, jagged = dataset(lengths)[queries], dataset(lengths, layout="jagged")[queries]
    assert torch.equal(jagged["features"], padded["features"][padded["mask"]])
    assert torch.equal(jagged["target"], padded["target"][padded["mask"]])
    assert torch.equal(jagged["offsets"].diff(), padded["mask"].sum(1))
    assert torch.equal(jagged["query"], padded["query"])
    assert jagged["offsets"].dtype == torch.int64


def test_jagged_batches_are_cut_as_padded_ones_are():
    cut = dataset([9, 2], max_items=7, layout="jagged")[[0, 1]]
    assert cut["offsets"].tolist() == [0, 7, 9]
    assert (cut["target"][:7] > 0).sum() == 6
    assert cut["features"][7:].flatten().tolist() == [10, 11]


def test_one_jagged_query_is_a_batch_of_one():
    assert dataset([2, 3], layout="jagged")[1]["offsets"].tolist() == [0, 3]
    with pytest.raises(ValueError, match="layout"):
        dataset([2], layout="flat")


# Two losses draw at random, two have other arguments; the laws of all losses hold them to either layout, given the draws.
OTHERS = ("xendcg", "plrank", "in_batch_softmax", "ordinal")


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in OTHERS])
def test_losses_and_their_gradients_are_those_of_either_layout(name):
    data = dataset([3, 1, 6, 4, 2])
    jagged = replace(data, layout="jagged")[[2, 0, 4, 1]]
    padded = data[[2, 0, 4, 1]]
    scores = torch.randn(int(jagged["offsets"][-1]), generator=torch.Generator().manual_seed(0)).double()
    flat = scores.clone().requires_grad_()
    laid_out = scores.clone().requires_grad_()
    rows = torch.zeros(padded["mask"].shape, dtype=torch.float64).masked_scatter(padded["mask"], laid_out)
    target = {"padded": padded["target"].double(), "jagged": jagged["target"].double()}
    if name == "pointwise_bce":
        target = {layout: grade / 2 for layout, grade in target.items()}
    one = getattr(functional, f"{name}_loss")(flat, target["jagged"], offsets=jagged["offsets"])
    other = getattr(functional, f"{name}_loss")(rows, target["padded"], padded["mask"])
    torch.testing.assert_close(one, other)
    one.backward()
    other.backward()
    torch.testing.assert_close(flat.grad, laid_out.grad)


def test_metrics_are_those_of_either_layout():
    data = dataset([3, 1, 6, 4, 2])
    padded, jagged = RankingMetrics(["ndcg@3", "map", "mrr"]), RankingMetrics(["ndcg@3", "map", "mrr"])
    for queries in QueryBatchSampler(data.lengths, 2):
        batch, other = data[queries], replace(data, layout="jagged")[queries]
        padded.update(-batch["features"].squeeze(-1) % 5, batch["target"], mask=batch["mask"])
        jagged.update(-other["features"].squeeze(-1) % 5, other["target"], offsets=other["offsets"])
    assert padded.compute() == jagged.compute()


# Batches by items, over processes, and where one stopped ----------------------------------------------------------------

LENGTHS = st.lists(st.integers(0, 40), max_size=80).map(lambda lengths: torch.tensor(lengths, dtype=torch.int64))


@given(LENGTHS, st.none() | st.integers(1, 7), st.none() | st.integers(1, 90), st.booleans(), st.integers(1, 4))
def test_each_query_is_in_one_batch_of_one_process(lengths, batch_size, batch_items, shuffle, replicas):
    if batch_size is None and batch_items is None:
        batch_size = 3
    steps = set()
    for epoch in (0, 1):
        parts = []
        for rank in range(replicas):
            sampler = QueryBatchSampler(
                lengths, batch_size, shuffle=shuffle, batch_items=batch_items, num_replicas=replicas, rank=rank
            )
            sampler.set_epoch(epoch)
            parts.append(list(sampler))
            assert len(parts[-1]) == len(sampler)
        assert len({len(part) for part in parts}) == 1, "as many steps in each process, or they would wait for one another"
        steps.add(len(parts[0]))
        batches = [batch for part in parts for batch in part]
        assert sorted(q for batch in batches for q in batch) == list(range(len(lengths)))
        for batch in batches:
            assert batch_size is None or len(batch) <= batch_size
            size = len(batch) * int(lengths[batch].max()) if batch else 0
            assert batch_items is None or size <= batch_items or len(batch) == 1
        if len(lengths) >= 2 * replicas and batch_items is None:
            assert all(batches), "no process is without a query"
        for step in zip(*parts, strict=True):
            assert max(map(len, step)) - min(map(len, step)) <= 1
    assert len(steps) == 1, "as many in each epoch, as Lightning counts them once"


def test_processes_together_see_the_batches_of_one():
    lengths = torch.randint(1, 100, (203,), generator=torch.Generator().manual_seed(0))
    alone = QueryBatchSampler(lengths, 10, shuffle=True, seed=3)
    parts = [QueryBatchSampler(lengths, 5, shuffle=True, seed=3, num_replicas=2, rank=rank) for rank in range(2)]
    for batch, *pieces in zip(alone, *parts, strict=True):
        assert sorted(batch) == sorted(pieces[0] + pieces[1])


def test_batches_by_items_are_full_and_of_similar_length():
    lengths = torch.randint(1, 1000, (5000,), generator=torch.Generator().manual_seed(0))
    for shuffle in (False, True):
        sampler = QueryBatchSampler(lengths, shuffle=shuffle, batch_items=5000)
        padded = [len(batch) * int(lengths[batch].max()) for batch in sampler]
        assert max(padded) <= 5000
        assert sum(padded) < 1.1 * lengths.sum(), "of each ten items at most one is padding"
        assert lengths.sum() / len(sampler) > 0.8 * 5000


def test_classes_of_length_hold_what_they_are_said_to():
    lengths = torch.arange(1, 200_000)
    classes = QueryBatchSampler(lengths, shuffle=True, batch_items=1)._classes()
    assert (classes >= lengths).all()
    assert (classes <= (lengths * 1.0906).ceil()).all(), "an eighth of a doubling"
    assert (classes.diff() >= 0).all()


def test_shuffled_batches_by_items_differ_by_epoch_and_mix_queries():
    lengths = torch.randint(20, 200, (1000,), generator=torch.Generator().manual_seed(0))
    sampler = QueryBatchSampler(lengths, shuffle=True, batch_items=1000)
    epochs = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        epochs.append([tuple(sorted(batch)) for batch in sampler])
    assert not set(epochs[0]) & set(epochs[1]) & set(epochs[2])
    sampler.set_epoch(0)
    assert [tuple(sorted(batch)) for batch in sampler] == epochs[0]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("by", [{"batch_size": 3}, {"batch_items": 12}])
def test_a_loader_goes_on_where_it_was_saved(workers, by):
    data = dataset([3, 1, 2, 5, 4, 1, 1, 7, 2, 2, 6])

    def loader() -> QueryLoader:
        sampler = QueryBatchSampler(data.lengths, shuffle=True, seed=5, **by)
        return QueryLoader(data, sampler=sampler, batch_size=None, num_workers=workers)

    whole = loader()
    whole.sampler.set_epoch(2)
    batches = [batch["query"].tolist() for batch in whole]
    assert whole.state_dict()["start"] == 0, "a finished epoch is not gone on with"
    first = loader()
    first.sampler.set_epoch(2)
    for _, batch in zip(range(2), first, strict=False):
        assert len(batch["query"])
    state = first.state_dict()
    assert state == {"epoch": 2, "start": 2}
    second = loader()
    second.load_state_dict(state)
    second.sampler.set_epoch(2)
    assert [batch["query"].tolist() for batch in second] == batches[2:]
    assert [batch["query"].tolist() for batch in second] == batches, "only the first time"
    third = loader()
    third.load_state_dict(state)
    third.sampler.set_epoch(3)
    assert len(list(third)) == len(batches), "what was saved in another epoch is over"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "both are None"),
        ({"batch_items": 0}, "`batch_items` must be a whole number of items"),
        ({"batch_size": 1, "rank": 1}, "go together"),
        ({"batch_size": 1, "rank": 2, "num_replicas": 2}, "one of the 2 processes, counted from 0, got 2"),
    ],
)
def test_what_a_sampler_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        QueryBatchSampler(torch.ones(3), **options)
