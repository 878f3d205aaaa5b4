"""Loss functions: golden values, and the laws that every loss of the table obeys; what one is exempt from, the table says."""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lightning_rank.functional.losses import LOSSES, LossSpec
from tests import loss_reference
from tests.conftest import LAYOUTS, SEEDS, assert_close, golden, reordered, with_items
from tests.loss_cases import (
    F64,
    OTHER_VALUES,
    arguments_of,
    as_scores,
    batches_of,
    evaluate,
    every_loss,
    expected,
    function_of,
    losses_under,
    losses_with,
    one,
    options_of,
    prepared,
    queries_of,
)

NAN, INF = math.nan, math.inf
LAWS = {"sum of gradients", "far gradients", "large grades", "vmap", "compile"}


@every_loss
def test_exemptions_name_laws_and_reasons(spec):
    assert spec.exempt.keys() <= LAWS
    assert all(len(reason) > 10 for reason in spec.exempt.values())


# Golden values --------------------------------------------------------------------------------------------------------

GOLDEN = golden("losses")["losses"]
CASES = [
    pytest.param(LOSSES[entry["functional"].removesuffix("_loss")], case, id=f"{name}-{case['name']}")
    for name, entry in GOLDEN.items()
    for case in entry["cases"]
    if name not in ("plrank", "in_batch_softmax")  # an expectation, and a loss of other arguments: tested apart
]


def test_every_loss_of_the_golden_values_is_in_the_table():
    names = {entry["functional"].removesuffix("_loss") for entry in GOLDEN.values()}
    assert names - {"in_batch_softmax"} == {*LOSSES}
    for entry in GOLDEN.values():
        if (spec := LOSSES.get(entry["functional"].removesuffix("_loss"))) is not None:
            assert spec.shift_invariant == entry["shift_invariant"]


def golden_batch(case: dict[str, Any]) -> list[dict]:
    batch = []
    for query, (preds, target) in enumerate(zip(case["preds"], case["target"], strict=True)):
        columns = {"preds": preds, "target": target}
        if isinstance(preds[0], list):
            first, *others = map(list, zip(*preds, strict=True))
            columns |= {"preds": first} | {f"logit_{k}": column for k, column in enumerate(others, 2)}
        if "gamma" in case:
            columns["gamma"] = case["gamma"][query]
        batch.append(columns)
    return batch


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize(("spec", "case"), CASES)
def test_golden_values(spec, case, dtype, layout):
    batch, expect = golden_batch(case), case["expect"]
    rtol = 1e-9 if dtype == F64 else 1e-5
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
    batch, options = data.draw(batches_of(spec)), data.draw(options_of(spec))
    layout = data.draw(st.sampled_from(LAYOUTS))
    known = with_items(batch) if layout == "indexes" else batch
    wanted = [expected(spec, query, **options) for query in known]
    seed = data.draw(SEEDS)
    values, gradient = evaluate(spec, batch, layout, seed=seed, **options)
    scale = 1e-9 * max([1.0, *(abs(value) for value, _, _ in wanted)])
    assert_close(values, [value for value, _, _ in wanted], atol=scale)
    if not spec.kinked:
        flat = list(chain.from_iterable(gradient for _, gradient, _ in wanted))
        assert_close(gradient, torch.tensor(flat, dtype=F64).reshape(gradient.shape), atol=scale)
    pairs = [(value, signal) for value, _, signal in wanted]
    mean, _ = evaluate(spec, batch, layout, seed=seed, reduction="mean", **options)
    assert_close(mean, loss_reference.mean_over_signal(pairs, [1.0] * len(known)), atol=scale)
    total, _ = evaluate(spec, batch, layout, seed=seed, reduction="sum", **options)
    assert_close(total, sum(value for value, _ in pairs), atol=scale)


@every_loss
@given(data=st.data())
def test_item_weights(spec, data):
    batch, options = data.draw(batches_of(spec, min_items=1, weight=WEIGHTS)), data.draw(options_of(spec))
    layout, seed = data.draw(st.sampled_from(LAYOUTS)), data.draw(SEEDS)
    wanted = [expected(spec, query, **options) for query in batch]
    values, gradient = evaluate(spec, batch, layout, seed=seed, **options)
    scale = 1e-9 * max([1.0, *(abs(value) for value, _, _ in wanted)])
    assert_close(values, [value for value, _, _ in wanted], atol=scale)
    if not spec.kinked:
        flat = list(chain.from_iterable(gradient for _, gradient, _ in wanted))
        assert_close(gradient, torch.tensor(flat, dtype=F64).reshape(gradient.shape), atol=scale)
    mean, _ = evaluate(spec, batch, layout, seed=seed, reduction="mean", **options)
    pairs = [(value, signal) for value, _, signal in wanted]
    assert_close(mean, loss_reference.mean_over_signal(pairs, [1.0] * len(batch)), atol=scale)


