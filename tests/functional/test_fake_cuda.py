"""On fake CUDA tensors, which need no GPU: mixing devices raises, and so does a look at a value.

A PyTorch without CUDA refuses Python's indexing of fake CUDA tensors, which is why the library narrows, selects and unsqueezes;
gradients are tested on ``meta`` instead.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from lightning_rank import functional
from lightning_rank.functional.losses import LOSSES
from lightning_rank.functional.metrics import METRICS
from tests.conftest import TIES


@pytest.fixture(autouse=True)
def fake_mode() -> Iterator[None]:
    with FakeTensorMode():
        yield


def batch(layout: str, dtype: torch.dtype) -> dict[str, Tensor]:
    shape = (12,) if layout == "offsets" else (3, 4)
    arguments = {
        "preds": torch.ones(shape, device="cuda", dtype=dtype),
        "target": torch.ones(shape, device="cuda", dtype=torch.long),
    }
    if layout == "mask":
        arguments["mask"] = torch.ones(shape, device="cuda", dtype=torch.bool)
    if layout == "offsets":
        arguments["offsets"] = torch.zeros(4, device="cuda", dtype=torch.long)
    return arguments


def test_faults_are_noticed():
    scores = batch("padded", torch.float32)["preds"]
    with pytest.raises(RuntimeError, match=r"cpu|device"):
        scores + torch.ones(3, 4)
    with pytest.raises((DataDependentOutputException, RuntimeError)):
        bool(scores.sum() > 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layout", ["padded", "mask", "offsets"])
@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("spec", METRICS.values(), ids=METRICS)
def test_metrics(spec, ties, layout, dtype):
    if spec.waits_for_flat_ties and layout == "offsets" and ties == "average":
        return  # the wait that the table declares; tested on `meta`
    function = getattr(functional, spec.function.__name__)
    for options in [{}, {"top_k": 2}] if spec.takes_top_k else [{}]:
        value = function(**batch(layout, dtype), ties=ties, **options)
        assert (value.device.type, value.shape) == ("cuda", (3,))


@pytest.mark.parametrize("gain", ["linear", torch.square], ids=["linear", "callable"])
def test_gains(gain):
    assert functional.ndcg(**batch("mask", torch.float32), gain=gain).device.type == "cuda"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layout", ["padded", "mask", "offsets"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name, layout, dtype):
    if LOSSES[name].waits_for_flat and layout == "offsets":
        return  # it needs the length of the longest list, a wait that the table declares
    function = getattr(functional, f"{name}_loss")
    for reduction, shape in (("none", (3,)), ("mean", ())):
        arguments = batch(layout, dtype)
        if LOSSES[name].logits:
            arguments["preds"] = torch.stack([arguments["preds"], arguments["preds"]], -1)
        # Without values it never sees that it has converged.
        few = {"sinkhorn_max_iter": 3} if name == "neural_ndcg" else {}
        value = function(**arguments, reduction=reduction, **few)
        assert (value.device.type, value.shape) == ("cuda", shape)
