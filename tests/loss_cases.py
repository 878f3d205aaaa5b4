"""What the tests of losses share: any loss of the table on queries in any layout, with logits and noise where it takes them."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from lightning_rank import functional
from lightning_rank.functional.batch import METHODS
from lightning_rank.functional.losses import LOSSES, LossSpec
from tests import loss_reference
from tests.conftest import CUTOFFS, FINITE_SCORES, OPTION_VALUES, Query, batches, lay_out, queries

F64 = torch.float64
NUM_LOGITS = 4
NUM_SAMPLES = 2

OLD_COMPILER = torch.__version__.startswith("2.4.") and "torch.compile of PyTorch 2.4 cannot follow dataclasses.replace"
PAIRWISE = ("ranknet", "lambdarank", "lambda", "pairwise_hinge")

LOSS_OPTIONS = OPTION_VALUES | {
    "top_k": CUTOFFS,
    "sigma": st.sampled_from((1.0, 0.5, 3.0)),
    "margin": st.sampled_from((1.0, 0.0, 2.2)),
    "mu": st.sampled_from((10.0, 0.0, 2.5)),
    "scheme": st.sampled_from(("ndcg_loss1", "ndcg_loss2", "ndcg_loss2pp")),
    "method": st.sampled_from((None, *METHODS)),
    "normalize": st.booleans(),
    "normalize_pairs": st.booleans(),
}

OTHER_VALUES = {
    "top_k": 1,
    "temperature": 0.3,
    "sigma": 3.0,
    "margin": 3.0,
    "mu": 3.0,
    "normalize": False,
    "normalize_pairs": True,
    "min_relevance": 3,
    "num_samples": 3,
    "gumbel_samples": 3,
    "sinkhorn_max_iter": 1,
    "sinkhorn_tol": 0.9,
}

every_loss = pytest.mark.parametrize("spec", LOSSES.values(), ids=LOSSES)


def losses_with(*options: str) -> pytest.MarkDecorator:
    """The losses that take one of the options."""
    return pytest.mark.parametrize("spec", [s for s in LOSSES.values() if {*options} & {*s.options}], ids=lambda s: s.name)


def losses_under(law: str) -> pytest.MarkDecorator:
    """The losses that are not exempt from a law."""
    return pytest.mark.parametrize("spec", [s for s in LOSSES.values() if law not in s.exempt], ids=lambda s: s.name)


def as_scores(spec: LossSpec, preds: Tensor) -> Tensor:
    """Scores, or as many logits."""
    return torch.stack([preds / k for k in range(1, NUM_LOGITS + 1)], -1) if spec.logits else preds.clone()


def function_of(spec: LossSpec) -> Any:
    return getattr(functional, f"{spec.name}_loss")


def options_of(spec: LossSpec, *without: str) -> st.SearchStrategy[dict[str, Any]]:
    """Values of the options of a loss; those of noise and of stopping stay as they are."""
    names = [name for name in spec.options if name in LOSS_OPTIONS and name not in without]
    strategies = {name: LOSS_OPTIONS[name] for name in names}
    if spec.name == "neural_ndcg":
        # The reference alternates as Sinkhorn did, which takes for ever at low temperatures.
        strategies["temperature"] = st.sampled_from((2.0, 3.0, 6.0))
    if spec.name == "lambda":
        strategies["method"] = st.sampled_from((None, "dense", "rows"))  # near-linear steps of the discount are fitted
    drawn = st.fixed_dictionaries(strategies)
    # `mu` is refused where the scheme has none.
    return drawn.map(lambda options: {k: v for k, v in options.items() if k != "mu" or options["scheme"] == "ndcg_loss2pp"})


def prepared(spec: LossSpec, batch: list[Query], *, samples: int | None = None, seed: int = 0) -> list[Query]:
    """Queries as the loss takes them: grades that it knows, logits, noise for each item (``samples``: Gumbel samples)."""
    rng = random.Random(seed)
    most = NUM_LOGITS if spec.logits else spec.max_grade
    result = []
    for query in batch:
        size = range(len(query["preds"]))
        query = dict(query)
        if most is not None:
            query["target"] = [min(grade, most) for grade in query["target"]]
        if spec.logits:
            for k in range(2, NUM_LOGITS + 1):
                query[f"logit_{k}"] = [score / k - 0.3 * k for score in query["preds"]]
        if spec.noise == "gamma":
            query["gamma"] = [rng.random() for _ in size]
        if spec.noise == "noise" and (samples or not spec.gumbel):
            for k in range(samples or NUM_SAMPLES):
                query[f"noise_{k}"] = [rng.gauss(0, 1.3) for _ in size]
        result.append(query)
    return result


def batches_of(spec: LossSpec, **kwargs: Any) -> st.SearchStrategy[list[Query]]:
    return batches(**{"scores": FINITE_SCORES} | kwargs).map(lambda batch: prepared(spec, batch))


def queries_of(spec: LossSpec, **kwargs: Any) -> st.SearchStrategy[Query]:
    return queries(**{"scores": FINITE_SCORES} | kwargs).map(lambda query: prepared(spec, [query])[0])


def one(spec: LossSpec, preds: list[float], target: list[float], **columns: list[float]) -> list[Query]:
    """A batch of one query."""
    return prepared(spec, [{"preds": preds, "target": target, **columns}])


def arguments_of(
    batch: list[Query], layout: str = "padded", *, dtype: torch.dtype = F64, seed: int = 0
) -> dict[str, Tensor]:
    """A prepared batch as the arguments of its loss, and the ``number`` of each item."""
    numbers = iter(range(10**6))
    numbered = [query | {"number": [next(numbers) for _ in query["preds"]]} for query in batch]
    arguments = lay_out(numbered, layout, dtypes={"preds": dtype, "target": dtype, "number": torch.long}, seed=seed)
    logits = [arguments.pop(name).to(dtype) for name in list(arguments) if name.startswith("logit_")]
    if logits:
        arguments["preds"] = torch.stack([arguments["preds"], *logits], -1)
    samples = [arguments.pop(name) for name in list(arguments) if name.startswith("noise_")]
    if samples:
        arguments["noise"] = torch.stack(samples)
    return arguments


def evaluate(
    spec: LossSpec,
    batch: list[Query],
    layout: str = "padded",
    *,
    dtype: torch.dtype = F64,
    seed: int = 0,
    reduction: str = "none",
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """The value, and the gradient of its sum for all items in the order of the batch; that of padding must be 0."""
    arguments = arguments_of(batch, layout, dtype=dtype, seed=seed)
    number = arguments.pop("number")
    preds = arguments["preds"].requires_grad_()
    value = function_of(spec)(**arguments, reduction=reduction, **kwargs)
    value.sum().backward()
    item = arguments.get("mask", torch.ones_like(number, dtype=torch.bool))
    assert (preds.grad[~item] == 0).all()
    gradient = preds.new_zeros(sum(len(query["preds"]) for query in batch), *preds.shape[number.ndim :])
    gradient[number[item]] = preds.grad[item]
    return value.detach(), gradient


def expected(spec: LossSpec, query: Query, **options: Any) -> tuple[float, list, bool]:
    """What the slow reference says of a prepared query: value, gradient, signal."""
    scores, grades, weights = query["preds"], query["target"], query.get("weight")
    if spec.logits:
        columns = [name for name in query if name.startswith("logit_")]
        scores = [list(row) for row in zip(scores, *(query[name] for name in columns), strict=True)]
    if spec.noise == "gamma":
        options["gamma"] = query["gamma"]
    options.pop("method", None)  # all give the same numbers
    if spec.name == "plrank":
        noise = [query[name] for name in query if name.startswith("noise_")]
        clamped = [max(grade, 0.0) for grade in grades]
        found = loss_reference.plrank_of_noise(scores, clamped, weights, noise=noise, **options)
        return (0.0, [0.0] * len(scores), False) if found is None else (*found, True)
    return loss_reference.loss_with_gradient(spec.name, scores, grades, weights, **options)
