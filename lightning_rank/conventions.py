"""The small vocabulary that metrics and losses share: gain, discount, ties, denominators, empty queries.

Every option is checked here, once, when it is given; what a tool means by a metric is a preset in ``PRESETS``. PyTorch is
imported where a tensor comes, so that words can be had without it.
"""

from __future__ import annotations

import inspect
import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Gain = str | Sequence[float] | Callable[["Tensor"], "Tensor"]

GAINS = ("exp2", "linear")
TIES = ("average", "stable", "optimistic", "pessimistic")
DENOMINATORS = ("relevant", "cutoff", "hits")
EMPTY_TARGET_ACTIONS = ("neg", "pos", "skip", "error")
AGGREGATIONS = ("mean", "median", "min", "max")

# What each tool computes when it says "NDCG" or "MAP". Read from the tools' documentation and sources; only options are set,
# definitions never change. A nested mapping holds what differs for one metric.
PRESETS: dict[str, dict[str, Any]] = {
    "trec_eval": {"gain": "linear", "denominator": "relevant", "ties": "stable", "empty_target_action": "neg"},
    "sklearn": {"gain": "linear", "ties": "average", "empty_target_action": "neg"},
    "torchmetrics": {"gain": "linear", "denominator": "hits", "ties": "average", "empty_target_action": "neg"},
    "lightgbm": {
        "gain": "exp2",
        "denominator": "cutoff",
        "ties": "stable",
        "empty_target_action": "pos",
        "dcg": {"empty_target_action": "neg"},
    },
    "xgboost": {
        "gain": "exp2",
        "denominator": "cutoff",
        "ties": "stable",
        "empty_target_action": "pos",
        "dcg": {"empty_target_action": "neg"},
        "precision": {"empty_target_action": "neg"},
    },
    "catboost": {
        "gain": "linear",
        "denominator": "cutoff",
        "ties": "pessimistic",
        "empty_target_action": "neg",
        "ndcg": {"empty_target_action": "pos"},
        "recall": {"empty_target_action": "pos"},
    },
    "tf_ranking": {"gain": "exp2", "denominator": "relevant", "ties": "average", "empty_target_action": "neg"},
    "rax": {"gain": "exp2", "denominator": "relevant", "ties": "stable", "empty_target_action": "neg"},
    "kaggle": {"denominator": "cutoff", "ties": "stable", "empty_target_action": "neg"},
    "msmarco": {"ties": "stable", "empty_target_action": "neg"},
    "beir": {"gain": "linear", "denominator": "relevant", "ties": "stable", "empty_target_action": "neg"},
}


def options_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The keyword-only parameters of a metric or a loss: its options."""
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    return [p for p in parameters if p.kind is p.KEYWORD_ONLY]


# What trec_eval, ir_measures and papers call metrics.
_NAMED_ELSEWHERE = {
    "p": "precision", "prec": "precision", "r": "recall", "ap": "map", "map_cut": "map", "ndcg_cut": "ndcg", "rr": "mrr",
    "recip_rank": "mrr", "rprec": "r_precision", "success": "hit_rate", "hit": "hit_rate", "hits": "hit_rate", "hr": "hit_rate",
}  # fmt: skip


def unknown(what: str, name: object, known: Sequence[str]) -> ValueError:
    """The error for a name that is not in a table: what came, what it is called here or the nearest names, all of them."""
    base, at, cutoff = str(name).partition("@")
    near = [one + at + cutoff for one in get_close_matches(base.lower(), known, n=3)]
    if match := re.fullmatch(r"(.+?)(?:[@_.]?([1-9]\d*))?", str(name).lower()):
        base = _NAMED_ELSEWHERE.get(match[1], match[1])
        if base in known:
            near = [f"{base}@{match[2]}" if match[2] else base]
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return ValueError(f"Unknown {what} {name!r}.{hint} Known: {', '.join(known)}.")


def check_choice(option: str, value: object, choices: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"`{option}` must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def check_top_k(top_k: object) -> None:
    if top_k is None:
        return
    if isinstance(top_k, bool) or not isinstance(top_k, numbers.Integral) or top_k < 1:
        raise ValueError(f"`top_k` must be a whole number >= 1, or None for the whole list, got {top_k!r}.")


def check_number(option: str, value: object, *, above: float = -math.inf, below: float = math.inf) -> None:
    """Raise unless ``value`` is a real number with ``above < value < below``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not above < float(value) < below:
        bounds = " and ".join(
            ([f"above {above:g}"] if above > -math.inf else []) + ([f"below {below:g}"] if below < math.inf else [])
        )
        raise ValueError(f"`{option}` must be a finite number{' ' if bounds else ''}{bounds}, got {value!r}.")


