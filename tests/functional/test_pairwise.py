"""Losses over pairs: values worked out by hand, loops over pairs, and methods that must agree."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lightning_rank import functional
from lightning_rank.functional import pair_sums, pairwise
from lightning_rank.functional.batch import METHODS
from lightning_rank.functional.faded_sums import RATES, SHARES
from lightning_rank.functional.losses import LOSSES
from lightning_rank.lists import arrange
from tests import loss_reference
from tests.conftest import assert_close, batches, lay_out
from tests.loss_cases import OLD_COMPILER

F64 = torch.float64
NAMES = ("ranknet", "lambdarank", "lambda", "pairwise_hinge")
SCHEMES = ("ndcg_loss1", "ndcg_loss2", "ndcg_loss2pp")
every_method = pytest.mark.parametrize("method", METHODS)
# Each loss and each scheme.
VARIANTS = [pytest.param(name, {}, id=name) for name in NAMES if name != "lambda"] + [
    pytest.param("lambda", {"scheme": scheme}, id=scheme) for scheme in SCHEMES
]
every_variant = pytest.mark.parametrize(("name", "options"), VARIANTS)


def evaluate(
    name: str, arguments: dict[str, Any], method: str | None = None, *, reduction: str = "none", **options: Any
) -> tuple[Tensor, Tensor]:
    """The value and the gradient of its sum, by one method."""
    preds = arguments["preds"].detach().clone().requires_grad_()
    function = getattr(functional, f"{name}_loss")
    value = function(**arguments | {"preds": preds}, reduction=reduction, method=method, **options)
    value.sum().backward()
    return value.detach(), preds.grad


def one(preds: list[float], target: list[float], dtype: torch.dtype = F64) -> dict[str, Tensor]:
    return {"preds": torch.tensor(preds, dtype=dtype), "target": torch.tensor(target, dtype=dtype)}


# Values ---------------------------------------------------------------------------------------------------------------

S, Y = [1.2, 0.4, -0.3, 2.1, 0.0], [2.0, 0.0, 1.0, 0.0, 3.0]
KNOWN = [
    ("ranknet", {}, S, Y, 10.5498625071, None),
    ("pairwise_hinge", {}, S, Y, 14.6, [-1.0, 3.0, -1.0, 3.0, -4.0]),
    ("lambdarank", {}, S, Y, 1.4754167262, None),
    ("lambda", {"scheme": "ndcg_loss1"}, S, Y, 2.323388289, None),
    ("lambda", {"scheme": "ndcg_loss2"}, S, Y, 0.7978735024, None),
    ("lambda", {"scheme": "ndcg_loss2pp"}, S, Y, 9.45415175, None),
    # Tied scores: the mean over all orders.
    ("lambdarank", {}, [0.0, 0.0, 0.0], [1.0, 0.0, 2.0], 0.3818014820, [0.0459019254, 0.1836077016, -0.2295096270]),
    ("lambda", {"scheme": "ndcg_loss2"}, [0.0, 0.0], [1.0, 0.0], 0.2558200007, None),
    # A relevant item below the cutoff is lifted.
    ("lambdarank", {"top_k": 1}, [3.0, 2.0, 1.0], [0.0, 0.0, 1.0], 1.0634640055, [0.440398539, 0.0, -0.440398539]),
    # A pair that is very wrong keeps its gradient.
    ("lambdarank", {}, [0.0, 25.0], [1.0, 0.0], 9.2267561607, [-0.3690702464, 0.3690702464]),
    ("lambdarank", {}, [0.0, 1.0], [1.0, 0.0], None, [-0.2698119708, 0.2698119708]),
    ("ranknet", {}, [100.0, 0.0], [1.0, 0.0], 0.0, [0.0, 0.0]),
    ("ranknet", {}, [0.0, 100.0], [1.0, 0.0], 100.0, [-1.0, 1.0]),
    ("ranknet", {"sigma": 10.0}, [0.6, 0.8], [1.0, 0.0], 2.1269280110, None),
    ("pairwise_hinge", {}, [0.6, 0.8], [1.0, 0.0], 1.2, [-1.0, 1.0]),
]


@every_method
@pytest.mark.parametrize(("name", "options", "preds", "target", "value", "gradient"), KNOWN)
def test_known_values(name, options, preds, target, value, gradient, method):
    for dtype in (torch.float32, F64):
        computed, slope = evaluate(name, one(preds, target, dtype), method, **options)
        rtol = 1e-5 if dtype == torch.float32 or options.get("scheme", "").startswith("ndcg_loss2") else 1e-9
        if value is not None:
            assert_close(computed, [value], rtol=rtol, atol=1e-9)
        if gradient is not None:
            assert_close(slope, gradient, rtol=max(rtol, 1e-6), atol=1e-7)


@every_method
@pytest.mark.parametrize(
    ("name", "options"), [("ranknet", {"sigma": 3.0}), ("lambdarank", {"sigma": 3.0}), ("pairwise_hinge", {})]
)
def test_infinite_scores_give_no_nan(name, options, method):
    value, gradient = evaluate(name, one([math.inf, 0.0, -math.inf], [2.0, 0.0, 1.0], torch.float32), method, **options)
    assert value.isfinite().all()
    assert gradient.sign().tolist() == [0, 1, 0]


@every_method
@every_variant
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_extreme_scores_and_grades(name, options, dtype, method):
    preds, target = [1e6, 1e4, 0.0, -1e4, -1e6, 0.5], [0.0, 1.0, 128.0, 1.0, 128.0, 0.0]
    for scores in (preds, preds[::-1]):
        value, gradient = evaluate(name, one(scores, target, dtype), method, **options)
        expected, slope, _ = loss_reference.loss_with_gradient(name, scores, target, **options)
        assert_close(value, [expected], rtol=1e-5)
        assert_close(gradient, slope, rtol=1e-5, atol=1e-6)
        assert gradient.abs().max() > 1e-2


# Definition -----------------------------------------------------------------------------------------------------------

OPTIONS = {
    "top_k": st.none() | st.integers(1, 8),
    "sigma": st.sampled_from((1.0, 0.5, 2.0)),
    "margin": st.sampled_from((1.03, 0.37)),  # no pair is at the kink
    "gain": st.sampled_from(("exp2", "linear")),
    "scheme": st.sampled_from(SCHEMES),
    "normalize_pairs": st.booleans(),
}


@every_method
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_loops_over_pairs(name, method, data):
    scores = st.sampled_from((-1.0, 0.0, 0.3, 0.5, 2.0)) if data.draw(st.booleans()) else st.floats(-5, 5)
    grades = st.sampled_from((0.0, 0.0, 1.0, 2.0, 3.0, 0.5)) if data.draw(st.booleans()) else st.floats(0, 5)
    weights = st.sampled_from((0.0, 0.5, 1.0, 3.0))
    batch = data.draw(batches(scores=scores, grades=grades, weight=weights, max_items=9, max_queries=3))
    options = {key: data.draw(OPTIONS[key]) for key in LOSSES[name].options if key in OPTIONS}
    arguments = lay_out(batch, data.draw(st.sampled_from(("padded", "offsets"))), seed=data.draw(st.integers(0, 99)))
    values, gradient = evaluate(name, arguments, method, **options)
    expected = [loss_reference.loss_with_gradient(name, q["preds"], q["target"], q["weight"], **options) for q in batch]
    # The near-linear steps of the discount are as good as their sum of exponentials.
    rtol = 1e-5 if method == "near_linear" and str(options.get("scheme")).startswith("ndcg_loss2") else 1e-9
    if "mask" in arguments:
        assert (gradient[~arguments["mask"]] == 0).all()
        gradient = gradient[arguments["mask"]]
    scale = rtol * max([1.0, *(abs(value) for value, _, _ in expected)])
    assert_close(values, [value for value, _, _ in expected], rtol=rtol, atol=scale)
    assert_close(gradient, [x for _, slope, _ in expected for x in slope], rtol=rtol, atol=scale)


def long_lists(seed: int, grades: str, tied: float, sizes: tuple[int, ...]) -> dict[str, Tensor]:
    random_numbers = torch.Generator().manual_seed(seed)
    total = sum(sizes)
    preds = torch.randn(total, dtype=F64, generator=random_numbers) * 4
    if tied:
        # Not a multiple of a margin.
        preds = (preds / tied).round() * tied * 1.0001
    target = {
        "five": torch.randint(0, 5, (total,), generator=random_numbers).double(),
        "few relevant": (torch.rand(total, dtype=F64, generator=random_numbers) < 0.02).double(),
        "real": torch.rand(total, dtype=F64, generator=random_numbers) * 5,
    }[grades]
    weight = torch.rand(total, dtype=F64, generator=random_numbers)
    return {"preds": preds, "target": target, "weight": weight, "offsets": torch.tensor([0, *sizes]).cumsum(0)}


@pytest.mark.parametrize("tied", [0.0, 0.05, 3.0])
@pytest.mark.parametrize("grades", ["five", "few relevant", "real"])
@every_variant
def test_methods_agree_on_long_lists(name, options, grades, tied):
    rng = random.Random(f"{name}{options}{grades}{tied}")
    arguments = long_lists(rng.randint(0, 99), grades, tied, (230, 0, 1, 70, 3, 130))
    for weighted in (True, False):
        given = {k: v for k, v in arguments.items() if weighted or k != "weight"}
        for top_k in (None, rng.choice((1, 10, 100))):
            extra = options | {"top_k": top_k, "normalize_pairs": rng.random() < 0.5}
            value, gradient = evaluate(name, given, "dense", **extra)
            for method in ("rows", "near_linear"):
                other, slope = evaluate(name, given, method, **extra)
                faded = method == "near_linear" and options.get("scheme") in ("ndcg_loss2", "ndcg_loss2pp")
                rtol = 5e-6 if faded else 1e-10
                assert_close(other, value, rtol=rtol, where=(method, extra))
                assert_close(slope, gradient, rtol=rtol, atol=rtol * gradient.abs().max().item(), where=(method, extra))


@every_method
@every_variant
def test_order_of_tied_items_does_not_matter(name, options, method):
    arguments = long_lists(3, "five", 2.0, (60,)) | {"offsets": None}
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    mixed = {k: v if v is None else v[order] for k, v in arguments.items()}
    for top_k in (None, 7):
        value, gradient = evaluate(name, arguments, method, top_k=top_k, **options)
        other, slope = evaluate(name, mixed, method, top_k=top_k, **options)
        assert_close(other, value, rtol=1e-11)
        assert_close(slope, gradient[order], rtol=1e-11, atol=1e-12)


@every_variant
def test_batch_companions_do_not_matter_to_near_linear(name, options):
    arguments = long_lists(5, "real", 0.0, (40, 1, 100))
    arguments["preds"][:40] *= 1e5
    value, gradient = evaluate(name, arguments, "near_linear", **options)
    alone = {k: v[41:] for k, v in arguments.items() if k != "offsets"}
    other, slope = evaluate(name, alone, "near_linear", **options)
    # Which pairs are summed as they are, and which by exponentials, depends on where the blocks begin.
    rtol = 1e-6 if options.get("scheme") in ("ndcg_loss2", "ndcg_loss2pp") else 1e-11
    assert_close(value[2:], other, rtol=rtol)
    assert_close(gradient[41:], slope, rtol=rtol, atol=rtol)


def test_signal_is_a_pair_whose_better_item_has_a_weight():
    arguments = one([1.0, 0.5, 0.0], [1.0, 1.0, 0.0])
    assert evaluate("ranknet", arguments | {"weight": torch.zeros(3, dtype=F64)})[0] == 0
    # The mean over two queries, one of which has no signal.
    preds, target = torch.zeros(2, 2, dtype=F64), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    assert_close(functional.ranknet_loss(preds, target), torch.tensor(2.0).log(), rtol=1e-7)


def test_twice_the_weight_is_twice_the_loss():
    arguments = one(S, Y)
    for name in NAMES:
        value, _ = evaluate(name, arguments)
        twice, _ = evaluate(name, arguments | {"weight": torch.full((5,), 2.0, dtype=F64)})
        assert_close(twice, 2 * value)


def test_2pp_is_lambdarank_and_mu_times_scheme_2():
    arguments = one(S, Y)
    first, _ = evaluate("lambdarank", arguments)
    second, _ = evaluate("lambda", arguments, scheme="ndcg_loss2")
    both, _ = evaluate("lambda", arguments, scheme="ndcg_loss2pp", mu=3.0)
    assert_close(both, first + 3 * second)


def test_steps_of_the_discount_are_a_sum_of_exponentials():
    # D(a) - D(a + 1) without cancellation.
    apart = torch.logspace(0, 20, 5000, base=2, dtype=F64).round().unique()
    step = torch.log1p(1 / (1 + apart)) * torch.tensor(2.0, dtype=F64).log() / (torch.log(1 + apart) * torch.log(2 + apart))
    rates, shares = torch.tensor(RATES, dtype=F64), torch.tensor(SHARES, dtype=F64)
    mixture = (shares * torch.exp(-rates * apart.unsqueeze(1))).sum(1)
    assert ((mixture / step - 1).abs() < 4.5e-6).all()
    assert (shares > 0).all()


# Gradients, memory, devices -------------------------------------------------------------------------------------------


@every_method
@every_variant
@pytest.mark.parametrize("top_k", [None, 2])
def test_gradcheck(name, options, method, top_k):
    target = torch.tensor([1.0, 0.0, 0.0, 3.0, 0.0, 2.0, 1.0], dtype=F64)
    preds = torch.tensor([0.4, -1.0, 2.0, 0.3, 0.7, 0.1, 0.1], dtype=F64, requires_grad=True)
    offsets = torch.tensor([0, 4, 6, 7])
    function = getattr(functional, f"{name}_loss")
    tolerance = {"atol": 1e-5} if options.get("scheme", "").startswith("ndcg_loss2") else {}
    assert torch.autograd.gradcheck(
        lambda s: function(s, target, offsets=offsets, top_k=top_k, reduction="none", method=method, **options),
        (preds,),
        **tolerance,
    )


@every_variant
@pytest.mark.parametrize("method", ["dense", "rows"])
def test_short_lists_may_be_differentiated_twice(name, options, method):
    if name == "pairwise_hinge":
        return  # piecewise linear
    preds = torch.tensor([0.4, -1.0, 2.0, 0.3], dtype=F64, requires_grad=True)
    function = getattr(functional, f"{name}_loss")
    target = torch.tensor([1.0, 0.0, 0.0, 3.0])
    assert torch.autograd.gradgradcheck(lambda s: function(s, target, method=method, **options), (preds,))


@every_variant
def test_vmap_equals_a_loop(name, options):
    random_numbers = torch.Generator().manual_seed(0)
    preds = torch.randn(3, 2, 5, dtype=F64, generator=random_numbers)
    target = torch.randint(0, 3, (2, 5), generator=random_numbers)
    function = getattr(functional, f"{name}_loss")
    mapped = torch.func.vmap(lambda s: function(s, target, **options))(preds)
    assert_close(mapped, torch.stack([function(s, target, **options) for s in preds]))


class Largest(TorchDispatchMode):
    """The largest tensor that was made, in numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.numel = max([self.numel, *(x.untyped_storage().nbytes() // x.element_size() for x in tree_leaves(made)
                                        if isinstance(x, Tensor))])  # fmt: skip
        return made


