"""Loss functions: golden values, and the laws that every loss of the table obeys."""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lightning_rank import functional
from lightning_rank.functional.losses import LOSSES, LossSpec, find_loss
from tests import loss_reference
from tests.conftest import (
    FINITE_SCORES,
    LAYOUTS,
    SEEDS,
    assert_close,
    batches,
    golden,
    lay_out,
    options_of,
    queries,
    reordered,
    with_items,
)

NAN, INF = math.nan, math.inf
F64 = torch.float64
every_loss = pytest.mark.parametrize("spec", LOSSES.values(), ids=LOSSES)


def function_of(spec: LossSpec) -> Any:
    return getattr(functional, f"{spec.name}_loss")


def evaluate(
    spec: LossSpec,
    batch: list,
    layout: str = "padded",
    *,
    dtype: torch.dtype = F64,
    seed: int = 0,
    reduction: str = "none",
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """The value, and the gradient of its sum for all items in the order of the batch; that of padding must be 0."""
    numbers = iter(range(10**6))
    numbered = [query | {"number": [next(numbers) for _ in query["preds"]]} for query in batch]
    dtypes = {"preds": dtype, "target": dtype, "number": torch.long}
    arguments = lay_out(numbered, layout, dtypes=dtypes, seed=seed)
    number = arguments.pop("number")
    preds = arguments["preds"].requires_grad_()
    value = function_of(spec)(**arguments, reduction=reduction, **kwargs)
    value.sum().backward()
    item = arguments.get("mask", torch.ones_like(number, dtype=torch.bool))
    assert (preds.grad[~item] == 0).all()
    gradient = preds.new_zeros(next(numbers))
    gradient[number[item]] = preds.grad[item]
    return value.detach(), gradient


def batches_of_losses(**kwargs: Any) -> st.SearchStrategy[list]:
    return batches(**{"scores": FINITE_SCORES} | kwargs)


# Golden values --------------------------------------------------------------------------------------------------------

CASES = [
    pytest.param(spec, case, id=f"{name}-{case['name']}")
    for name, entry in golden("losses")["losses"].items()
    for case in entry["cases"]
    if (spec := LOSSES.get(entry["functional"].removesuffix("_loss")))
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize(("spec", "case"), CASES)
def test_golden_values(spec, case, dtype, layout):
    batch = [{"preds": preds, "target": target} for preds, target in zip(case["preds"], case["target"], strict=True)]
    expect, rtol = case["expect"], 1e-9 if dtype == F64 else 1e-5
    # Absolute accuracy: of the scale, where terms cancel.
    scale = rtol * max(1.0, *map(abs, expect["per_query"]))
    values, gradient = evaluate(spec, batch, layout, dtype=dtype, seed=1, **case["kwargs"])
    assert values.dtype == dtype
    assert_close(values, expect["per_query"], rtol=rtol, atol=scale)
    assert_close(gradient, list(chain.from_iterable(expect["grad_of_sum"])), rtol=rtol, atol=scale)
    for reduction in ("sum", "mean"):
        value, _ = evaluate(spec, batch, layout, dtype=dtype, reduction=reduction, **case["kwargs"])
        assert_close(value, expect[reduction], rtol=rtol, atol=scale)


# Laws -----------------------------------------------------------------------------------------------------------------

WEIGHTS = st.sampled_from((0.0, 0.5, 1.0, 3.0))


@every_loss
@given(data=st.data())
def test_equals_reference(spec, data):
    batch, options = data.draw(batches_of_losses()), data.draw(options_of(spec))
    layout = data.draw(st.sampled_from(LAYOUTS))
    known = with_items(batch) if layout == "indexes" else batch
    expected = [loss_reference.loss_value(spec.name, query["preds"], query["target"], **options) for query in known]
    seed = data.draw(SEEDS)
    values, _ = evaluate(spec, batch, layout, seed=seed, **options)
    assert_close(values, [value for value, _ in expected])
    mean, _ = evaluate(spec, batch, layout, seed=seed, reduction="mean", **options)
    assert_close(mean, loss_reference.mean_over_signal(expected, [1.0] * len(known)))
    total, _ = evaluate(spec, batch, layout, seed=seed, reduction="sum", **options)
    assert_close(total, sum(value for value, _ in expected))


@every_loss
@given(data=st.data())
def test_item_weights(spec, data):
    batch, options = data.draw(batches_of_losses(min_items=1, weight=WEIGHTS)), data.draw(options_of(spec))
    values, _ = evaluate(spec, batch, data.draw(st.sampled_from(LAYOUTS)), seed=data.draw(SEEDS), **options)
    expected = [
        loss_reference.loss_value(spec.name, query["preds"], query["target"], query["weight"], **options)[0]
        for query in batch
    ]
    assert_close(values, expected)


@every_loss
@given(data=st.data())
def test_query_weights(spec, data):
    layout = data.draw(st.sampled_from(LAYOUTS))
    # Two items at least: one weight per query must not look like one per item.
    batch = data.draw(batches_of_losses(min_items=2))
    weights = data.draw(st.lists(WEIGHTS, min_size=len(batch), max_size=len(batch)))
    weight = torch.tensor(weights, dtype=F64)
    expected = [loss_reference.loss_value(spec.name, query["preds"], query["target"]) for query in batch]
    values, _ = evaluate(spec, batch, layout, weight=weight)
    assert_close(values, [value * w for (value, _), w in zip(expected, weights, strict=True)])
    mean, _ = evaluate(spec, batch, layout, reduction="mean", weight=weight)
    assert_close(mean, loss_reference.mean_over_signal(expected, weights))


@every_loss
@given(data=st.data())
def test_layouts_agree_and_padding_never_leaks(spec, data):
    batch, options = data.draw(batches_of_losses(max_items=10)), data.draw(options_of(spec))
    # Seeds differ, and with them padding and the order of arrival.
    (values, gradient), *others = (evaluate(spec, batch, layout, seed=data.draw(SEEDS), **options) for layout in LAYOUTS)
    occupied = torch.tensor([bool(query["preds"]) for query in batch])
    for layout, (other_values, other_gradient) in zip(LAYOUTS[1:], others, strict=True):
        assert_close(other_values, values[occupied] if layout == "indexes" else values)
        assert_close(other_gradient, gradient)


@every_loss
@given(data=st.data())
def test_batch_companions_do_not_matter(spec, data):
    grades = st.sampled_from((0.0, 1.0, 2.0, 30.0))
    batch = data.draw(batches_of_losses(grades=grades, min_items=1))
    layout = data.draw(st.sampled_from(LAYOUTS))
    values, gradient = evaluate(spec, batch, layout, seed=data.draw(SEEDS))
    alone = [evaluate(spec, [query], layout) for query in batch]
    assert_close(values, torch.cat([value for value, _ in alone]))
    assert_close(gradient, torch.cat([gradient for _, gradient in alone]))


@every_loss
@given(data=st.data())
def test_item_order_does_not_matter(spec, data):
    query, options = data.draw(queries(scores=FINITE_SCORES, max_items=8)), data.draw(options_of(spec))
    order = data.draw(st.permutations(range(len(query["preds"]))))
    value, gradient = evaluate(spec, [query], **options)
    other_value, other_gradient = evaluate(spec, [reordered(query, order)], **options)
    assert_close(other_value, value)
    assert_close(other_gradient, gradient[order])


@pytest.mark.parametrize("spec", [s for s in LOSSES.values() if s.shift_invariant], ids=lambda s: s.name)
@given(data=st.data())
def test_shift_of_scores_changes_nothing(spec, data):
    batch, shift = data.draw(batches_of_losses()), data.draw(st.sampled_from((-1000.0, 0.25, 64.0)))
    shifted = [query | {"preds": [score + shift for score in query["preds"]]} for query in batch]
    options = data.draw(options_of(spec))
    (values, gradient), (other_values, other_gradient) = (evaluate(spec, b, **options) for b in (batch, shifted))
    assert_close(other_values, values, atol=1e-9)
    assert_close(other_gradient, gradient, atol=1e-9)
    for one in batch:
        assert evaluate(spec, [one], **options)[1].sum().abs() < 1e-9


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, F64])
@given(data=st.data())
def test_values_and_gradients_are_finite(spec, dtype, data):
    layout = data.draw(st.sampled_from(LAYOUTS))
    scores = st.sampled_from((-1e4, -50.0, 0.0, 0.0, 1.0, 1e4))
    grades = st.sampled_from((0.0, 0.0, 1.0, 2.0, 2.0, 31.0, 128.0))
    batch = data.draw(batches(scores=scores, grades=grades))
    for reduction in ("none", "mean"):
        value, gradient = evaluate(spec, batch, layout, dtype=dtype, seed=data.draw(SEEDS), reduction=reduction)
        assert value.dtype == (F64 if dtype == F64 else torch.float32)
        assert gradient.dtype == dtype
        assert value.isfinite().all()
        assert gradient.isfinite().all()


