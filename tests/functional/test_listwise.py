"""Facts about the losses on distributions and orders: what public implementations get wrong."""

from __future__ import annotations

import math

import pytest
import torch

from lightning_rank import functional
from lightning_rank.functional.levels import running
from lightning_rank.functional.losses import LOSSES
from tests.conftest import LAYOUTS, assert_close
from tests.loss_cases import F64, evaluate, one

LISTMLE, PLISTMLE = LOSSES["listmle"], LOSSES["plistmle"]


@pytest.mark.parametrize(
    ("preds", "target", "value", "gradient"),
    [
        # exp and an epsilon give inf, 14.95 and 26.97 here.
        ([100.0, 99.0], [1.0, 0.0], 0.31326168751822286, [-0.2689414213699951, 0.2689414213699951]),
        ([-30.0, -31.0], [1.0, 0.0], 0.31326168751822286, [-0.2689414213699951, 0.2689414213699951]),
        ([0.0, -50.0], [1.0, 0.0], math.exp(-50), [-math.exp(-50), math.exp(-50)]),
        # The order of the input is not that of the grades.
        ([2.0, 0.0], [0.0, 1.0], 2.1269280110429727, [0.8807970779778823, -0.8807970779778823]),
    ],
)
def test_listmle(preds, target, value, gradient):
    values, got = evaluate(LISTMLE, one(LISTMLE, preds, target))
    # Relative accuracy, for the tiny value and its gradient too.
    assert_close(values, [value], rtol=1e-11, atol=0)
    assert_close(got, gradient, rtol=1e-11 if value > 1e-9 else 1e-4, atol=1e-16)


def test_listmle_of_a_long_list():
    scores = torch.arange(1000, dtype=F64)
    assert_close(functional.listmle_loss(scores, scores), 457.9908165201, rtol=1e-12)
    assert_close(functional.listmle_loss(scores.float(), scores), 457.9908165201, rtol=1e-6)


@pytest.mark.parametrize("pads", [0, 1, 2, 4])
def test_padding_is_not_in_the_list_of_listmle(pads):
    preds, target = torch.tensor([[1.5, 0.3]], dtype=F64), torch.tensor([[2, 1]])
    preds, target = (torch.nn.functional.pad(x, (0, pads), value=0) for x in (preds, target))
    value = functional.listmle_loss(preds, target, torch.arange(2 + pads).unsqueeze(0) < 2)
    assert_close(value, 0.2632824673, rtol=1e-9)


@pytest.mark.parametrize("size", [127, 128, 1025, 3000])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_weights_of_plistmle_do_not_overflow(size, dtype):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(size, generator=generator, dtype=F64)
    value = functional.plistmle_loss(scores.to(dtype), torch.arange(size).flip(0))
    # Weights 2^(n - k) - 1 over their sum, in exact arithmetic of Python's integers; those of late picks are beyond a double.
    alphas = [2 ** (size - k) - 1 for k in range(1, size + 1)]
    terms = scores.flip(0).logcumsumexp(0).flip(0) - scores
    wanted = sum((a << 200) // sum(alphas) / 2**200 * term for a, term in zip(alphas, terms.tolist(), strict=True))
    assert_close(value, wanted, rtol=1e-11 if dtype == F64 else 1e-5)


@pytest.mark.parametrize(("dtype", "longest"), [(torch.float32, 103), (F64, 999)])
def test_plistmle_without_normalize_says_when_lists_are_too_long(dtype, longest):
    scores = 1e4 * torch.arange(longest + 1, dtype=dtype)
    target = torch.arange(longest + 1).flip(0)
    assert functional.plistmle_loss(scores[1:], target[1:], normalize=False).isfinite()
    with pytest.raises(ValueError, match=rf"too large for a list of {longest + 1} items"):
        functional.plistmle_loss(scores, target, normalize=False)


@pytest.mark.parametrize("name", ["softmax", "unique_softmax"])
def test_gain_beyond_the_dtype_is_an_error(name):
    with pytest.raises(ValueError, match=r"gain of grade 128 is too large for torch\.float32"):
        getattr(functional, f"{name}_loss")(torch.tensor([[1.0, 0.0]]), torch.tensor([[128, 0]]), gain="exp2")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_items_of_one_grade_do_not_compete_in_unique_softmax(layout):
    spec = LOSSES["unique_softmax"]
    values, gradient = evaluate(spec, one(spec, [1.0, -5.0, 3.0], [1.0, 1.0, 1.0]), layout)
    assert_close(values, [0.0])
    assert_close(gradient, [0.0, 0.0, 0.0])


def test_constant_added_to_the_grades_of_listnet_changes_nothing_and_a_factor_does():
    preds, target = torch.tensor([[0.3, -1.0, 2.0]], dtype=F64), torch.tensor([[1.0, 2.0, 1.0]])
    assert_close(functional.listnet_loss(preds, target + 3), functional.listnet_loss(preds, target))
    assert functional.listnet_loss(preds, target * 2) != functional.listnet_loss(preds, target)


def test_xendcg_draws_noise_between_0_and_1():
    # In expectation, an item of grade 0 beside one of grade 1 has the share E[a / (a + b)], a in (0, 1], b in (1, 2].
    preds = torch.tensor([[0.0, 1.0]], dtype=F64).expand(4000, 2)
    loss = functional.xendcg_loss(preds, torch.tensor([[0, 1]]).expand(4000, 2), generator=torch.Generator().manual_seed(0))
    a, b = torch.meshgrid(torch.linspace(0.0005, 0.9995, 1000), torch.linspace(1.0005, 1.9995, 1000), indexing="ij")
    share = (a / (a + b)).mean().double()
    log_shares = torch.log_softmax(preds[0], 0)
    # A share has a standard deviation below 1/8, and the two logarithms differ by 1: four of them over the root of 4000.
    assert_close(loss, -(share * log_shares[0] + (1 - share) * log_shares[1]), atol=0.008)


def test_running_combines_within_reach_only():
    values = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    reach = torch.tensor([0, 1, 2, 0, 1, 2])
    assert running(values, reach, torch.add, 0.0).tolist() == [1, 3, 7, 8, 24, 56]
    far = torch.tensor([0.0, -800.0, 900.0])
    assert_close(running(far, torch.arange(3), torch.logaddexp, -torch.inf), [0.0, 0.0, 900.0])
