"""The best items of a catalogue against a sort of all scores, over block borders, ties and seen items."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_rank.functional import retrieval, top_items


def brute(query, item, top_k, seen):
    """By a sort of every score, an item at a time."""
    scores = query @ item.T
    for row, hidden in enumerate(seen):
        scores[row, list(hidden)] = -torch.inf
    values, items = scores.sort(dim=1, descending=True, stable=True)
    return values[:, :top_k], items[:, :top_k].masked_fill(values[:, :top_k] == -torch.inf, -1)


def draw(queries, items, seed=0, dtype=torch.float64, most_seen=5):
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(queries, 5, generator=generator, dtype=dtype)
    item = torch.randn(items, 5, generator=generator, dtype=dtype)
    count = torch.randint(0, most_seen + 1, (queries,), generator=generator).tolist()
    seen = [torch.randperm(items, generator=generator)[:n].tolist() for n in count]
    return query, item, seen


def flat(lists):
    items = torch.tensor([i for row in lists for i in row], dtype=torch.long)
    return items, torch.tensor([0, *map(len, lists)]).cumsum(0)


@pytest.fixture(params=["blocks", "one block"])
def sizes(request, monkeypatch):
    """Constants so small that every border is crossed: of queries, chunks and blocks; with groups, and without."""
    if request.param == "blocks":
        monkeypatch.setattr(retrieval, "QUERIES", 3)
        monkeypatch.setattr(retrieval, "BLOCK", 64)
        monkeypatch.setattr(retrieval, "ITEMS", 256)


@pytest.mark.parametrize("queries", [1, 3, 7])
@pytest.mark.parametrize("items", [1, 5, 63, 64, 65, 256, 257, 700])
@pytest.mark.parametrize("top_k", [1, 2, 3, 20, 1000])
def test_same_as_a_sort_of_all_scores(sizes, queries, items, top_k):
    query, item, seen = draw(queries, items)
    ids, offsets = flat(seen)
    scores, found = top_items(query, item, top_k, seen=ids, seen_offsets=offsets)
    wanted, places = brute(query, item, top_k, seen)
    torch.testing.assert_close(scores, wanted)
    assert (found == places).all()


@given(st.integers(0, 2**16), st.integers(1, 40), st.booleans())
def test_ties_change_no_score_and_no_item_comes_twice(seed, top_k, by_blocks):
    generator = torch.Generator().manual_seed(seed)
    item = torch.randint(0, 3, (300, 2), generator=generator).double()
    query = torch.randint(0, 2, (9, 2), generator=generator).double()
    with pytest.MonkeyPatch.context() as patch:
        if by_blocks:
            patch.setattr(retrieval, "QUERIES", 4)
            patch.setattr(retrieval, "BLOCK", 64)
            patch.setattr(retrieval, "ITEMS", 128)
        scores, found = top_items(query, item, top_k)
    assert torch.equal(scores, brute(query, item, top_k, [])[0])
    assert torch.equal((query @ item.T).gather(1, found), scores)
    assert all(len(set(row)) == len(row) for row in found.tolist())


def test_groups_are_used_for_large_catalogues_and_every_group_may_be_seen():
    query, item, _ = draw(300, 20_000, dtype=torch.float32)
    # All but 30 items of the first query are seen: fewer are left than asked for.
    seen = [list(range(30, 20_000))] + [[]] * 299
    ids, offsets = flat(seen)
    scores, found = top_items(query, item, 50, seen=ids, seen_offsets=offsets)
    assert sorted(found[0].tolist()) == [-1] * 20 + list(range(30))
    assert (scores[0, 30:] == -torch.inf).all()
    wanted, places = (query[1:] @ item.T).topk(50)
    torch.testing.assert_close(scores[1:], wanted)
    assert (found[1:] == places).float().mean() > 0.999, "but for what float32 cannot tell apart"


def test_layouts_of_what_was_seen_agree():
    query, item, seen = draw(6, 30)
    ids, offsets = flat(seen)
    width = max(map(len, seen))
    padded = torch.tensor([row + [999] * (width - len(row)) for row in seen])
    by_offsets = top_items(query, item, 9, seen=ids, seen_offsets=offsets)
    by_mask = top_items(query, item, 9, seen=padded, seen_mask=padded < 30)
    assert all(torch.equal(a, b) for a, b in zip(by_offsets, by_mask, strict=True))


def test_nothing_to_find():
    assert [part.shape for part in top_items(torch.zeros(0, 2), torch.zeros(3, 2), 2)] == [(0, 2), (0, 2)]
    assert [part.shape for part in top_items(torch.zeros(3, 2), torch.zeros(0, 2), 2)] == [(3, 0), (3, 0)]


def test_half_precision_is_scored_in_single_and_no_graph_is_kept():
    query, item, _ = draw(4, 50, dtype=torch.float32)
    scores, _ = top_items(query.bfloat16().requires_grad_(), item.bfloat16(), 3)
    assert scores.dtype == torch.float32
    assert not scores.requires_grad
    torch.testing.assert_close(scores, brute(query.bfloat16().float(), item.bfloat16().float(), 3, [])[0])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"query": torch.zeros(2)}, ValueError, r"`query` must be \[row, embedding\], got \[2\]"),
        ({"item": torch.tensor([[0.0, 1], [torch.nan, 0]])}, ValueError, "`item` must be finite: row 1 is not"),
        ({"item": torch.zeros(3, 2).long()}, TypeError, "`item` must be floating point"),
        ({"item": torch.zeros(3, 4)}, ValueError, "one size, got 2, but 4 for `item`"),
        ({"top_k": 0}, ValueError, "top_k"),
        ({"seen": torch.tensor([[3], [0]])}, ValueError, r"rows of the 3 items, 0 to 2, got 3"),
        ({"seen": torch.tensor([[0.0], [0.0]])}, TypeError, "`seen` must be whole numbers"),
        ({"seen": torch.tensor([[0]])}, ValueError, r"`seen` must be \[2, N\].* Got \[1, 1\]"),
        ({"seen": torch.tensor([0]), "seen_offsets": torch.tensor([0, 1])}, ValueError, r"`seen_offsets` \[3\]"),
        ({"seen": torch.tensor([0]), "seen_offsets": torch.tensor([0, 1, 2])}, ValueError, "must rise from 0 to 1"),
        ({"seen_mask": torch.ones(2, 1).bool()}, ValueError, "without `seen`"),
    ],
)
def test_errors_say_what_must_hold(change, error, message):
    inputs = {"query": torch.zeros(2, 2), "item": torch.zeros(3, 2), "top_k": 1} | change
    with pytest.raises(error, match=message):
        top_items(**inputs)


def test_tied_scores_make_no_more_work_than_others(monkeypatch):
    looked_at = []
    reaching = retrieval._reaching
    monkeypatch.setattr(retrieval, "_reaching", lambda *inputs: looked_at.append(inputs[1].numel()) or reaching(*inputs))
    scores, items = top_items(torch.zeros(6, 4), torch.randn(50_000, 4), 20)
    assert (scores == 0).all()
    assert all(len(row.unique()) == 20 for row in items)
    # Not all of the items, which are all tied with the last place.
    assert looked_at == [6 * 20 * retrieval.GROUP, 6 * 20 * retrieval.GROUP**2]