@every_loss
@given(data=st.data())
def test_query_weights(spec, data):
    layout = data.draw(st.sampled_from(LAYOUTS))
    # Two items at least: one weight per query must not look like one per item.
    batch = data.draw(batches_of(spec, min_items=2))
    weights = data.draw(st.lists(WEIGHTS, min_size=len(batch), max_size=len(batch)))
    weight = torch.tensor(weights, dtype=F64)
    wanted = [(value, signal) for value, _, signal in (expected(spec, query) for query in batch)]
    values, _ = evaluate(spec, batch, layout, weight=weight)
    assert_close(values, [value * w for (value, _), w in zip(wanted, weights, strict=True)], atol=1e-9)
    mean, _ = evaluate(spec, batch, layout, reduction="mean", weight=weight)
    assert_close(mean, loss_reference.mean_over_signal(wanted, weights), atol=1e-9)


@every_loss
@given(data=st.data())
def test_layouts_agree_and_padding_never_leaks(spec, data):
    batch, options = data.draw(batches_of(spec, max_items=10)), data.draw(options_of(spec))
    # Seeds differ, and with them padding and the order of arrival.
    (values, gradient), *others = (evaluate(spec, batch, layout, seed=data.draw(SEEDS), **options) for layout in LAYOUTS)
    occupied = torch.tensor([bool(query["preds"]) for query in batch])
    for layout, (other_values, other_gradient) in zip(LAYOUTS[1:], others, strict=True):
        assert_close(other_values, values[occupied] if layout == "indexes" else values, atol=1e-9)
        assert_close(other_gradient, gradient, atol=1e-9)


@every_loss
@given(data=st.data())
def test_batch_companions_do_not_matter(spec, data):
    top = 8.0 if "large grades" in spec.exempt else 30.0
    batch = data.draw(batches_of(spec, grades=st.sampled_from((0.0, 1.0, 2.0, top)), min_items=1))
    layout = data.draw(st.sampled_from(LAYOUTS))
    values, gradient = evaluate(spec, batch, layout, seed=data.draw(SEEDS))
    alone = [evaluate(spec, [query], layout) for query in batch]
    assert_close(values, torch.cat([value for value, _ in alone]), atol=1e-9)
    assert_close(gradient, torch.cat([gradient for _, gradient in alone]), atol=1e-9)


@every_loss
@given(data=st.data())
def test_item_order_does_not_matter(spec, data):
    query, options = data.draw(queries_of(spec, max_items=8)), data.draw(options_of(spec))
    order = data.draw(st.permutations(range(len(query["preds"]))))
    value, gradient = evaluate(spec, [query], **options)
    other_value, other_gradient = evaluate(spec, [reordered(query, order)], **options)
    assert_close(other_value, value, atol=1e-9)
    assert_close(other_gradient, gradient[order], atol=1e-9)


@pytest.mark.parametrize("spec", [s for s in LOSSES.values() if s.shift_invariant], ids=lambda s: s.name)
@given(data=st.data())
def test_shift_of_scores_changes_nothing(spec, data):
    batch, shift = data.draw(batches_of(spec)), data.draw(st.sampled_from((-1024.0, 0.25, 64.0)))
    shifted = [query | {"preds": [score + shift for score in query["preds"]]} for query in batch]
    options = data.draw(options_of(spec))
    (values, gradient), (other_values, other_gradient) = (evaluate(spec, b, **options) for b in (batch, shifted))
    scale = 1e-9 * max(1.0, *values.abs().tolist())
    assert_close(other_values, values, atol=scale)
    assert_close(other_gradient, gradient, atol=scale)
    if "sum of gradients" not in spec.exempt:
        for query in batch:
            assert evaluate(spec, [query], **options)[1].sum().abs() < scale


