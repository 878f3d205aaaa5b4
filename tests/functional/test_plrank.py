"""PL-Rank: samples average to the exact expectation, and so do their gradients."""

from __future__ import annotations

import math
from itertools import chain

import pytest
import torch

from lightning_rank.functional import plrank_loss
from lightning_rank.functional.losses import LOSSES
from tests.conftest import assert_close, golden
from tests.loss_cases import F64, evaluate

SPEC = LOSSES["plrank"]
NUM_SAMPLES = 1000


@pytest.mark.parametrize("case", golden("losses")["losses"]["plrank"]["cases"], ids=lambda case: case["name"])
def test_samples_average_to_the_golden_expectation(case):
    batch = [{"preds": preds, "target": target} for preds, target in zip(case["preds"], case["target"], strict=True)]
    options = case["kwargs"] | {"num_samples": NUM_SAMPLES, "generator": torch.Generator().manual_seed(0)}
    values, gradient = evaluate(SPEC, batch, **options)
    expect = case["expect"]
    deviation = expect["one_sample_std"]
    spreads = [query["value"] for query in deviation], [g for query in deviation for g in query["grad"]]
    for got, wanted, spread in (
        (values, expect["per_query"], spreads[0]),
        (gradient, list(chain.from_iterable(expect["grad_of_sum"])), spreads[1]),
    ):
        error = (got - torch.tensor(wanted, dtype=F64)).abs()
        assert (error <= 5 * torch.tensor(spread, dtype=F64) / math.sqrt(NUM_SAMPLES) + 1e-12).all()


@pytest.mark.parametrize("gap", [50.0, 745.0, 1e5])
def test_finite_for_any_gap(gap):
    preds = torch.tensor([[0.0, gap, -gap]], requires_grad=True)
    value = plrank_loss(preds, torch.tensor([[1, 0, 2]]), generator=torch.Generator().manual_seed(0))
    value.backward()
    # The order is all but certain, and its gain known.
    ideal = 3 + 1 / math.log2(3)
    assert_close(value, 1 - (1 / math.log2(3) + 3 / 2) / ideal, rtol=1e-6)
    assert preds.grad.isfinite().all()


def test_samples_of_a_batch_belong_to_their_queries():
    # Two equal queries: their values are two draws of one expectation, not one divided between both.
    preds, target = torch.tensor([[0.2, 0.5, -0.3]], dtype=F64), torch.tensor([[2, 0, 1]])
    options = {"num_samples": NUM_SAMPLES, "reduction": "none"}
    alone = plrank_loss(preds, target, generator=torch.Generator().manual_seed(0), **options)
    both = plrank_loss(preds.repeat(2, 1), target.repeat(2, 1), generator=torch.Generator().manual_seed(1), **options)
    assert_close(both, alone.expand(2), atol=5 * 0.5 / math.sqrt(NUM_SAMPLES))
    assert both[0] != both[1]
