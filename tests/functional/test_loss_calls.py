"""Loss functions as they are called: under transforms and compilation, with forced methods, and with bad input."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from torch import Tensor

from lightning_rank import functional
from lightning_rank.functional import pairwise, soft_ranks
from lightning_rank.functional.batch import METHODS
from lightning_rank.functional.losses import LOSSES, LossSpec, find_loss
from tests.conftest import assert_close
from tests.loss_cases import (
    F64,
    NUM_LOGITS,
    OLD_COMPILER,
    OTHER_VALUES,
    PAIRWISE,
    as_scores,
    every_loss,
    function_of,
    losses_under,
    losses_with,
)

NAN, INF, T, F = math.nan, math.inf, True, False

# Transforms -----------------------------------------------------------------------------------------------------------


def padded_stack(spec: LossSpec, num: int) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """``num`` padded batches, and explicit noise for each."""
    generator = torch.Generator().manual_seed(0)
    preds = torch.randn(num, 3, 5, generator=generator, dtype=F64)
    target = torch.randint(0, 2 if spec.max_grade == 1 else 4, preds.shape, generator=generator)
    mask = torch.rand(preds.shape, generator=generator) > 0.3
    shape = (num, 3, 5) if spec.noise == "gamma" else (num, 2, 3, 5)
    noise = {spec.noise: torch.rand(shape, generator=generator, dtype=F64)} if spec.noise else {}
    return as_scores(spec, preds), target, mask, noise


@pytest.mark.parametrize("name", ["softmax", "listnet", "ranknet", "lambdarank", "pairwise_hinge", "pointwise_mse"])
def test_forward_mode_has_the_gradient_of_reverse_mode(name):
    # In float32, whose padding is set to 0 in a way that PyTorch does not see where there is no gradient.
    spec = LOSSES[name]
    preds, target, mask, _ = padded_stack(spec, 1)
    preds, target, mask = preds[0].float(), target[0].float(), mask[0]
    direction = torch.arange(preds.numel(), dtype=torch.float32).view_as(preds)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(preds, direction)
        forward = torch.autograd.forward_ad.unpack_dual(function_of(spec)(dual, target, mask)).tangent
    leaf = preds.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function_of(spec)(leaf, target, mask), leaf)
    assert_close(forward, (gradient * direction).sum(), rtol=1e-5)


def test_scores_with_a_gradient_are_checked_without_a_warning(recwarn):
    functional.softmax_loss(torch.randn(2, 3, requires_grad=True), torch.tensor([[0.0, 1, 2]] * 2))
    assert not recwarn


@losses_under("vmap")
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_vmap(spec, reduction):
    def function(preds: Tensor, target: Tensor, mask: Tensor, noise: dict[str, Tensor]) -> Tensor:
        return function_of(spec)(preds, target, mask, reduction=reduction, **noise)

    *stack, noise = padded_stack(spec, 4)
    one_by_one = [
        function(*batch, {name: values[i] for name, values in noise.items()})
        for i, batch in enumerate(zip(*stack, strict=True))
    ]
    assert_close(torch.func.vmap(function)(*stack, noise), torch.stack(one_by_one))


@losses_under("vmap")
def test_gradients_by_transforms(spec):
    """``vmap`` of ``grad``: the gradient of each batch of a stack."""
    *stack, noise = padded_stack(spec, 2)

    def function(preds: Tensor, target: Tensor, mask: Tensor, noise: dict[str, Tensor]) -> Tensor:
        return function_of(spec)(preds, target, mask, **noise)

    gradient = torch.func.vmap(torch.func.grad(function))(*stack, noise)
    preds = stack[0].requires_grad_()
    sum(
        function(*batch, {name: values[i] for name, values in noise.items()})
        for i, batch in enumerate(zip(*stack, strict=True))
    ).backward()
    assert_close(gradient, preds.grad)


@losses_under("compile")
def test_compile_in_one_graph(spec):
    if OLD_COMPILER and spec.name in PAIRWISE:
        pytest.skip(OLD_COMPILER)
    torch.compiler.reset()
    compiled = torch.compile(function_of(spec), fullgraph=True, backend="eager")
    *stack, noise = padded_stack(spec, 1)
    batch, noise = [tensor[0] for tensor in stack], {name: values[0] for name, values in noise.items()}
    options = {"top_k": 2} if "top_k" in spec.options else {}
    preds, *rest = batch
    results = []
    for function in (compiled, function_of(spec)):
        leaf = preds.clone().requires_grad_()
        value = function(leaf, *rest, **options, **noise)
        value.backward()
        results.append((value, leaf.grad))
    assert_close(results[0][0], results[1][0].detach())
    assert_close(results[0][1], results[1][1])


# Methods --------------------------------------------------------------------------------------------------------------


@losses_with("method")
@pytest.mark.parametrize("method", METHODS)
def test_method_is_the_one_asked_for(spec, method, monkeypatch):
    asked = []

    def spy(module, name):
        function = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, **kwargs: asked.append(name) or function(*args, **kwargs))

    for name in ("_by_rows", "_near_linear"):
        spy(soft_ranks, name)
    for name in ("dense", "by_rows", "near_linear"):
        spy(pairwise, name)
    preds, target = torch.tensor([[0.3, -1.0, 2.0]]), torch.tensor([[0, 1, 2]])
    function_of(spec)(preds, target, method=method)
    ways = {name.strip("_").replace("by_", "") for name in asked}
    assert ways == {method} or (not ways and method == "dense")


@losses_with("method")
def test_methods_give_the_same_numbers_on_a_list_of_a_thousand(spec):
    generator = torch.Generator().manual_seed(0)
    preds = torch.randn(2, 1000, generator=generator, dtype=F64).mul(10).round().div(10)  # many ties
    target = torch.randint(0, 4, (2, 1000), generator=generator)
    results = []
    for method in METHODS:
        leaf = preds.clone().requires_grad_()
        value = function_of(spec)(leaf, target, method=method, **({"top_k": 50} if "top_k" in spec.options else {}))
        value.backward()
        results.append((value.detach(), leaf.grad))
    for value, gradient in results[1:]:
        torch.testing.assert_close(value, results[0][0], rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(gradient, results[0][1], rtol=1e-4, atol=1e-6 * results[0][1].abs().max().item())


# Bad input ------------------------------------------------------------------------------------------------------------

P, Y = torch.tensor([[2.0, 1.0], [0.5, 0.1]]), torch.tensor([[1, 0], [0, 1]])
BAD = [
    (ValueError, {"target": Y[:, :1]}, "`target` must have the shape of `preds`"),
    (ValueError, {"mask": torch.ones(2, 1, dtype=torch.bool)}, "`mask` must have the shape"),
    (TypeError, {"mask": torch.ones(2, 2)}, "`mask` must be bool"),
    (ValueError, {"preds": P[0], "target": Y[0], "mask": torch.ones(2, dtype=torch.bool)}, "`mask` belongs to"),
    (TypeError, {"preds": P[0], "target": Y[0], "indexes": torch.zeros(2)}, "`indexes` must be whole numbers"),
    (ValueError, {"preds": P[0], "target": Y[0], "offsets": torch.tensor([0, 1])}, "number of items, 2"),
    (TypeError, {"preds": [1.0]}, "`preds` must be a tensor, got list"),
    (ValueError, {"preds": torch.tensor([[1.0, 0.0], [NAN, 0.5]])}, "`preds` must not be NaN.* query 1"),
    (ValueError, {"target": torch.tensor([[1.0, 0.0], [NAN, 0.5]])}, "`target` must not be NaN.* query 1"),
    (ValueError, {"weight": torch.tensor([1.0, -1.0])}, "`weight` must be finite and >= 0"),
    (ValueError, {"weight": torch.tensor([1.0, NAN])}, "`weight` must be finite and >= 0"),
    (ValueError, {"weight": torch.tensor([[1.0, INF], [1.0, 1.0]])}, "`weight` must be finite and >= 0"),
    (ValueError, {"weight": torch.ones(3)}, r"`weight` must be one per query, \[2\]"),
    (ValueError, {"weight": torch.ones(2, 1)}, r"`weight` must be one per query, \[2\]"),
    (TypeError, {"weight": 2.0}, "`weight` must be a tensor, got float"),
    (ValueError, {"reduction": "average"}, "`reduction` must be one of 'mean', 'sum', 'none'"),
    (ValueError, {"strange": 1}, "`strange` means nothing for the loss"),
]


@pytest.mark.parametrize(("error", "changed", "message"), BAD, ids=lambda x: ",".join(x) if isinstance(x, dict) else "")
@every_loss
def test_bad_input(spec, error, changed, message):
    arguments = {"preds": P, "target": Y} | changed
    if isinstance(arguments["preds"], Tensor):
        arguments["preds"] = as_scores(spec, arguments["preds"])
    with pytest.raises(error, match=message):
        function_of(spec)(**arguments)


@every_loss
def test_option_that_means_nothing_is_refused_with_those_that_mean_something(spec):
    others = {"gain": "linear", "scheme": "ndcg_loss2", "generator": None, "method": "dense"}
    for option, value in (OTHER_VALUES | others).items():
        if option not in spec.options:
            takes = ", ".join(spec.options) or "no options"
            with pytest.raises(ValueError, match=f"`{option}` means nothing for the loss {spec.name}; it takes {takes}"):
                function_of(spec)(as_scores(spec, P), Y, **{option: value})


IMPOSSIBLE = {
    "temperature": [0, -1.0, INF, NAN, "1", True, None],
    "sigma": [0, -1.0, NAN],
    "margin": [-0.5, INF, None],
    "mu": [-1, NAN, "10"],
    "min_relevance": [NAN, "1", True],
    "sinkhorn_tol": [0, -1e-3],
    "sinkhorn_max_iter": [0, 2.5, None],
    "num_samples": [0, 1.5, True],
    "gumbel_samples": [-1, 2.0],
    "top_k": [0, -3, 2.5, True, "10"],
    "gain": ["exp", [], [NAN], 3],
    "scheme": ["ndcg_loss3", None, 1],
    "method": ["fast", 1, True],
    "normalize": [1, "yes", None],
    "normalize_pairs": [0, None],
}


@pytest.mark.parametrize(
    ("option", "value"), [(option, value) for option, values in IMPOSSIBLE.items() for value in values]
)
def test_impossible_value_of_an_option(option, value):
    takers = [spec for spec in LOSSES.values() if option in spec.options]
    assert takers
    for spec in takers:
        with pytest.raises(ValueError, match=f"`{option}` must be "):
            function_of(spec)(P, Y, **{option: value})


def test_every_option_is_among_those_tested():
    options = {option for spec in LOSSES.values() for option in spec.options}
    assert options == {*IMPOSSIBLE, "generator"}


@losses_with("generator")
def test_generator_is_one(spec):
    with pytest.raises(TypeError, match=r"`generator` must be a torch\.Generator or None, got int"):
        function_of(spec)(P, Y, generator=0)


@pytest.mark.parametrize("spec", [s for s in LOSSES.values() if s.gumbel], ids=lambda s: s.name)
def test_generator_without_samples_is_refused(spec):
    with pytest.raises(ValueError, match="`generator` means nothing for a loss without noise"):
        function_of(spec)(P, Y, generator=torch.Generator())


def test_mu_is_refused_where_the_scheme_has_none():
    with pytest.raises(ValueError, match="`mu` means nothing for the scheme 'ndcg_loss2'"):
        functional.lambda_loss(P, Y, scheme="ndcg_loss2", mu=3.0)


@pytest.mark.parametrize("name", ["pointwise_bce", "ordinal"])
def test_grade_that_the_loss_does_not_know(name):
    spec = LOSSES[name]
    preds, target = as_scores(spec, P), torch.tensor([[1, 0], [0, NUM_LOGITS + 1]])
    with pytest.raises(ValueError, match=rf"`target` of {name} must be .*got {NUM_LOGITS + 1}"):
        function_of(spec)(preds, target)
    # Where looking is not free, the query is NaN.
    values = torch.func.vmap(lambda p, y: function_of(spec)(p, y, reduction="none"))(
        preds.unsqueeze(0), target.unsqueeze(0)
    )
    assert values.isnan().tolist() == [[False, True]]


@pytest.mark.parametrize("bad", ["preds", "target"])
@pytest.mark.parametrize("layout", ["padded", "offsets"])
@every_loss
def test_nan_spoils_the_value_of_its_query_alone_where_looking_is_not_free(spec, layout, bad, monkeypatch):
    preds = as_scores(spec, torch.tensor([[0.3, 1.0, -2.0], [0.2, 2.0, 0.5], [0.1, 0.2, 0.3]], dtype=F64))
    target = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    shape = {"gamma": (3, 3), "noise": (2, 3, 3), None: ()}[spec.noise]
    noise = {spec.noise: torch.full(shape, 0.5)} if spec.noise else {}
    arguments = {"preds": preds, "target": target, **noise}
    if layout == "offsets":
        arguments = {name: value.flatten(-2) for name, value in arguments.items()}
        arguments["preds"] = as_scores(spec, preds[..., 0] if spec.logits else preds).flatten(0, 1)
        arguments["offsets"] = torch.tensor([0, 3, 6, 9])

    def evaluated() -> tuple[Tensor, Tensor]:
        leaf = arguments["preds"].clone().requires_grad_()
        value = function_of(spec)(**arguments | {"preds": leaf}, reduction="none")
        value.sum().backward()
        return value.detach(), leaf.grad.view(3, 3, -1)

    right, gradient = evaluated()
    for name, module in list(sys.modules.items()):
        if name.startswith("lightning_rank") and hasattr(module, "values_are_free"):
            monkeypatch.setattr(module, "values_are_free", lambda *_: False)
    arguments[bad].view(3, 3, -1)[1, 0] = NAN
    value, spoilt = evaluated()
    assert value.isnan().tolist() == [False, True, False]
    assert_close(value[::2], right[::2])
    assert_close(spoilt[::2], gradient[::2])
    assert spoilt[1].abs().max() < 1e-20


def test_nan_weight_in_padding_is_no_error():
    weight = torch.tensor([[1.0, NAN], [2.0, 1.0]])
    mask = torch.tensor([[T, F], [T, T]])
    assert functional.softmax_loss(P, Y, mask, weight=weight).isfinite()


def test_unknown_loss_names_the_nearest():
    with pytest.raises(ValueError, match=r"Unknown loss 'softmx'.*Did you mean 'softmax'"):
        find_loss("softmx")


@every_loss
def test_found_by_both_names(spec):
    assert find_loss(spec.name) is spec
    assert find_loss(f"{spec.name}_loss") is spec