@every_loss
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_no_nan_is_made_and_masked_on_the_way_back(spec, layout):
    batch = [{"preds": [-1000.0, -999.0], "target": [1.0, 0.0]}, {"preds": [1000.0], "target": [1.0]}]
    with torch.autograd.detect_anomaly():
        evaluate(spec, batch, layout, dtype=torch.float32, seed=1)


@every_loss
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradcheck(spec, layout):
    batch = [
        {"preds": [0.4, -1.0, 2.0, 0.3], "target": [1.0, 0.0, 0.0, 3.0]},
        {"preds": [0.7, 0.1], "target": [0.0, 2.0]},
        {"preds": [0.1], "target": [1.0]},
    ]
    arguments = lay_out(batch, layout, seed=2)
    preds = arguments.pop("preds").requires_grad_()
    for cutoff in [{}, {"top_k": 2}] if "top_k" in spec.options else [{}]:
        assert torch.autograd.gradcheck(
            lambda scores, cutoff=cutoff: function_of(spec)(scores, **arguments, **cutoff), (preds,)
        )


# Queries without signal -----------------------------------------------------------------------------------------------

T, F = True, False
NO_SIGNAL = {
    "no relevant item": (torch.tensor([[1.0, 2.0], [0.5, 0.1]]), torch.zeros(2, 2), None),
    "negative grades": (torch.tensor([[1.0, 2.0]]), torch.tensor([[-1.0, 0.0]]), None),
    "all masked": (torch.tensor([[1.0, NAN], [0.5, 0.1]]), torch.ones(2, 2), torch.zeros(2, 2, dtype=torch.bool)),
    "no query": (torch.empty(0, 3), torch.empty(0, 3), torch.empty(0, 3, dtype=torch.bool)),
    "no column": (torch.empty(2, 0), torch.empty(2, 0), torch.empty(2, 0, dtype=torch.bool)),
    "nothing": (torch.empty(0), torch.empty(0), None),
}


