"""Smooth ranks by every method against the sums over all pairs, and the losses on them: memory, extremes, devices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lightning_rank import functional
from lightning_rank.functional import soft_ranks as soft_ranks_file
from lightning_rank.functional.batch import METHODS
from lightning_rank.functional.soft_ranks import soft_ranks
from lightning_rank.lists import arrange
from tests import loss_reference
from tests.conftest import SEEDS, assert_close, batches, lay_out

F64 = torch.float64
NAMES = ("approx_ndcg", "approx_mrr", "approx_map")
SCORES = st.sampled_from((-1e6, -3.0, -0.3, 0.0, 0.0, 0.2, 0.5, 2.0, 1e4, 1e6))
WEIGHTS = st.sampled_from((0.0, 0.5, 1.0, 3.0))
every_method = pytest.mark.parametrize("method", METHODS)
every_loss = pytest.mark.parametrize("name", NAMES)


def loss_of(name: str) -> Any:
    return getattr(functional, f"{name}_loss")


def value_and_gradient(name: str, preds: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    preds = preds.clone().requires_grad_()
    value = loss_of(name)(preds, *args, **kwargs)
    value.sum().backward()
    return value.detach(), preds.grad


@every_loss
@every_method
@given(data=st.data())
def test_every_method_equals_the_reference(name, method, data):
    batch = data.draw(batches(scores=SCORES, max_items=24, weight=WEIGHTS))
    options = data.draw(
        st.fixed_dictionaries(
            {"temperature": st.sampled_from((1.0, 0.2, 5.0)), "top_k": st.none() | st.integers(1, 7)},
        )
    )
    weighted, layout = data.draw(st.booleans()), data.draw(st.sampled_from(("padded", "offsets")))
    arguments = lay_out(batch, layout, seed=data.draw(SEEDS))
    if not weighted:
        arguments.pop("weight")
    value, gradient = value_and_gradient(name, **arguments, **options, method=method, reduction="none")
    expected = [
        loss_reference.loss_with_gradient(
            name, query["preds"], query["target"], query["weight"] if weighted else None, **options
        )
        for query in batch
    ]
    # The sums of a thousand sigmoids at most, each with the rounding of float64.
    assert_close(value, [v for v, _, _ in expected], rtol=0, atol=1e-13)
    found = gradient[arguments["mask"]] if layout == "padded" else gradient
    assert_close(found, [g for _, gradients, _ in expected for g in gradients], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (F64, 1e-12)])
@pytest.mark.parametrize("method", ["rows", "near_linear"])
@every_loss
def test_long_list(name, method, dtype, tolerance):
    generator = torch.Generator().manual_seed(0)
    preds = torch.randn(2000, generator=generator, dtype=dtype) * 2
    preds[:40] = preds[0]
    target = torch.randint(0, 5, (2000,), generator=generator)
    expected = value_and_gradient(name, preds.double(), target, method="dense")
    for ours, right in zip(value_and_gradient(name, preds, target, method=method), expected, strict=True):
        # 1e-6 of the scale; a float32 gradient has rounding of its own.
        assert (ours.double() - right).abs().max() <= tolerance * max(1.0, right.abs().max())


@pytest.mark.parametrize("layout", ["padded", "offsets"])
@every_method
def test_two_derivatives(method, layout):
    mask = torch.tensor([[True, True, True, True], [True, False, True, True]])
    preds = torch.tensor([[0.3, 1.0, -2.0, 0.9], [0.1, 5.0, 0.5, 2.5]], dtype=F64)
    counted = torch.tensor([[1.0, 0.0, 2.0, 1.0], [0.0, 0.0, 1.0, 1.0]], dtype=F64)
    arguments = {"mask": mask} if layout == "padded" else {"offsets": torch.tensor([0, 4, 7])}
    if layout == "offsets":
        preds, counted, mask = preds[mask], counted[mask], torch.ones(7, dtype=torch.bool)

    def function(score: Tensor) -> tuple[Tensor, Tensor]:
        lists, score, _, _ = arrange(score, score.detach(), **arguments)
        rank, found = soft_ranks(lists, score, counted=counted, wanted=mask, temperature=0.7, method=method)
        return rank[mask], found[mask]

    preds.requires_grad_()
    assert torch.autograd.gradcheck(function, (preds,))
    assert torch.autograd.gradgradcheck(function, (preds,))


@every_method
def test_no_more_than_wanted_is_promised(method):
    lists, score, _, _ = arrange(torch.tensor([0.0, 1.0, 2.0], dtype=F64), torch.zeros(3))
    wanted = torch.tensor([True, False, False])
    rank, found = soft_ranks(lists, score, wanted=wanted, method=method)
    assert rank is found
    assert (rank > 0).all()
    assert rank[0].item() == pytest.approx(1 + torch.sigmoid(score[1:]).sum().item(), abs=1e-14)


# Size -----------------------------------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """The largest number of bytes that any single tensor has."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [x.untyped_storage().nbytes() for x in tree_leaves(result) if isinstance(x, Tensor)]
        self.bytes = max(self.bytes, *sizes, 0)
        return result


@pytest.mark.parametrize("share", [1.0, 0.001], ids=["near-linear", "rows"])
@every_loss
def test_memory_is_linear(name, share):
    generator = torch.Generator().manual_seed(0)
    preds = torch.randn(30_000, generator=generator)
    target = (torch.rand(30_000, generator=generator) < share).long()
    with Largest() as largest:
        value_and_gradient(name, preds, target)
    # n^2 numbers would be 3.6 GB. Moments: 12 float64 for every 16 items, two weights; a chunk of pairs is 2^18 numbers.
    assert largest.bytes <= 64 * 30_000