@losses_under("far gradients")
@pytest.mark.parametrize("gap", [5.0, 25.0, 100.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_wrong_order_has_a_gradient_however_wrong_it_is(spec, gap, dtype):
    _, gradient = evaluate(spec, one(spec, [0.0, gap], [1.0, 0.0]), dtype=dtype)
    if spec.logits:
        gradient = gradient[:, 0]
    # Of the two items, the better one is pulled up or the worse one pushed down by a third at least.
    assert gradient[0] <= 0
    assert gradient[1] >= 0
    assert gradient.abs().max() > 0.3


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, F64])
@given(data=st.data())
def test_values_and_gradients_are_finite(spec, dtype, data):
    layout = data.draw(st.sampled_from(LAYOUTS))
    scores = st.sampled_from((-1e4, -50.0, 0.0, 0.0, 1.0, 1e4))
    large = (8.0, 10.0) if "large grades" in spec.exempt else (31.0, 128.0)
    batch = data.draw(batches_of(spec, scores=scores, grades=st.sampled_from((0.0, 0.0, 1.0, 2.0, 2.0, *large))))
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
    batch = [*one(spec, [-1000.0, -999.0], [1.0, 0.0]), *one(spec, [1000.0], [1.0])]
    with torch.autograd.detect_anomaly():
        evaluate(spec, batch, layout, dtype=torch.float32, seed=1)


@every_loss
def test_autocast_changes_nothing(spec):
    batch = [*one(spec, [0.4, -1.0, 2.0, 0.3], [1.0, 0.0, 0.0, 3.0]), *one(spec, [0.7, 0.1], [0.0, 2.0])]
    for dtype in (torch.bfloat16, torch.float32):
        value, gradient = evaluate(spec, batch, dtype=dtype)
        with torch.autocast("cpu", torch.bfloat16):
            other_value, other_gradient = evaluate(spec, batch, dtype=dtype)
        assert torch.equal(value, other_value)
        assert torch.equal(gradient, other_gradient)


# No tie among the scores, and no pair at the margin.
SMOOTH = [([0.4, -1.0, 2.0, 0.3], [1.0, 0.0, 0.0, 3.0]), ([0.7, 0.1], [0.0, 2.0]), ([0.1], [1.0])]


def smooth_function(spec: LossSpec, layout: str, **options: Any) -> tuple[Any, Tensor]:
    """A loss as a function of its scores alone, and the scores."""
    arguments = arguments_of([query for preds, target in SMOOTH for query in one(spec, preds, target)], layout, seed=2)
    del arguments["number"]
    preds = arguments.pop("preds").nan_to_num(0.0, 0.0, 0.0)  # padding, which finite differences do not like
    return lambda scores: function_of(spec)(scores, **arguments, **options), preds.requires_grad_()


@every_loss
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradcheck(spec, layout):
    if spec.name == "plrank":
        pytest.skip("the gradient is that of the expectation, not of the ranking drawn; tested in test_plrank.py")
    for cutoff in [{}, {"top_k": 2}] if "top_k" in spec.options else [{}]:
        function, preds = smooth_function(spec, layout, **cutoff)
        assert torch.autograd.gradcheck(function, (preds,))