@every_loss
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("case", NO_SIGNAL)
def test_batch_without_signal_is_zero_on_the_graph(spec, case, reduction):
    preds, target, mask = NO_SIGNAL[case]
    preds = preds.clone().requires_grad_()
    value = function_of(spec)(preds, target, mask, reduction=reduction)
    num_queries = preds.shape[0] if preds.ndim == 2 else 1
    assert value.shape == ((num_queries,) if reduction == "none" else ())
    assert (value == 0).all()
    value.sum().backward()
    assert (preds.grad == 0).all()


@every_loss
@pytest.mark.parametrize("layout", ["offsets", "indexes"])
def test_flat_batch_of_nothing_is_zero_on_the_graph(spec, layout):
    preds = torch.empty(0, requires_grad=True)
    layouts = {"offsets": torch.zeros(1, dtype=torch.long), "indexes": torch.empty(0, dtype=torch.long)}
    value = function_of(spec)(preds, torch.empty(0), **{layout: layouts[layout]})
    value.backward()
    assert value == 0
    assert preds.grad.shape == (0,)


@every_loss
def test_empty_query_between_two(spec):
    preds = torch.tensor([1.0, 0.0, 0.3, 0.2], requires_grad=True)
    target = torch.tensor([0.0, 1.0, 1.0, 0.0])
    value = function_of(spec)(preds, target, offsets=torch.tensor([0, 0, 2, 2, 4]), reduction="none")
    assert (value != 0).tolist() == [False, True, False, True]


@every_loss
def test_query_without_signal_is_not_averaged_in(spec):
    preds = torch.tensor([[0.5, -1.0, 0.2]], dtype=F64)
    target = torch.tensor([[0, 1, 2]])
    alone = function_of(spec)(preds, target)
    beside = function_of(spec)(preds.repeat(2, 1), torch.cat([target, torch.zeros_like(target)]))
    assert_close(beside, alone)


# Facts ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [s for s in LOSSES.values() if "top_k" in s.options], ids=lambda s: s.name)
def test_relevant_item_below_the_cutoff_is_pulled_in(spec):
    preds = torch.tensor([[3.0, 2.0, 1.0]], dtype=F64, requires_grad=True)
    function_of(spec)(preds, torch.tensor([[0, 0, 1]]), top_k=1).backward()
    assert preds.grad[0, 2] < -1e-2


@given(data=st.data())
def test_approx_ndcg_lies_in_the_unit_interval(data):
    values, _ = evaluate(LOSSES["approx_ndcg"], data.draw(batches_of_losses(max_items=10)))
    assert ((values >= -1e-12) & (values <= 1)).all()


