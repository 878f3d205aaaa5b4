"""Running sums over the places of a list, also in logarithms, and the groups of items of one grade."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightning_rank.conventions import sum_dtype
from lightning_rank.functional.batch import Batch


def running(values: Tensor, reach: Tensor, combine: Callable[[Tensor, Tensor], Tensor], neutral: float) -> Tensor:
    """Combine each value with the ``reach`` values before it on the last axis, by doubling: O(n log n), no look at a value.

    Unlike a difference of sums it loses no accuracy, and with ``torch.logaddexp`` it is finite for any gap.
    """
    size, shift = values.shape[-1], 1
    while shift < size:
        before = torch.nn.functional.pad(values.narrow(-1, 0, size - shift), (shift, 0), value=neutral)
        values = torch.where(reach >= shift, combine(values, before), values)
        shift *= 2
    return values


class Places:
    """The places of each list in the descending order of a key, padding last, and sums over those before or after a place.

    Attributes:
        lists: the layout of the places.
        order: which item takes a place, indices on the last axis.
        place: 0-based within the query, shaped like items.
        last: places of the query, less one.
    """

    def __init__(self, batch: Batch, key: Tensor) -> None:
        self.order, self.sorted_key = batch.lists.order(key)
        self.lists = batch.lists.sorted()
        self.place = self.lists.position.expand_as(self.order)
        self.valid = self.lists.valid.expand_as(self.order)
        self.last = self.lists.spread(self.lists.lengths).expand_as(self.order) - 1

    def take(self, values: Tensor) -> Tensor:
        """Item values at their places."""
        return values.gather(-1, self.order)

    def put_back(self, values: Tensor) -> Tensor:
        """Values of the places as those of the items; 0 in padding."""
        return torch.zeros_like(values).scatter(-1, self.order, torch.where(self.valid, values, 0.0))

    def sum_from_here(self, values: Tensor) -> Tensor:
        """The sum of the value at a place and at all after it."""
        values = torch.where(self.valid, values, 0.0).flip(-1)
        return running(values, (self.last - self.place).flip(-1), torch.add, 0.0).flip(-1)

    def log_sum_from_here(self, values: Tensor) -> Tensor:
        """The same of exponentials, as a logarithm."""
        values = torch.where(self.valid, values, -torch.inf).flip(-1)
        return running(values, (self.last - self.place).flip(-1), torch.logaddexp, -torch.inf).flip(-1)

    def log_sum_to_here(self, values: Tensor) -> Tensor:
        """Logarithm of the sum of exponentials at a place and at all before it."""
        return running(torch.where(self.valid, values, -torch.inf), self.place, torch.logaddexp, -torch.inf)


class Levels(Places):
    """The places in descending order of the grades, with the group of items of one grade that each is in.

    Attributes:
        taken: places of the group before this one.
        size: items of the group.
    """

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch, batch.grade)
        count = self.order.shape[-1]
        index = torch.arange(count, device=self.order.device).expand_as(self.order)
        starts = self.lists.ties_with_above(self.sorted_key).logical_not()
        self._first = torch.where(starts, index, 0).cummax(-1).values
        # One past the group: the next start, read one place on.
        ahead = torch.where(starts, index, count).flip(-1).cummin(-1).values.flip(-1)
        self._after = torch.cat([ahead, torch.full_like(ahead.narrow(-1, 0, min(1, count)), count)], -1).narrow(
            -1, min(1, count), count
        )
        self.taken, self.size = index - self._first, self._after - self._first

    def sum_of_group(self, values: Tensor) -> Tensor:
        return running(values, self.taken, torch.add, 0.0).gather(-1, self._after - 1)

    def log_sum_of_group(self, values: Tensor) -> Tensor:
        return running(values, self.taken, torch.logaddexp, -torch.inf).gather(-1, self._after - 1)

    def log_sum_below(self, values: Tensor) -> Tensor:
        """Over the items of lower grades; -inf for the lowest."""
        following = torch.nn.functional.pad(self.log_sum_from_here(values), (0, 1), value=-torch.inf).gather(
            -1, self._after
        )
        return torch.where(self.place - self.taken + self.size <= self.last, following, -torch.inf)

    def log_sum_above(self, values: Tensor) -> Tensor:
        """Over the items of higher grades; -inf for the highest."""
        before = self.log_sum_to_here(values).gather(-1, (self._first - 1).clamp(min=0))
        return torch.where(self.place > self.taken, before, -torch.inf)


class _Once(torch.autograd.Function):
    """A known gradient: that it depends on the scores is remembered, how is not."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Tensor, score: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None]:
        raise RuntimeError("This loss can be differentiated once only: its gradient is computed by hand.")


class WithGradient(torch.autograd.Function):
    """Terms whose sum over a query has a known gradient by the scores.

    ``again``: the sums as a function of the scores that can be differentiated any number of times, for who asks for more than
    the gradient; None: that is refused.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(score: Tensor, terms: Tensor, gradient: Tensor, again: Callable[[Tensor], Tensor] | None) -> Tensor:
        return terms.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], inputs[2])
        ctx.again = inputs[3]

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None, None, None]:
        score, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():
            # Someone asks for a graph of the gradient, which must not look like a constant.
            if ctx.again is None:
                gradient = _Once.apply(gradient, score)
            else:
                (gradient,) = torch.autograd.grad(ctx.again(score).sum(), score, create_graph=True)
        return gradient * incoming, None, None, None


def with_gradient(batch: Batch, terms: Tensor, gradient: Tensor) -> Tensor:
    """``[Q]`` sums of terms whose gradient, that of each query's sum by its scores, is known; it cannot be differentiated again.

    Args:
        terms: shaped like items, in any order within a query; 0 in padding.
        gradient: of the items.
    """
    score = batch.score.to(terms.dtype)
    value = batch.lists.sum(WithGradient.apply(score, terms, gradient, None))
    return value.to(batch.score.dtype)


def centred(batch: Batch) -> Tensor:
    """Scores, without a graph, less the highest of their query, in the dtype of sums; 0 in padding."""
    score = batch.score.detach().to(sum_dtype(batch.score.device))
    highest = batch.lists.max(score)
    score = score - batch.lists.spread(torch.where(highest > -torch.inf, highest, 0.0))
    return torch.where(batch.lists.valid, score, 0.0)
