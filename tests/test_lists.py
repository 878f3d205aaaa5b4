"""Layouts: what ``arrange`` returns for each, and that a layout's operations are loops over queries."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lightning_rank.lists import Lists, arrange, check_grades, check_scores
from tests.conftest import LAYOUTS, SCORES, SEEDS, assert_close, batches, lay_out, with_items

NAN, INF = math.nan, math.inf
DTYPES = st.sampled_from((torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64))


def per_query(lists: Lists, values: Tensor) -> list[list]:
    """The items of each query, padding left out."""
    if values.ndim == 2:
        valid = lists.valid.expand(values.shape)
        return [row[keep].tolist() for row, keep in zip(values, valid, strict=True)]
    return [part.tolist() for part in values.split(lists.lengths.tolist())]


@given(batch=batches(max_items=9), layout=st.sampled_from(LAYOUTS), seed=SEEDS)
def test_arranged_items_are_those_of_the_queries(batch, layout, seed):
    known = with_items(batch) if layout == "indexes" else batch
    lists, preds, target, items = arrange(**lay_out(batch, layout, seed=seed), judged=None)
    assert lists.num_queries == len(known)
    assert lists.lengths.tolist() == [len(query["preds"]) for query in known]
    assert per_query(lists, preds) == [query["preds"] for query in known]
    assert per_query(lists, target) == [query["target"] for query in known]
    assert items == {"judged": None}
    # Nothing of the padding is left.
    assert preds.isfinite().logical_or(preds.isinf() & lists.valid).all()


@given(batch=batches(scores=st.integers(-3, 3), max_items=9), layout=st.sampled_from(LAYOUTS), seed=SEEDS)
def test_operations_are_loops_over_queries(batch, layout, seed):
    known = with_items(batch) if layout == "indexes" else batch
    lists, values, _, _ = arrange(**lay_out(batch, layout, seed=seed))
    rows = [query["preds"] for query in known]
    assert_close(lists.sum(values), [sum(row) for row in rows])
    assert_close(lists.max(values), [max(row, default=-INF) for row in rows])
    assert lists.sum(values > 0).tolist() == [sum(x > 0 for x in row) for row in rows]
    assert per_query(lists, lists.cumsum(values)) == [[sum(row[: i + 1]) for i in range(len(row))] for row in rows]
    assert per_query(lists, values - lists.spread(lists.sum(values))) == [[x - sum(row) for x in row] for row in rows]
    padded = lists.pad(values)
    assert padded.shape[0] == len(rows)
    assert_close(padded.sum(-1), [sum(row) for row in rows])
    assert [sorted(x for x in row if x) for row in padded.tolist()] == [sorted(x for x in row if x) for row in rows]


@given(data=st.data())
def test_order_is_descending_within_each_query(data):
    dtype, layout = data.draw(DTYPES), data.draw(st.sampled_from(LAYOUTS))
    scores = st.integers(-3, 3) if dtype == torch.int64 else SCORES
    batch = data.draw(batches(scores=scores, max_items=9))
    known = with_items(batch) if layout == "indexes" else batch
    lists, values, _, _ = arrange(**lay_out(batch, layout, dtypes={"preds": dtype}, seed=data.draw(SEEDS)))
    order, key = lists.order(values, stable=True)
    ranked, numbers = values.gather(-1, order), torch.arange(values.shape[-1]).expand(values.shape)
    assert per_query(lists.sorted(), ranked) == [sorted(query["preds"], reverse=True) for query in known]
    # Items stay in their query, and equal ones in their order.
    expected = [
        [row[i] for i in sorted(range(len(row)), key=lambda i, scores=query["preds"]: -scores[i])]
        for row, query in zip(per_query(lists, numbers), known, strict=True)
    ]
    assert per_query(lists.sorted(), order) == expected
    assert per_query(lists.sorted(), lists.ties_with_above(key)) == [
        [i > 0 and row[i] == row[i - 1] for i in range(len(row))] for row in per_query(lists.sorted(), ranked)
    ]
    padding = lists.sorted().valid.logical_not().expand(key.shape)
    assert not (lists.ties_with_above(key) & padding).any()


def test_position_counts_from_zero_in_each_query():
    batch = [{"preds": [1.0] * n, "target": [0.0] * n} for n in (3, 0, 2)]
    for layout in LAYOUTS:
        lists, preds, _, _ = arrange(**lay_out(batch, layout))
        positions = per_query(lists.sorted(), lists.sorted().position.expand(preds.shape))
        assert [row for row in positions if row] == [[0, 1, 2], [0, 1]]


def test_ids():
    preds = torch.tensor([3.0, 1.0, 2.0])
    lists, arranged, _, _ = arrange(preds, preds, indexes=torch.tensor([9, -2, 9], dtype=torch.int32))
    assert lists.ids.tolist() == [-2, 9]
    assert lists.ids.dtype == torch.int64
    assert arranged.tolist() == [1.0, 3.0, 2.0]
    lists, *_ = arrange(preds, preds, offsets=torch.tensor([0, 1, 3]), indexes=torch.tensor([7, 5]))
    assert lists.ids.tolist() == [7, 5]
    assert lists.name(1) == "query 1 (id 5)"
    lists, *_ = arrange(preds[None], preds[None], indexes=torch.tensor([7]))
    assert lists.ids.tolist() == [7]
    lists, *_ = arrange(preds, preds)
    assert lists.ids is None
    assert lists.name(0) == "query 0"


def test_flat_alone_is_one_query():
    lists, *_ = arrange(torch.tensor([3.0, 1.0]), torch.tensor([0, 1]))
    assert lists.lengths.tolist() == [2]


def test_padding_of_further_items_is_cleared():
    preds, mask = torch.tensor([[1.0, NAN]]), torch.tensor([[True, False]])
    _, _, _, items = arrange(preds, preds, mask=mask, weight=torch.tensor([[2.0, NAN]]))
    assert items["weight"].tolist() == [[2.0, 0.0]]


def test_a_forgotten_squeeze_is_named():
    with pytest.raises(ValueError, match=r"shape of `preds`, \[3, 5, 1\], got \[3, 5\]\..*preds\.squeeze\(-1\)"):
        arrange(torch.randn(3, 5, 1), torch.zeros(3, 5))


def test_tensors_must_lie_on_one_device():
    preds = torch.ones(2)
    with pytest.raises(ValueError, match="one device, got `preds` on cpu, `target` on meta"):
        arrange(preds, preds.to("meta"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nan_is_found_and_its_query_named(layout, dtype):
    batch = [{"preds": [1.0, INF, -INF], "target": [0.0] * 3}, {"preds": [NAN, 60000.0], "target": [NAN, NAN]}]
    lists, preds, target, _ = arrange(**lay_out(batch, layout, dtypes={"preds": dtype}, ids=[4, 8]))
    name = r"query 1 \(id 8\)" if layout == "indexes" else "query 1"
    with pytest.raises(ValueError, match=f"`preds` must not be NaN, got 1 NaN in {name}; 1 of 2 queries"):
        check_scores(lists, preds)
    with pytest.raises(ValueError, match=f"`target` must not be NaN, got 2 NaN in {name}"):
        check_grades(lists, target)


def test_infinite_and_masked_scores_are_no_nan():
    preds = torch.tensor([[INF, -INF, NAN]])
    lists, preds, _, _ = arrange(preds, preds, mask=torch.tensor([[True, True, False]]))
    check_scores(lists, preds)
    largest = torch.full((1, 100), 60000.0, dtype=torch.float16)  # whose sum is inf
    lists, largest, _, _ = arrange(largest, largest)
    check_scores(lists, largest)


def test_offsets_in_an_error_are_abridged():
    with pytest.raises(ValueError, match=r"got \[0, 1, 2, 3, '\.\.\.', 17, 18, 19\]"):
        arrange(torch.ones(5), torch.ones(5), offsets=torch.arange(20))
