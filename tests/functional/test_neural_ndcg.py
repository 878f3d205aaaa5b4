"""NeuralNDCG: the doubly stochastic matrix and the gradient of its limit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_rank import functional
from lightning_rank.functional import neural_ndcg
from lightning_rank.functional.losses import LOSSES
from tests.conftest import assert_close
from tests.loss_cases import F64, batches_of, evaluate, one

SPEC = LOSSES["neural_ndcg"]


def test_gradient_is_that_of_the_limit():
    # Sinkhorn's iteration, unrolled until its residual is 1e-12, still has the gradient .00216, .13658, -.13873.
    values, gradient = evaluate(SPEC, one(SPEC, [3.0, 2.0, 1.0], [0.0, 0.0, 1.0]), top_k=2)
    assert_close(values, [0.8390785188], rtol=1e-10)
    assert_close(gradient, [0.0021913989, 0.1365059727, -0.1386973716], atol=1e-10)


def balanced(score: torch.Tensor) -> neural_ndcg.Plan:
    score = score.to(F64).sort(descending=True).values
    plan = neural_ndcg.Plan((score - score.max()).unsqueeze(0), torch.tensor([len(score)]))
    plan.balance(100, 1e-10)
    return plan


SCORES = {
    "a narrow band": torch.linspace(-8, 8, 200),
    "normal": torch.randn(120, generator=torch.Generator().manual_seed(0)),
    "far apart": torch.tensor([1e4, 50.0, 49.0, 0.0, -1e4, -1e4 - 1]),
    "levels": torch.arange(90) % 5,
    "all tied": torch.zeros(40),
    "heavy tails": 100 * torch.randn(50, generator=torch.Generator().manual_seed(1)) ** 3,
}


@pytest.mark.parametrize("scores", SCORES.values(), ids=SCORES)
def test_matrix_is_doubly_stochastic(scores):
    plan = balanced(scores)
    ones = torch.ones(1, len(scores), dtype=F64)
    assert_close(plan.over_items(ones), ones, atol=1e-10)
    assert_close(plan.over_ranks(ones), ones, atol=1e-9)


def test_narrow_band_is_balanced_in_few_steps(monkeypatch):
    # Sinkhorn's own steps are in the thousands here.
    calls, evaluate_plan = [], neural_ndcg.Plan._evaluate
    monkeypatch.setattr(neural_ndcg.Plan, "_evaluate", lambda self, shift: (calls.append(1), evaluate_plan(self, shift))[1])
    balanced(SCORES["a narrow band"])
    assert len(calls) < 20


@given(data=st.data(), most=st.sampled_from((1, 30, 2**20)))
def test_queries_at_a_time_change_nothing(data, most):
    batch = data.draw(batches_of(SPEC, max_items=5))
    together = evaluate(SPEC, batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neural_ndcg, "MOST_ENTRIES", most)
        apart = evaluate(SPEC, batch)
    for got, wanted in zip(apart, together, strict=True):
        assert_close(got, wanted)


def test_becomes_ndcg_as_the_temperature_falls():
    preds, target = torch.tensor([[0.3, 2.0, -1.0, 0.9]], dtype=F64), torch.tensor([[3, 0, 1, 2]])
    for top_k in (None, 2):
        loss = functional.neural_ndcg_loss(preds, target, temperature=1e-3, top_k=top_k)
        assert_close(loss, 1 - functional.ndcg(preds, target, top_k).squeeze())


def test_compiles_with_a_graph_break():
    torch.compiler.reset()
    preds, target = torch.randn(2, 5, generator=torch.Generator().manual_seed(0)), torch.arange(10).view(2, 5) % 3
    compiled = torch.compile(functional.neural_ndcg_loss, backend="eager")
    assert_close(compiled(preds, target), functional.neural_ndcg_loss(preds, target), rtol=1e-6)
