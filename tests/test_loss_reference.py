"""The slow references of the losses against golden values and gradients."""

from __future__ import annotations

import pytest
import torch

from tests import loss_reference
from tests.conftest import golden

LOSSES = golden("losses")["losses"]
CASES = [
    pytest.param(entry["functional"].removesuffix("_loss"), case, id=f"{name}-{case['name']}")
    for name, entry in LOSSES.items()
    for case in entry["cases"]
    if name != "in_batch_softmax"
]


def test_every_loss_has_a_reference():
    names = {entry["functional"].removesuffix("_loss") for entry in LOSSES.values()}
    assert names == {*loss_reference.LOSS_REFERENCES, "in_batch_softmax"}


@pytest.mark.parametrize(("name", "case"), CASES)
def test_golden_values_and_gradients(name, case):
    expect = case["expect"]
    for query, (preds, target) in enumerate(zip(case["preds"], case["target"], strict=True)):
        noise = {"gamma": case["gamma"][query]} if "gamma" in case else {}
        value, gradient, signal = loss_reference.loss_with_gradient(name, preds, target, **case["kwargs"], **noise)
        assert value == pytest.approx(expect["per_query"][query], rel=1e-10, abs=1e-13)
        assert signal == expect["signal"][query]
        torch.testing.assert_close(
            torch.tensor(gradient, dtype=torch.float64),
            torch.tensor(expect["grad_of_sum"][query], dtype=torch.float64),
            rtol=1e-9,
            atol=1e-11 * max(1.0, abs(value)),
        )


@pytest.mark.parametrize("case", LOSSES["in_batch_softmax"]["cases"], ids=lambda case: case["name"])
def test_in_batch_softmax(case):
    query, item = (torch.tensor(case[name], dtype=torch.float64, requires_grad=True) for name in ("query", "item"))
    extra = {name: case[name] for name in ("item_ids", "log_q") if name in case}
    values = loss_reference.in_batch_softmax(query, item, **case["kwargs"], **extra)
    values.sum().backward()
    for got, expected in [
        (values, case["expect"]["per_query"]),
        (query.grad, case["expect"]["grad_of_sum_query"]),
        (item.grad, case["expect"]["grad_of_sum_item"]),
    ]:
        torch.testing.assert_close(got.detach(), torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-13)


def test_samples_of_plrank_average_to_its_expectation():
    scores, grades = [0.4, -0.3, 1.1, 0.4], [0.0, 2.0, 1.0, 0.0]
    uniform = torch.rand(4000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = (-(-uniform.log()).log()).tolist()
    for top_k in (None, 2):
        value, gradient, _ = loss_reference.loss_with_gradient("plrank", scores, grades, top_k=top_k)
        sampled, sampled_gradient = loss_reference.plrank_of_noise(scores, grades, noise=noise, top_k=top_k)
        # Rewards lie in [0, 1]: a standard deviation below 1/2, and 5 of them over the root of 4000.
        assert sampled == pytest.approx(value, abs=0.04)
        assert sampled_gradient == pytest.approx(gradient, abs=0.04)