@every_variant
def test_memory_grows_with_items(name, options):
    for sizes, grades in (((3000,), "five"), ((3000,), "few relevant"), ((1000,) * 3, "real")):
        arguments = long_lists(1, grades, 0.0, sizes)
        arguments["preds"] = arguments["preds"].float()
        methods = ("rows",) if max(sizes) < 3000 else ("rows", "near_linear")
        for method in (*methods, None):
            with Largest() as largest:
                evaluate(name, arguments, method, **options)
            # A piece of rows; or moments, whose number an item does not depend on the number of items.
            assert largest.numel <= max(2**18, 200 * 3000) < 3000**2 / 10
    with Largest() as largest:
        evaluate(name, arguments, "dense", **options)
    assert largest.numel >= 1000**2


@every_variant
def test_no_look_at_a_value_on_a_device(name, options):
    function = getattr(functional, f"{name}_loss")
    target = torch.ones(15, device="meta", dtype=torch.long)
    offsets = torch.zeros(4, device="meta", dtype=torch.long)
    for dtype, top_k, length in ((torch.float32, 2, 5), (F64, None, 600)):
        flat = torch.ones(15, device="meta", dtype=dtype, requires_grad=True)
        function(flat, target, offsets=offsets, top_k=top_k, **options).backward()
        padded = torch.ones(2, length, device="meta", dtype=dtype, requires_grad=True)
        function(padded, torch.ones_like(padded), padded > 0, top_k=top_k, **options).backward()
        assert flat.grad.shape == (15,)
        assert padded.grad.shape == (2, length)


