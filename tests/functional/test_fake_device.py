"""On the device ``meta``, which has shapes and no values: no CPU tensor and no wait for the device is hidden anywhere.

What passes here does not wait for a GPU: a look at a value (``item``, ``if tensor``, a boolean index) raises on ``meta``.
Unlike fake CUDA tensors (``test_fake_cuda.py``) it also takes gradients and modules without a PyTorch that is built with CUDA.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lightning_rank import functional
from lightning_rank.functional.losses import LOSSES
from lightning_rank.functional.metrics import METRICS
from lightning_rank.metrics import NAMED_CLASSES, RankingMetrics
from tests.conftest import TIES

every_metric = pytest.mark.parametrize("spec", METRICS.values(), ids=METRICS)

# A loss that the table says waits for the longest flat list cannot run here.
LAYOUTS_OF_LOSSES = [
    (layout, name)
    for layout in ("padded", "offsets")
    for name, s in LOSSES.items()
    if layout == "padded" or not s.waits_for_flat
]
A_LOOK_AT_A_VALUE = "cannot be called on meta tensors|no data|nonzero"


class OneDevice(TorchDispatchMode):
    """Refuse an operation on tensors of two devices, some of which ``meta`` lets pass; numbers may be on the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.ndim > 0]
        if len({x.device for x in tensors}) > 1:
            raise AssertionError(f"{func} mixes devices: {[(x.device.type, list(x.shape)) for x in tensors]}")
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def one_device() -> Iterator[None]:
    with OneDevice():
        yield


def batch(layout: str, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    shape = (3, 5) if layout == "padded" else (15,)
    arguments = {
        "preds": torch.ones(shape, device="meta", dtype=dtype),
        "target": torch.ones(shape, device="meta", dtype=torch.long),
    }
    if layout == "padded":
        return arguments | {"mask": torch.ones(shape, device="meta", dtype=torch.bool)}
    return arguments | {"offsets": torch.arange(0, 16, 5, device="meta")}


def test_the_device_notices_a_cpu_tensor_and_a_look_at_a_value():
    scores = batch("padded")["preds"]
    with pytest.raises(AssertionError, match="mixes devices"):
        scores.gather(-1, torch.zeros(3, 5, dtype=torch.long))
    with pytest.raises(RuntimeError, match=A_LOOK_AT_A_VALUE):
        bool(scores.sum() > 0)
    with pytest.raises(NotImplementedError, match=A_LOOK_AT_A_VALUE):
        scores[scores > 0]


@every_metric
@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("layout", ["padded", "offsets"])
def test_metric(spec, ties, layout):
    if spec.waits_for_flat_ties and layout == "offsets" and ties == "average":
        with pytest.raises((RuntimeError, NotImplementedError), match=A_LOOK_AT_A_VALUE):
            getattr(functional, spec.function.__name__)(**batch(layout))
        return
    cutoffs = (None, 2) if spec.takes_top_k else (None,)
    own_options = [{}, {"denominator": "hits"}] if "denominator" in spec.options else [{}]
    for dtype, top_k, options in product((torch.float32, torch.float64, torch.int64), cutoffs, own_options):
        arguments = batch(layout, dtype)
        judged = torch.ones_like(arguments["target"], dtype=torch.bool)
        function = getattr(functional, spec.function.__name__)
        value = function(**arguments, top_k=top_k, ties=ties, judged=judged, **options)
        assert (value.device.type, value.shape) == ("meta", (3,))


@pytest.mark.parametrize("gain", ["linear", [0.0, 1.0, 3.0], torch.square], ids=["linear", "table", "callable"])
@pytest.mark.parametrize("layout", ["padded", "offsets"])
def test_gains(gain, layout):
    assert functional.ndcg(**batch(layout), gain=gain).device.type == "meta"


@every_metric
def test_metric_with_ideal(spec):
    ideal = torch.ones(3, 8, device="meta")
    value = getattr(functional, spec.function.__name__)(**batch("padded"), ideal=ideal, ideal_mask=ideal > 0)
    assert value.device.type == "meta"


@pytest.mark.parametrize(("layout", "name"), LAYOUTS_OF_LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_loss(layout, name, dtype):
    arguments = batch(layout, dtype)
    cutoffs = [{}, {"top_k": 2}] if "top_k" in LOSSES[name].options else [{}]
    # Without values it never sees that it has converged.
    few = {"sinkhorn_max_iter": 3} if name == "neural_ndcg" else {}
    for options in cutoffs:
        for weight in (None, torch.ones(3, device="meta"), torch.ones_like(arguments["preds"])):
            preds = arguments["preds"].clone()
            preds = (torch.stack([preds, preds], -1) if LOSSES[name].logits else preds).requires_grad_()
            function = getattr(functional, f"{name}_loss")
            value = function(**arguments | {"preds": preds}, weight=weight, **options, **few)
            value.backward()
            assert value.device.type == preds.grad.device.type == "meta"
            assert preds.grad.dtype == dtype


@pytest.mark.parametrize("options", [{}, {"aggregation": "median"}, {"ignore_index": 7}], ids=str)
@pytest.mark.parametrize("name", METRICS)
def test_metric_class_looks_at_values_only_when_computed(name, options):
    metric = NAMED_CLASSES[name](**options).to("meta")
    metric.update(**batch("padded"))
    metric.update(**batch("padded"), indexes=torch.arange(3, device="meta"))
    # Ignored flat items are removed, which needs their number.
    if "ignore_index" not in options and not METRICS[name].waits_for_flat_ties:
        metric.update(**batch("offsets"))


@pytest.mark.parametrize("options", [{}, {"aggregation": "max"}, {"aggregation": "median"}], ids=str)
@pytest.mark.parametrize("indexes", [None, torch.arange(3)], ids=["anonymous", "ids"])
def test_computed_on_the_device_up_to_the_first_value_it_must_look_at(options, indexes):
    metrics = RankingMetrics(["ndcg@2", "map", "mrr@3"], **options).to("meta")
    metrics.update(**batch("padded"), indexes=None if indexes is None else torch.arange(3, device="meta"))
    with pytest.raises((RuntimeError, NotImplementedError), match=A_LOOK_AT_A_VALUE):
        metrics.compute()