def test_approx_ndcg_becomes_ndcg_as_the_temperature_falls():
    preds, target = torch.tensor([[0.3, 2.0, -1.0, 0.9]], dtype=F64), torch.tensor([[3, 0, 1, 2]])
    loss = functional.approx_ndcg_loss(preds, target, temperature=1e-3)
    assert_close(loss, 1 - functional.ndcg(preds, target).squeeze())


@every_loss
def test_target_is_any_real_dtype(spec):
    preds = torch.tensor([[0.5, 0.1, -1.0]])
    expected = function_of(spec)(preds, torch.tensor([[1.0, 0.0, 1.0]]))
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.float16, F64):
        assert function_of(spec)(preds, torch.tensor([[1, 0, 1]], dtype=dtype)) == expected


@every_loss
def test_grades_of_integer_dtype_do_not_wrap(spec):
    preds = torch.tensor([[0.5, 0.1]])
    values = [function_of(spec)(preds, torch.tensor([[64, 1]], dtype=dtype)) for dtype in (torch.int8, torch.float64)]
    assert_close(values[0], values[1], rtol=1e-6)


def test_large_grades_keep_their_value():
    value = functional.approx_ndcg_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([[128, 0]]))
    assert_close(value, 0.1539901700, rtol=1e-6)


def test_gain_table():
    preds, target = torch.tensor([[0.3, 0.1, -1.0]], dtype=F64), torch.tensor([[0, 1, 2]])
    by_table = functional.approx_ndcg_loss(preds, target, gain=[0, 1, 3])
    assert_close(by_table, functional.approx_ndcg_loss(preds, target))
    with pytest.raises(ValueError, match="table for the grades"):
        functional.softmax_loss(preds, target, gain=[0, 1])


@every_loss
def test_global_mean_divides_by_the_queries_of_all_processes(spec, monkeypatch):
    # This process has one query with signal, the other two: gradients averaged over both must be the mean over three.
    batch = [{"preds": [0.5, 0.1], "target": [0.0, 1.0]}]
    _, alone = evaluate(spec, batch, reduction="sum")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda count: count.add_(2))
    _, gradient = evaluate(spec, batch, reduction="mean", global_mean=True)
    assert_close(gradient / 2, alone / 3)


# Transforms -----------------------------------------------------------------------------------------------------------


def padded_stack(num: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    preds = torch.randn(num, 3, 5, generator=generator, dtype=F64)
    return preds, torch.randint(0, 4, preds.shape, generator=generator), torch.rand(preds.shape, generator=generator) > 0.3


@every_loss
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_vmap(spec, reduction):
    def function(preds: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        return function_of(spec)(preds, target, mask, reduction=reduction)

    stack = padded_stack(4)
    assert_close(torch.func.vmap(function)(*stack), torch.stack([function(*batch) for batch in zip(*stack, strict=True)]))


@every_loss
def test_compile_in_one_graph(spec):
    torch.compiler.reset()
    compiled = torch.compile(function_of(spec), fullgraph=True, backend="eager")
    batch = [tensor[0] for tensor in padded_stack(1)]
    options = {"top_k": 2} if "top_k" in spec.options else {}
    assert_close(compiled(*batch, **options), function_of(spec)(*batch, **options))


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
    with pytest.raises(error, match=message):
        function_of(spec)(**{"preds": P, "target": Y} | changed)


@every_loss
def test_option_that_means_nothing_is_refused(spec):
    for option, value in (("top_k", 2), ("gain", "linear"), ("temperature", 1.0), ("sigma", 1.0)):
        if option not in spec.options:
            with pytest.raises(ValueError, match=f"`{option}` means nothing for the loss {spec.name}"):
                function_of(spec)(P, Y, **{option: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0}, "`temperature` must be a finite number above 0, got 0"),
        ({"temperature": -1.0}, "`temperature` .*above 0"),
        ({"temperature": INF}, "`temperature` must be a finite"),
        ({"temperature": NAN}, "`temperature` must be a finite"),
        ({"temperature": "1"}, "`temperature` must be a finite"),
        ({"top_k": 0}, "`top_k` must be a whole number >= 1.*got 0"),
        ({"top_k": 2.5}, r"`top_k` .*got 2\.5"),
        ({"top_k": True}, "`top_k` .*got True"),
        ({"gain": "exp"}, "`gain` must be one of 'exp2', 'linear'"),
        ({"gain": []}, "`gain` must be .*list of finite gains"),
    ],
)
def test_impossible_options(options, message):
    with pytest.raises(ValueError, match=message):
        functional.approx_ndcg_loss(P, Y, **options)


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