@every_variant
def test_compiles_to_one_graph(name, options):
    if OLD_COMPILER:
        pytest.skip(OLD_COMPILER)
    function = getattr(functional, f"{name}_loss")
    arguments = long_lists(2, "five", 0.0, (6, 6))
    preds, target = arguments["preds"].view(2, 6), arguments["target"].view(2, 6)
    compiled = torch.compile(lambda s: function(s, target, **options), fullgraph=True, backend="aot_eager")
    (value, gradient), (other, slope) = (
        (f(scores), torch.autograd.grad(f(scores), scores)[0])
        for f, scores in (
            (compiled, preds.clone().requires_grad_()),
            (lambda s: function(s, target, **options), preds.clone().requires_grad_()),
        )
    )
    assert_close(value, other.detach())
    assert_close(gradient, slope)


def test_method_by_size():
    def method(
        num_items: int, name: str = "count", *, relevant: int = 0, dtype: torch.dtype = torch.float32, **options: Any
    ):
        grade = torch.zeros(num_items, dtype=dtype)
        grade[: relevant or num_items // 2] = 1
        lists, score, grade, _ = arrange(torch.zeros(num_items, dtype=dtype), grade)
        return pairwise._fastest(pairwise.Batch(lists, score, grade, None), pairwise.PairWeight(name, **options))

    assert method(100) == "dense"
    assert method(50_000) == "near_linear"
    assert method(50_000, relevant=10) == "rows"
    assert method(50_000, top_k=10) == "rows"
    assert method(9_000, "both", dtype=F64) == "rows"
    assert method(11_000, "both", dtype=F64) == "near_linear"
    assert method(9_000, "both") == "near_linear"
    assert method(500) == "rows"


@every_method
@every_variant
@pytest.mark.parametrize("shape", [(0, 3), (1, 0), (2, 0)])
def test_no_item_at_all(name, options, method, shape):
    empty = torch.zeros(shape, dtype=F64)
    value, gradient = evaluate(name, {"preds": empty, "target": empty}, method, **options)
    assert value.tolist() == [0.0] * shape[0]
    assert gradient.shape == shape


@every_variant
@pytest.mark.parametrize("top_k", [None, 3])
@pytest.mark.parametrize("digits", [None, 4.0, 0.5], ids=["no ties", "many ties", "long ties"])
def test_parts_of_a_long_list_give_the_sums_of_the_whole(name, options, top_k, digits, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    preds = torch.randn(110, dtype=F64, generator=generator)
    arguments = {
        "preds": preds if digits is None else preds.mul(digits).round().div(digits),
        "target": torch.randint(0, 5, (110,), generator=generator),
        "offsets": torch.tensor([0, 25, 25, 110]),
        "weight": torch.rand(110, dtype=F64, generator=generator),
    }
    together = evaluate(name, arguments, "near_linear", top_k=top_k, **options)
    monkeypatch.setattr(pair_sums, "WINDOW", 40)  # 8 items of 5 grades, less than a block
    parts = []
    windows = pair_sums._Pass._windows
    monkeypatch.setattr(pair_sums._Pass, "_windows", lambda self: parts.append(windows(self)) or parts[-1])
    for found, wanted in zip(evaluate(name, arguments, "near_linear", top_k=top_k, **options), together, strict=True):
        assert_close(found, wanted)
    assert len(parts[0]) > 1
