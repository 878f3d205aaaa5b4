"""In-batch softmax in one process; several processes are in tests/test_losses_distributed.py."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lightning_rank import InBatchSoftmaxLoss
from lightning_rank.functional import in_batch, in_batch_softmax_loss
from tests import loss_reference
from tests.conftest import assert_close, golden

CASES = golden("losses")["losses"]["in_batch_softmax"]["cases"]
F64 = torch.float64


def towers(rows: int = 7, dim: int = 3, dtype: torch.dtype = F64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, items, ids of which some are equal, log_q."""
    generator = torch.Generator().manual_seed(0)
    query, item = (torch.randn(rows, dim, generator=generator, dtype=dtype).requires_grad_() for _ in range(2))
    return query, item, torch.arange(rows) % 4, torch.randn(rows, generator=generator, dtype=dtype).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_golden_values(case, dtype):
    query, item = (torch.tensor(case[name], dtype=dtype, requires_grad=True) for name in ("query", "item"))
    extra = {name: torch.tensor(case[name]) for name in ("item_ids", "log_q") if name in case}
    expect, rtol = case["expect"], 1e-9 if dtype == F64 else 1e-5
    values = in_batch_softmax_loss(query, item, reduction="none", **case["kwargs"], **extra)
    assert values.dtype == dtype
    values.sum().backward()
    assert_close(values, expect["per_query"], rtol=rtol, atol=rtol)
    assert_close(query.grad, expect["grad_of_sum_query"], rtol=rtol, atol=rtol)
    assert_close(item.grad, expect["grad_of_sum_item"], rtol=rtol, atol=rtol)
    for reduction in ("sum", "mean"):
        value = in_batch_softmax_loss(query, item, reduction=reduction, **case["kwargs"], **extra)
        assert_close(value, expect[reduction], rtol=rtol, atol=rtol)


@pytest.mark.parametrize("most", [1, 20, 10**6])
def test_rows_at_a_time_change_nothing(most, monkeypatch):
    monkeypatch.setattr(in_batch, "MOST_LOGITS", most)
    query, item, ids, log_q = towers()
    values = in_batch_softmax_loss(query, item, temperature=0.3, item_ids=ids, log_q=log_q, reduction="none")
    wanted = loss_reference.in_batch_softmax(query, item, temperature=0.3, item_ids=ids.tolist(), log_q=log_q)
    assert_close(values, wanted.detach())
    upstream = torch.linspace(-1, 2, len(query), dtype=F64)
    leaves = (query, item, log_q)
    for got, expected in zip(
        torch.autograd.grad(values, leaves, upstream), torch.autograd.grad(wanted, leaves, upstream), strict=True
    ):
        assert_close(got, expected)


def test_gradcheck():
    query, item, ids, log_q = towers(4, 2)
    assert torch.autograd.gradcheck(
        lambda q, d, c: in_batch_softmax_loss(q, d, item_ids=ids, log_q=c, reduction="none"), (query, item, log_q)
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_finite_for_any_gap_and_under_autocast(dtype):
    query, item = (100 * torch.eye(4, 3, dtype=dtype) for _ in range(2))
    query.requires_grad_()
    value = in_batch_softmax_loss(query, item.flip(0), temperature=1.0)
    value.backward()
    assert value.dtype == torch.float32
    assert value.isfinite()
    assert query.grad.dtype == dtype
    assert query.grad.isfinite().all()
    gradient, query.grad = query.grad, None
    with torch.autocast("cpu", torch.bfloat16):
        again = in_batch_softmax_loss(query, item.flip(0), temperature=1.0)
        again.backward()
    assert torch.equal(again, value)
    assert torch.equal(query.grad, gradient)


def test_no_rows_are_zero_on_the_graph():
    query, item = torch.empty(0, 3, requires_grad=True), torch.empty(0, 3, requires_grad=True)
    value = in_batch_softmax_loss(query, item)
    value.backward()
    assert value == 0
    assert query.grad.shape == (0, 3)


def test_module():
    query, item, ids, log_q = towers()
    module = InBatchSoftmaxLoss(0.3, reduction="sum")
    assert repr(module) == "InBatchSoftmaxLoss(temperature=0.3, reduction='sum', gather=True)"
    assert module(query, item, ids, log_q) == in_batch_softmax_loss(
        query, item, temperature=0.3, item_ids=ids, log_q=log_q, reduction="sum"
    )
    with pytest.raises(ValueError, match="`temperature` must be a finite number above 0"):
        InBatchSoftmaxLoss(0.0)
    with pytest.raises(ValueError, match="`reduction` must be one of"):
        InBatchSoftmaxLoss(reduction="average")


ROWS = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("error", "changed", "message"),
    [
        (TypeError, {"query": [1.0]}, "`query` must be a tensor, got list"),
        (TypeError, {"item": ROWS.long()}, "`item` must be floating point"),
        (ValueError, {"item": torch.zeros(3, 3)}, r"\[row, embedding\] of one shape, got \[2, 3\] and \[3, 3\]"),
        (ValueError, {"query": ROWS[0], "item": ROWS[0]}, r"\[row, embedding\] of one shape"),
        (TypeError, {"item_ids": torch.zeros(2)}, "`item_ids` must be whole numbers"),
        (ValueError, {"item_ids": torch.zeros(3, dtype=torch.long)}, r"`item_ids` must be one per row, \[2\], got \[3\]"),
        (ValueError, {"log_q": torch.zeros(2, 1)}, r"`log_q` must be one per row"),
        (ValueError, {"log_q": torch.tensor([0.0, -torch.inf])}, "`log_q` must be finite"),
        (ValueError, {"temperature": 0}, "`temperature` must be a finite number above 0, got 0"),
        (ValueError, {"reduction": "average"}, "`reduction` must be one of"),
    ],
)
def test_bad_input(error, changed, message):
    with pytest.raises(error, match=message):
        in_batch_softmax_loss(**{"query": ROWS, "item": ROWS} | changed)