@every_loss
@pytest.mark.parametrize("layout", LAYOUTS)
def test_second_derivative_is_right_or_refused(spec, layout):
    function, preds = smooth_function(spec, layout)
    if spec.twice:
        assert torch.autograd.gradgradcheck(function, (preds,))
        return
    (gradient,) = torch.autograd.grad(function(preds), preds, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated once only"):
        gradient.sum().backward()


# Noise ----------------------------------------------------------------------------------------------------------------


@losses_with("generator")
def test_same_generator_same_loss_and_the_global_one_is_left_alone(spec):
    preds, target = torch.tensor([[0.5, 0.1, 0.4], [1.0, 0.2, 0.3]]), torch.tensor([[0, 1, 2], [2, 0, 1]])
    options = {"gumbel_samples": 3} if spec.gumbel else {}
    state = torch.get_rng_state()
    draws = [
        function_of(spec)(preds, target, generator=torch.Generator().manual_seed(seed), **options) for seed in (0, 0, 1)
    ]
    assert draws[0] == draws[1] != draws[2]
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(7)
    first = function_of(spec)(preds, target, **options)
    assert first != function_of(spec)(preds, target, **options)
    torch.manual_seed(7)
    assert first == function_of(spec)(preds, target, **options)


@pytest.mark.parametrize("spec", [s for s in LOSSES.values() if s.gumbel], ids=lambda s: s.name)
@given(data=st.data())
def test_gumbel_samples_are_a_mean_over_perturbed_scores(spec, data):
    plain = [{name: query[name] for name in ("preds", "target")} for query in data.draw(batches_of(spec))]
    layout, options = data.draw(st.sampled_from(LAYOUTS)), data.draw(options_of(spec))
    noisy = prepared(spec, plain, samples=3)
    values, gradient = evaluate(spec, noisy, layout, seed=data.draw(SEEDS), **options)
    each = []
    for k in range(3):
        batch = [
            plain_query | {"preds": [a + b for a, b in zip(query["preds"], query[f"noise_{k}"], strict=True)]}
            for plain_query, query in zip(plain, noisy, strict=True)
        ]
        each.append(evaluate(spec, batch, layout, **options))
    assert_close(values, sum(value for value, _ in each) / 3, atol=1e-9)
    assert_close(gradient, sum(gradient for _, gradient in each) / 3, atol=1e-9)


@pytest.mark.parametrize("spec", [s for s in LOSSES.values() if s.noise], ids=lambda s: s.name)
def test_explicit_noise_is_checked(spec):
    preds, target = torch.zeros(2, 3), torch.ones(2, 3)
    with pytest.raises(TypeError, match=f"`{spec.noise}` must be a tensor"):
        function_of(spec)(preds, target, **{spec.noise: [0.1]})
    wrong = torch.zeros(2, 2) if spec.noise == "gamma" else torch.zeros(2, 3)
    with pytest.raises(ValueError, match=f"`{spec.noise}"):
        function_of(spec)(preds, target, **{spec.noise: wrong})


# Queries without signal -----------------------------------------------------------------------------------------------

T, F = True, False
NO_ITEM = {
    "all masked": (torch.tensor([[1.0, NAN], [0.5, 0.1]]), torch.ones(2, 2), torch.zeros(2, 2, dtype=torch.bool)),
    "no query": (torch.empty(0, 3), torch.empty(0, 3), torch.empty(0, 3, dtype=torch.bool)),
    "no column": (torch.empty(2, 0), torch.empty(2, 0), torch.empty(2, 0, dtype=torch.bool)),
    "nothing": (torch.empty(0), torch.empty(0), None),
}
NO_RELEVANT = {
    "no relevant item": (torch.tensor([[1.0, 2.0], [0.5, 0.1]]), torch.zeros(2, 2), None),
    "negative grades": (torch.tensor([[1.0, 2.0]]), torch.tensor([[-1.0, 0.0]]), None),
}
NO_PAIR = {
    "equal grades": (torch.tensor([[1.0, 2.0], [0.5, 0.5]]), torch.ones(2, 2), None),
    "one item": (torch.tensor([[1.0], [-3.0]]), torch.ones(2, 1), None),
    "one item beside padding": (torch.tensor([[1.0, NAN]]), torch.ones(1, 2), torch.tensor([[T, F]])),
}
NO_SIGNAL = {
    "item": NO_ITEM,
    "gain": NO_ITEM | NO_RELEVANT,
    "relevant": NO_ITEM | NO_RELEVANT,
    "pair": NO_ITEM | NO_RELEVANT | NO_PAIR,
}


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    ("spec", "case"), [pytest.param(s, case, id=f"{s.name}-{name}") for s in LOSSES.values() for name, case in
                       NO_SIGNAL[s.signal].items()]
)  # fmt: skip
def test_batch_without_signal_is_zero_on_the_graph(spec, case, reduction):
    preds, target, mask = case
    preds = as_scores(spec, preds).requires_grad_()
    value = function_of(spec)(preds, target, mask, reduction=reduction)
    num_queries = target.shape[0] if target.ndim == 2 else 1
    assert value.shape == ((num_queries,) if reduction == "none" else ())
    assert (value == 0).all()
    value.sum().backward()
    assert (preds.grad == 0).all()


@every_loss
@pytest.mark.parametrize("layout", ["offsets", "indexes"])
def test_flat_batch_of_nothing_is_zero_on_the_graph(spec, layout):
    preds = as_scores(spec, torch.empty(0)).requires_grad_()
    layouts = {"offsets": torch.zeros(1, dtype=torch.long), "indexes": torch.empty(0, dtype=torch.long)}
    value = function_of(spec)(preds, torch.empty(0), **{layout: layouts[layout]})
    value.backward()
    assert value == 0
    assert preds.grad.shape == preds.shape


@pytest.mark.parametrize("spec", [s for s in LOSSES.values() if s.shift_invariant], ids=lambda s: s.name)
@pytest.mark.parametrize("score", [0.0, -1e4])
def test_one_relevant_item_alone_leaves_nothing_to_learn(spec, score):
    value, gradient = evaluate(spec, one(spec, [score], [2.0]))
    assert_close(value, [0.0])
    assert_close(gradient, [0.0])


@every_loss
def test_empty_query_between_two(spec):
    batch = [query for preds, target in [([], []), ([1.0, 0.0], [0.0, 1.0]), ([], []), ([0.2, 0.3], [1.0, 0.0])]
             for query in one(spec, preds, target)]  # fmt: skip
    values, _ = evaluate(spec, batch, "offsets")
    assert (values != 0).tolist() == [False, True, False, True]