def check_gain(gain: object) -> None:
    if callable(gain):
        return
    if isinstance(gain, str):
        check_choice("gain", gain, GAINS)
    elif not (
        isinstance(gain, Sequence) and len(gain) > 0 and all(isinstance(g, numbers.Real) and math.isfinite(g) for g in gain)
    ):
        raise ValueError(f"`gain` must be 'exp2', 'linear', a list of finite gains by grade, or a callable, got {gain!r}.")


def check_aggregation(aggregation: object) -> None:
    if not callable(aggregation):
        check_choice("aggregation", aggregation, AGGREGATIONS)


def preset(convention: str | None, metric: str) -> dict[str, Any]:
    """The options that a tool's convention sets for one metric; none for ``None``."""
    if convention is None:
        return {}
    if convention not in PRESETS:
        raise unknown("convention", convention, tuple(PRESETS))
    options = {k: v for k, v in PRESETS[convention].items() if not isinstance(v, Mapping)}
    return options | PRESETS[convention].get(metric, {})


def gains_of(grade: Tensor, gain: Gain, top: Tensor | None = None) -> Tensor:
    """The gain of each grade, in float64 arithmetic of ``grade``.

    Args:
        grade: grades >= 0, floating point, any shape.
        gain: ``"exp2"`` 2^g - 1, ``"linear"`` g, gains by grade, or a callable on the grades.
        top: largest grade of the query, broadcastable to ``grade``. Given it, the exp2 gain is divided by 2^top, which
            cancels in a quotient of two gains and never overflows.

    Raises:
        ValueError: a grade is not a whole number, or beyond the table (checked where it is free: on the CPU, eagerly;
            elsewhere such an item's gain is NaN).
    """
    import torch

    if callable(gain):
        return gain(grade).to(grade.dtype)
    if isinstance(gain, str):
        if gain == "linear":
            return grade
        if top is None:
            return torch.exp2(grade) - 1
        return torch.exp2(grade - top) - torch.exp2(-top)
    table = torch.tensor(gain, dtype=grade.dtype, device=grade.device)
    index = grade.long()
    outside = (index != grade) | (index >= len(table))
    if values_are_free(grade):
        if outside.any():
            raise ValueError(
                f"`gain` is a table for the grades 0..{len(table) - 1}, got the grade {grade[outside][0].item():g}. "
                "Add its gain to the table, or use 'exp2' or 'linear'."
            )
        return table[index]
    inside = table.index_select(0, index.clamp(0, len(table) - 1).flatten()).view_as(grade)
    return torch.where(outside, torch.nan, inside)


def discount(rank: Tensor) -> Tensor:
    """1 / log2(rank + 1), for ranks (hard or soft) >= 1."""
    return (rank + 1).log2().reciprocal()


def values_are_free(tensor: Tensor) -> bool:
    """Whether looking at a value costs nothing: eager mode on the CPU; not on a device, under ``vmap`` or ``compile``."""
    import torch

    return (
        tensor.is_cpu
        and not torch.compiler.is_compiling()
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not isinstance(tensor, torch._subclasses.FakeTensor)
    )


def sum_dtype(device: torch.device) -> torch.dtype:
    """float64, or float32 where the device has none."""
    import torch

    return torch.float32 if device.type == "mps" else torch.float64


def value_dtype(preds: Tensor) -> torch.dtype:
    """The dtype of a value: float64 for float64 scores, float32 otherwise."""
    import torch

    return torch.float64 if preds.dtype == torch.float64 else torch.float32
