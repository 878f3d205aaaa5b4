"""NDCG of a doubly stochastic matrix: each rank holds a mixture of items, and each item is shared out to the ranks once.

The matrix is the only doubly stochastic one of the form exp(a_k + b_j + (n + 1 - 2k) s_j / temperature) for rank k and item j.
Sinkhorn's alternating normalisation finds it in thousands of steps; here b, whose dual objective is convex, is found by Newton
steps, each of them solved by conjugate gradients, with a step of Sinkhorn's where that does better. The gradient
follows from the matrix alone (implicit function theorem), so that nothing is kept for the way back.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_rank.conventions import Gain, discount, values_are_free
from lightning_rank.functional.batch import Batch
from lightning_rank.functional.levels import Places, WithGradient, centred
from lightning_rank.functional.plrank import ideal_dcg

# Entries of all matrices of the queries that are worked on together: what stays in the cache of a CPU, and fills a device.
MOST_ENTRIES, MOST_ENTRIES_ON_DEVICE = 2**17, 2**24
# A step that changes an exponent by more than this is beyond what a quadratic model knows.
LONGEST_STEP = 5.0
STEPS_OF_SINKHORN = 3
MOST_INNER_STEPS = 300
LOWEST_LOG = -600.0
ROUNDING = 1e-13


def neural_ndcg(
    batch: Batch,
    *,
    top_k: int | None = None,
    gain: Gain = "exp2",
    temperature: float = 1.0,
    sinkhorn_max_iter: int = 100,
    sinkhorn_tol: float = 1e-10,
) -> tuple[Tensor, Tensor]:
    """1 - NDCG of a smooth sort (NeuralSort made doubly stochastic): what a rank holds is a mixture of the items.

    Normalised until every item is shared out to within ``sinkhorn_tol``, in at most ``sinkhorn_max_iter`` steps (about ten are
    needed, as they are Newton's); the gradient is that of the limit. O(n^2) time and memory for each query, a few queries at a
    time. On a device it waits for each step, to see whether it was the last, and for flat lists for the longest one.

    Source: Pobrotyn and Bialobrzeski, "NeuralNDCG: direct optimisation of a ranking metric via differentiable relaxation of
    sorting", 2021; Grover et al., "Stochastic optimization of sorting networks via continuous relaxations", ICLR 2019.
    """
    score = centred(batch)
    gains = batch.gains(gain, scaled=True).detach().to(score.dtype)
    best, signal = ideal_dcg(batch, gains, top_k)
    places = Places(batch, score)
    graded = places.lists.pad(places.take(gains / batch.lists.spread(best)))
    ranked = places.lists.pad(places.take(score)) / temperature
    if ranked.shape[1] == 0:
        return batch.lists.sum(batch.score), signal
    discounts = discount(torch.arange(1, ranked.shape[1] + 1, device=ranked.device, dtype=ranked.dtype))
    if top_k is not None:
        discounts = torch.where(torch.arange(ranked.shape[1], device=ranked.device) < top_k, discounts, 0.0)
    most = MOST_ENTRIES if ranked.device.type == "cpu" else MOST_ENTRIES_ON_DEVICE
    together = max(1, most // max(1, ranked.shape[1] ** 2))
    parts = [
        _dcg_with_gradient(*part, discounts, sinkhorn_max_iter, sinkhorn_tol)
        for part in zip(ranked.split(together), graded.split(together), batch.lists.lengths.split(together), strict=True)
    ]
    dcg, gradient = (torch.cat(values) for values in zip(*parts, strict=True)) if parts else (ranked, ranked)
    with_graph = places.lists.pad(places.take(batch.score.to(ranked.dtype)))
    value = 1 - WithGradient.apply(with_graph, dcg, gradient / temperature, None).sum(-1)
    return value.to(batch.score.dtype), signal


# What torch.compiler.disable does, which would load the whole compiler, a second, with this file.
@torch._disable_dynamo
def _dcg_with_gradient(
    score: Tensor, gains: Tensor, lengths: Tensor, discounts: Tensor, max_iter: int, tolerance: float
) -> tuple[Tensor, Tensor]:
    """What each rank adds to the DCG, and the gradient of their sum; all ``[query, item]``, best score first."""
    plan = Plan(score, lengths)
    plan.balance(max_iter, tolerance)
    held = discounts * plan.over_items(gains)
    # With weights a of the ranks and b of the items, the derivative by the entry of rank k and item j is its matrix entry times
    # (discount_k gain_j - a_k - b_j), where a and b make every row and column of it sum to 0.
    wanted = gains * plan.over_ranks(discounts.expand_as(gains))
    scale = held.norm(dim=-1, keepdim=True) + wanted.norm(dim=-1, keepdim=True)
    b = plan.solve(wanted - plan.over_ranks(held), ROUNDING * scale, 4 * score.shape[1] + 50)
    a = held - plan.over_items(b)
    pull = plan.pull
    gradient = gains * plan.over_ranks(pull * discounts) - plan.over_ranks(pull * a) - b * plan.over_ranks(pull)
    return held, gradient


class Plan:
    """The matrix of each query, rank by item; rows sum to 1 always, columns once it is balanced.

    Attributes:
        pull: ``[query, rank]`` the factor n + 1 - 2k of the scores.
    """

    def __init__(self, score: Tensor, lengths: Tensor) -> None:
        count = score.shape[1]
        self._score, length = score, lengths.unsqueeze(1)
        self._rank = torch.arange(1, count + 1, device=score.device)
        self._valid = self._rank <= length
        self.pull = torch.where(self._valid, length + 1 - 2 * self._rank, 0).to(score.dtype)
        # Where NeuralSort starts: minus the sum of the distances to all other scores, which are in descending order.
        later = score.flip(-1).cumsum(-1).flip(-1) - score
        sooner = score.cumsum(-1) - score
        distance = sooner - (self._rank - 1) * score + (length - self._rank) * score - later
        self._shift = torch.where(self._valid, -distance, 0.0)
        self._matrix, self._columns, self._objective = self._evaluate(self._shift)

    def over_items(self, values: Tensor) -> Tensor:
        """What each rank holds of a value of the items."""
        return torch.bmm(values.unsqueeze(1), self._matrix.transpose(1, 2)).squeeze(1)

    def over_ranks(self, values: Tensor) -> Tensor:
        """What each item gets of a value of the ranks."""
        return torch.bmm(values.unsqueeze(1), self._matrix).squeeze(1)

    def balance(self, max_iter: int, tolerance: float) -> None:
        """Shift the items until each is shared out exactly once. What is done for a query depends on nothing beside it."""
        most = min(MOST_INNER_STEPS, 2 * self._shift.shape[1] + 10)
        careful = torch.ones_like(self._valid.narrow(1, 0, 1))
        for step in range(max_iter):
            missing = torch.where(self._valid, 1 - self._columns, 0.0)
            unfinished = missing.abs().amax(-1, keepdim=True) > tolerance
            if _may_look(missing) and not unfinished.any():
                return
            if step < STEPS_OF_SINKHORN:
                careful = torch.ones_like(careful)
            move = torch.where(self._columns > 0, self._columns.log().neg(), -LOWEST_LOG)
            if step >= STEPS_OF_SINKHORN:
                norm = missing.norm(dim=-1, keepdim=True)
                newton = self.solve(missing, norm * norm.sqrt().clamp(max=0.1), most)
                longest = newton.abs().amax(-1, keepdim=True)
                newton = newton * (LONGEST_STEP / longest.clamp(min=LONGEST_STEP))
                move = torch.where(careful, move, newton)
            shift = torch.where(self._valid & unfinished, self._shift + move, self._shift)
            matrix, columns, objective = self._evaluate(shift)
            better = (objective <= self._objective + ROUNDING * self._objective.abs()).unsqueeze(1)
            # A step that leads up is not taken; the next is one of Sinkhorn's, which never does.
            careful = torch.logical_and(better.logical_not(), careful.logical_not())
            if not (_may_look(better) and better.all()):
                matrix = torch.where(better.unsqueeze(2), matrix, self._matrix)
                columns, shift = torch.where(better, columns, self._columns), torch.where(better, shift, self._shift)
                objective = torch.where(better.squeeze(1), objective, self._objective)
            self._matrix, self._columns, self._shift, self._objective = matrix, columns, shift, objective

    def solve(self, wanted: Tensor, tolerance: Tensor, most: int) -> Tensor:
        """x with (diag(column sums) - matrix' matrix) x = ``wanted``, to within a norm of ``tolerance`` ``[query, 1]``.

        Conjugate gradients: the system is singular, by one constant at least, and its right side is in its range.
        """
        scale = torch.where(self._columns > 0, self._columns.reciprocal(), 0.0)
        x, rest = torch.zeros_like(wanted), wanted
        direction = scale * rest
        size = (rest * direction).sum(-1, keepdim=True)
        going = rest.norm(dim=-1, keepdim=True) > tolerance
        for _ in range(most):
            if _may_look(going) and not going.any():
                break
            image = self._columns * direction - self.over_ranks(self.over_items(direction))
            curvature = (direction * image).sum(-1, keepdim=True)
            going = going & (curvature > 0)
            length = torch.where(going, size / torch.where(going, curvature, 1.0), 0.0)
            x, rest = x + length * direction, rest - length * image
            before, size = size, (scale * rest * rest).sum(-1, keepdim=True)
            direction = scale * rest + torch.where(going, size / torch.where(going, before, 1.0), 0.0) * direction
            going = going & (rest.norm(dim=-1, keepdim=True) > tolerance)
        return x

    def _evaluate(self, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The matrix for shifts b of the items, its column sums, and the dual objective, which is least where they are 1."""
        exponent = torch.addcmul(shift.unsqueeze(1), self.pull.unsqueeze(2), self._score.unsqueeze(1))
        exponent = exponent.masked_fill_(self._valid.logical_not().unsqueeze(1), -torch.inf)
        highest = exponent.amax(-1, keepdim=True)
        highest = torch.where(highest > -torch.inf, highest, 0.0)
        matrix = exponent.sub_(highest).exp_()
        total = matrix.sum(-1, keepdim=True)
        total = torch.where(self._valid.unsqueeze(2), total, torch.inf)
        matrix = matrix.div_(total)
        log_total = torch.where(self._valid, (highest + total.log()).squeeze(2), 0.0)
        return matrix, matrix.sum(1), log_total.sum(-1) - shift.sum(-1)


def _may_look(values: Tensor) -> bool:
    """Whether a value can be looked at: not where there is none, or many at once."""
    if values.device.type in ("cpu", "meta"):
        return values_are_free(values)
    return not (isinstance(values, torch._subclasses.FakeTensor) or torch._C._functorch.is_functorch_wrapped_tensor(values))
