"""Flags of items. On the CPU NumPy compares, and converts flags, five to ten times as fast as PyTorch, which goes byte by byte."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from lightning_rank.conventions import values_are_free


def has_no_gradient(values: Tensor) -> bool:
    """Whether nothing is lost where an operation is hidden from PyTorch; False: perhaps not."""
    return not values.requires_grad and forward_ad._current_level < 0


def by_numpy(values: Tensor) -> bool:
    """Whether NumPy can read a tensor in place."""
    return values_are_free(values) and not values.requires_grad and values.dtype != torch.bfloat16


def at_least(values: Tensor, least: float | Tensor) -> Tensor:
    """bool: where a value is ``least`` or more."""
    if not by_numpy(values):
        return values >= least
    return torch.from_numpy(values.numpy() >= (least.numpy() if isinstance(least, Tensor) else least))


def below(values: Tensor, limit: float) -> Tensor:
    """bool: where a value is less than ``limit``."""
    return torch.from_numpy(values.numpy() < limit) if by_numpy(values) else values < limit


def less(values: Tensor, limits: Tensor) -> Tensor:
    """bool: where a whole number below 2^31 is less than another."""
    if values_are_free(limits):
        return torch.from_numpy(values.int().numpy() < limits.int().numpy())
    return values < limits


def equals(values: Tensor, value: float) -> Tensor:
    """bool: where a value is this one."""
    return torch.from_numpy(values.numpy() == value) if by_numpy(values) else values == value


def where(flags: Tensor) -> Tensor:
    """The places of those that are True, in the flattened flags."""
    return (
        torch.from_numpy(flags.numpy().ravel().nonzero()[0]) if values_are_free(flags) else flags.view(-1).nonzero()[:, 0]
    )


def as_numbers(flags: Tensor, dtype: torch.dtype) -> Tensor:
    """1 for True, 0 for False."""
    # The detour is vectorised, the direct way is not.
    return flags.view(torch.uint8).to(dtype) if values_are_free(flags) else flags.to(dtype)


def count(flags: Tensor) -> Tensor:
    """How many are True on the last axis -> int64."""
    if not values_are_free(flags):
        return flags.sum(-1)
    if flags.shape[-1] < 1024:
        return as_numbers(flags, torch.float32).sum(-1).long()
    return torch.from_numpy(flags.numpy().sum(axis=-1))  # without an array of numbers