@every_loss
def test_query_without_signal_is_not_averaged_in(spec):
    batch = one(spec, [0.5, -1.0, 0.2], [0.0, 1.0, 2.0])
    without = {"item": ([], []), "pair": ([0.3, 0.1], [1.0, 1.0])}.get(spec.signal, ([0.3, 0.1], [0.0, 0.0]))
    alone, gradient = evaluate(spec, batch, reduction="mean")
    beside, beside_gradient = evaluate(spec, [*batch, *one(spec, *without)], reduction="mean")
    assert_close(beside, alone)
    assert_close(beside_gradient[:3], gradient)


# Facts ----------------------------------------------------------------------------------------------------------------


@losses_with("top_k")
def test_relevant_item_below_the_cutoff_is_pulled_in(spec):
    _, gradient = evaluate(spec, one(spec, [3.0, 2.0, 1.0], [0.0, 0.0, 1.0]), top_k=1)
    assert gradient[2] < -1e-2


@losses_with("top_k")
def test_cutoff_beyond_the_list_is_none(spec):
    batch = one(spec, [0.5, -1.0, 0.2], [0.0, 1.0, 2.0])
    values, gradient = evaluate(spec, batch, top_k=3)
    assert_close(values, evaluate(spec, batch)[0])
    assert_close(gradient, evaluate(spec, batch)[1])


@every_loss
def test_target_is_any_real_dtype(spec):
    preds = as_scores(spec, torch.tensor([[0.5, 0.1, -1.0]]))
    noise = {"gamma": {"gamma": torch.zeros(1, 3)}, "noise": {"noise": torch.zeros(1, 1, 3)}, None: {}}[spec.noise]
    wanted = function_of(spec)(preds, torch.tensor([[1.0, 0.0, 1.0]]), **noise)
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.float16, F64):
        assert function_of(spec)(preds, torch.tensor([[1, 0, 1]], dtype=dtype), **noise) == wanted


@losses_under("large grades")
def test_grades_of_integer_dtype_do_not_wrap(spec):
    if spec.logits or spec.max_grade is not None:
        pytest.skip("grades that large are refused")
    preds = torch.tensor([[0.5, 0.1]])
    noise = {"gamma": torch.zeros(1, 2), "noise": torch.zeros(1, 1, 2), None: None}[spec.noise]
    values = [
        function_of(spec)(preds, torch.tensor([[64, 1]], dtype=dtype), **({spec.noise: noise} if spec.noise else {}))
        for dtype in (torch.int8, torch.float64)
    ]
    assert_close(values[0], values[1], rtol=1e-6)


@losses_with("gain")
def test_gain_table(spec):
    batch = one(spec, [0.3, 0.1, -1.0], [0.0, 1.0, 2.0])
    for gain, table in (("exp2", [0, 1, 3]), ("linear", [0, 1, 2])):
        by_table, gradient = evaluate(spec, batch, gain=table)
        assert_close(by_table, evaluate(spec, batch, gain=gain)[0])
        assert_close(gradient, evaluate(spec, batch, gain=gain)[1])
    with pytest.raises(ValueError, match="table for the grades"):
        evaluate(spec, batch, gain=[0, 1])


@every_loss
def test_no_option_is_ignored(spec):
    preds = torch.tensor([[1.2, 0.4, -0.3, 2.1, 0.0]], dtype=F64)
    target = torch.tensor([[2, 0, 1, 0, 3]])
    if spec.logits or spec.max_grade is not None:
        assert not spec.options
        return

    def value(**options: Any) -> Tensor:
        torch.manual_seed(0)
        return function_of(spec)(preds, target, **options)

    for option, default in spec.options.items():
        if option in ("generator", "method"):
            continue  # test_same_generator_same_loss, test_method_is_the_one_asked_for
        others = {
            "gain": ["linear" if default == "exp2" else "exp2", lambda grade: grade * 5 + 2],
            "scheme": ["ndcg_loss1", "ndcg_loss2"],
        }.get(option, [OTHER_VALUES.get(option)])
        for other in others:
            assert value(**{option: other}) != value(), option


@every_loss
def test_global_mean_divides_by_the_queries_of_all_processes(spec, monkeypatch):
    # This process has one query with signal, the other two: gradients averaged over both must be the mean over three.
    batch = one(spec, [0.5, 0.1], [0.0, 1.0])
    _, alone = evaluate(spec, batch, reduction="sum")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda count: count.add_(2))
    _, gradient = evaluate(spec, batch, reduction="mean", global_mean=True)
    assert_close(gradient / 2, alone / 3)