@every_loss
def test_flat_lists_are_not_padded(name):
    # Padded, 3000 queries as long as the longest would be 120 MB.
    lengths = torch.cat([torch.tensor([10_000]), torch.ones(3000, dtype=torch.long)])
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    generator = torch.Generator().manual_seed(0)
    preds, target = torch.randn(13_000, generator=generator), torch.randint(0, 3, (13_000,), generator=generator)
    with Largest() as largest:
        value, gradient = value_and_gradient(name, preds, target, offsets=offsets, reduction="none")
    assert largest.bytes <= 64 * 13_000
    alone, gradient_alone = value_and_gradient(name, preds[:10_000], target[:10_000])
    assert_close(value[0], alone, rtol=1e-6)
    assert_close(gradient[:10_000], gradient_alone, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(
    ("shape", "share", "method"),
    [
        ((32, 20), 0.5, "dense"),
        ((128, 50), 1.0, "dense"),
        ((1, 100_000), 0.0001, "rows"),
        ((512, 100), 0.01, "rows"),
        ((1, 100_000), 0.5, "near_linear"),
    ],
)
def test_method_by_size(shape, share, method):
    preds = torch.zeros(shape)
    wanted = torch.arange(preds.numel()).view(shape) % round(1 / share) == 0
    assert soft_ranks_file._method_for(arrange(preds, preds)[0], preds, wanted) == method


# Extremes -------------------------------------------------------------------------------------------------------------


@every_loss
@every_method
def test_tied_relevant_items_have_one_gradient(name, method):
    preds = torch.tensor([[-3.0, 0.5, 0.5, 1 / 3, 0.5, 1 / 3]], dtype=F64)
    _, gradient = value_and_gradient(name, preds, torch.tensor([[0, 1, 1, 0, 1, 0]]), method=method)
    assert gradient[0, [1, 2, 4]].tolist() == pytest.approx([gradient[0, 1].item()] * 3, abs=1e-14)
    assert gradient[0, 3].item() == pytest.approx(gradient[0, 5].item(), abs=1e-14)


@every_loss
@pytest.mark.parametrize("layout", ["padded", "offsets"])
@every_method
def test_extremes_are_finite_in_float32(name, layout, method):
    batch = [
        {"preds": [1e4, -1e4, 0.0, 1e6, 3e38], "target": [128.0, 0.0, 127.0, 1.0, 0.0]},
        {"preds": [0.0], "target": [2.0]},
        {"preds": [], "target": []},
        {"preds": [1.0, 2.0], "target": [0.0, 0.0]},
        {"preds": [-3e38, 3e38, 0.0], "target": [1.0, 0.0, 0.0]},
    ]
    arguments = lay_out(batch, layout, dtypes={"preds": torch.float32, "target": torch.float32})
    for options in ({}, {"top_k": 2}, {"temperature": 0.01}):
        value, gradient = value_and_gradient(name, **arguments, reduction="none", method=method, **options)
        assert value.isfinite().all()
        assert gradient.isfinite().all()
        expected = [
            loss_reference.loss_with_gradient(name, query["preds"], query["target"], **options)[0] for query in batch
        ]
        assert_close(value, expected, rtol=1e-6, atol=1e-6)


@every_method
def test_infinite_scores_tie(method):
    lists, score, _, _ = arrange(torch.tensor([torch.inf, torch.inf, 0.0, -torch.inf], dtype=F64), torch.zeros(4))
    assert soft_ranks(lists, score, method=method)[0].tolist() == pytest.approx([1.5, 1.5, 3, 4], abs=1e-14)


# Meaning --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "metric"),
    [("approx_ndcg", "ndcg"), ("approx_mrr", "reciprocal_rank"), ("approx_map", "average_precision")],
)
def test_becomes_the_metric_as_the_temperature_falls(name, metric):
    preds = torch.tensor([[0.3, 2.0, -1.0, 0.9, 0.5]], dtype=F64)
    for target in ([[3, 0, 1, 2, 0]], [[0, 0, 1, 0, 0]], [[1, 0, 1, 0, 1]]):
        loss = loss_of(name)(preds, torch.tensor(target), temperature=1e-3)
        assert_close(loss, 1 - getattr(functional, metric)(preds, torch.tensor(target)).squeeze())


@every_loss
@given(batch=batches(scores=SCORES, max_items=10, weight=WEIGHTS))
def test_lies_in_the_unit_interval(name, batch):
    for temperature in (1.0, 0.1):
        value = loss_of(name)(**lay_out(batch, "padded"), temperature=temperature, reduction="none")
        assert ((value >= -1e-12) & (value <= 1 + 1e-12)).all()


@pytest.mark.parametrize("name", ["approx_mrr", "approx_map"])
def test_min_relevance(name):
    preds, target = torch.tensor([[0.3, 2.0, -1.0]], dtype=F64), torch.tensor([[2, 1, 3]])
    assert_close(loss_of(name)(preds, target, min_relevance=2), loss_of(name)(preds, (target >= 2).long()))


# Devices --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 5), (2, 20_000), (15,)], ids=["short", "long", "flat"])
@every_loss
def test_does_not_wait_for_a_device(name, shape):
    # A look at a value raises on `meta`.
    preds = torch.ones(shape, device="meta")
    layout = {} if len(shape) == 2 else {"offsets": torch.arange(0, 16, 5, device="meta")}
    for weight in (None, torch.ones_like(preds)):
        for options in ({}, {"top_k": 3}):
            value, gradient = value_and_gradient(name, preds, preds.long(), **layout, weight=weight, **options)
            assert value.device.type == gradient.device.type == "meta"
