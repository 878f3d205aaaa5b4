"""Sums of logistic kernels over a sorted batch, against the sums over all pairs in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lightning_rank.functional import logistic_sums
from lightning_rank.functional.logistic_sums import KERNELS, LogisticSums, coefficients_of, sums_of, terms_for
from lightning_rank.lists import arrange
from tests.conftest import SEEDS

F64 = torch.float64
INF = math.inf
# Largest error of a pair, by degree: the interpolants' own, measured on a grid (that of the sigmoid is 1 / (2 T_M(3))).
ERROR_OF_A_PAIR = {
    12: {"sigmoid": 6.6e-10, "slope": 5.9e-9, "curvature": 5.2e-8, "softplus": 4.3e-11},
    20: {"sigmoid": 3e-15, "slope": 4e-14, "curvature": 5e-13, "softplus": 3e-15},
}


def kernel_of(name: str, distance: Tensor) -> Tensor:
    t = torch.exp(-distance)
    return {
        "sigmoid": t / (1 + t),
        "slope": t / (1 + t) ** 2,
        "curvature": t * (1 - t) / (1 + t) ** 3,
        "softplus": torch.log1p(t),
    }[name]


def batch_of(lengths: Sequence[int], *, scale: float, seed: int) -> tuple[Tensor, Tensor]:
    """Scores query by query, descending, some of them tied, and the query of each."""
    generator = torch.Generator().manual_seed(seed)
    scores = []
    for length in lengths:
        score = torch.randn(length, generator=generator, dtype=F64) * scale
        tied = torch.rand(length, generator=generator) < 0.3
        scores.append(torch.where(tied, score.round(), score).sort(descending=True).values)
    return torch.cat(scores), torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


def over_pairs(score: Tensor, query: Tensor, weight: Tensor, kernel: str) -> tuple[Tensor, Tensor]:
    value = kernel_of(kernel, (score.unsqueeze(1) - score.unsqueeze(0)).abs().nan_to_num(nan=0.0))
    value = value * (query.unsqueeze(1) == query.unsqueeze(0))
    # value[i, j] where j is above i: before it.
    return weight @ value.tril(-1).T, weight @ value.triu(1).T


def first_of(query: Tensor) -> Tensor:
    return torch.cat([query.new_ones(1, dtype=torch.bool), query.diff() != 0])[: len(query)]


def assert_sums(score: Tensor, query: Tensor, weight: Tensor, terms: int) -> None:
    sums = LogisticSums(score, first_of(query), terms=terms)(weight, *KERNELS)
    for kernel, sides in zip(KERNELS, sums, strict=True):
        # Rounding of sums beside the error of each pair.
        bound = weight.abs().sum(-1).max() * (ERROR_OF_A_PAIR[terms][kernel] + 2e-15)
        for ours, right in zip(sides, over_pairs(score, query, weight, kernel), strict=True):
            assert ours.shape == weight.shape
            assert (ours - right).abs().max() <= bound, kernel


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("terms", [12, 20])
def test_polynomials(kernel, terms):
    t = torch.linspace(0, 1, 4001, dtype=F64)
    powers = t.unsqueeze(1) ** torch.arange(1, terms + 1)
    value = powers @ torch.tensor(coefficients_of(kernel, terms), dtype=F64)
    error = (value - kernel_of(kernel, -torch.log(t))).abs().max()
    assert error <= ERROR_OF_A_PAIR[terms][kernel]
    # No hidden accuracy: the bounds above are not loose by more than rounding.
    assert error >= ERROR_OF_A_PAIR[terms][kernel] / 4 or error < 1e-12


def test_sigmoid_is_the_interpolant_in_closed_form():
    # q(t) = t / (1 + t) * [1 - T_M(2t - 1) / T_M(-3)]
    t, terms = 0.3, 12
    chebyshev = math.cos(terms * math.acos(2 * t - 1)) / math.cosh(terms * math.acosh(3))
    value = sum(c * t ** (m + 1) for m, c in enumerate(coefficients_of("sigmoid", terms)))
    assert value == pytest.approx(t / (1 + t) * (1 - chebyshev), rel=1e-14)


def test_softplus_has_the_slope_of_the_sigmoid():
    for m, (c, e) in enumerate(zip(coefficients_of("sigmoid", 12), coefficients_of("softplus", 12), strict=True)):
        assert e * (m + 1) == pytest.approx(c, rel=1e-15)


def test_unknown_kernel():
    with pytest.raises(ValueError, match="`kernel` must be one of sigmoid"):
        coefficients_of("tanh", 12)


@given(
    lengths=st.lists(st.sampled_from((0, 1, 2, 15, 16, 17, 40)), min_size=1, max_size=8),
    scale=st.sampled_from((0.01, 1.0, 10.0, 1e6)),
    terms=st.sampled_from((12, 20)),
    seed=SEEDS,
)
def test_equal_sums_over_pairs(lengths, scale, terms, seed):
    score, query = batch_of(lengths, scale=scale, seed=seed)
    if not len(score):
        return
    weight = torch.randn(2, len(score), generator=torch.Generator().manual_seed(seed), dtype=F64)
    assert_sums(score, query, weight, terms)


@pytest.mark.parametrize("terms", [12, 20])
@pytest.mark.parametrize("chunk", [3, 2048])
@pytest.mark.parametrize("most_doubled", [1, 4, 1024])
def test_runs_of_blocks_and_of_rows_change_nothing(monkeypatch, terms, chunk, most_doubled):
    monkeypatch.setattr(logistic_sums, "CHUNK", chunk)
    # From one row of blocks on, sums go over rows, and over rows of rows.
    monkeypatch.setattr(logistic_sums, "MOST_DOUBLED", most_doubled)
    score, query = batch_of([700, 0, 1, 300, 33, 900], scale=3.0, seed=1)
    weight = torch.rand(len(score), generator=torch.Generator().manual_seed(2), dtype=F64)
    assert_sums(score, query, weight, terms)


def test_no_weight_is_one():
    score, query = batch_of([30, 40], scale=1.0, seed=3)
    sums = LogisticSums(score, first_of(query), terms=12)
    for ours, right in zip(sums(None, "sigmoid")[0], sums(torch.ones_like(score), "sigmoid")[0], strict=True):
        assert torch.equal(ours, right)


def test_infinite_scores_tie_and_stay_apart_from_others():
    score = torch.tensor([INF, INF, 1e300, 3.0, -1e300, -INF, -INF], dtype=F64)
    (above, below) = LogisticSums(score, first_of(torch.zeros(7)), terms=20)(None, "sigmoid")[0]
    assert above.tolist() == pytest.approx([0, 0.5, 0, 0, 0, 0, 0.5], abs=1e-15)
    assert below.tolist() == pytest.approx([0.5, 0, 0, 0, 0, 0.5, 0], abs=1e-15)


def test_other_queries_of_a_long_batch_do_not_matter():
    # Positions within blocks, not along the batch: no digits are lost however many queries there are.
    lengths = [5] * 20_000
    score, query = batch_of(lengths, scale=2.0, seed=4)
    (above, below) = LogisticSums(score, first_of(query), terms=20)(None, "sigmoid")[0]
    last = slice(-5, None)
    right = over_pairs(score[last], query[last], torch.ones(5, dtype=F64), "sigmoid")
    torch.testing.assert_close((above[last], below[last]), right, rtol=0, atol=1e-14)


@pytest.mark.parametrize("layout", ["padded", "offsets"])
def test_sums_of_any_layout(layout):
    preds = torch.tensor([[0.3, 9.0, 2.0, -1.0], [0.5, 0.1, -9.0, 0.2]])
    mask = torch.tensor([[True, False, True, True], [True, True, False, True]])
    if layout == "padded":
        lists, score, _, _ = arrange(preds, preds, mask=mask)
        weight = mask.double()
    else:
        lists, score, _, _ = arrange(preds[mask], preds[mask], offsets=torch.tensor([0, 3, 6]))
        weight = torch.ones(6, dtype=F64)
    order, _ = lists.order(score)
    sums = sums_of(lists, score, order, terms=terms_for(torch.float64))
    (above, _) = sums(weight.gather(-1, order).flatten(), "sigmoid")[0]
    total = above.view_as(score).gather(-1, order.argsort(-1))
    total = total[mask] if layout == "padded" else total
    right = [
        sum(float(torch.sigmoid(a.double() - b.double())) for b in row if b > a)
        for row in (preds[0][mask[0]], preds[1][mask[1]])
        for a in row
    ]
    assert total.tolist() == pytest.approx(right, abs=1e-14)
