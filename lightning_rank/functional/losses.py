"""The table of losses, and their public form: scores and grades in any layout -> the reduced value.

A loss is a function from a ``Batch`` to the value of each query and, for each, whether it carries signal. A query without (see
``LossSpec.signal``) has value 0 and gradient 0, and is not counted in a mean.
"""

from __future__ import annotations

import inspect
import math
import numbers
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lightning_rank.conventions import (
    check_choice,
    check_gain,
    check_number,
    check_top_k,
    options_of,
    unknown,
    value_dtype,
    values_are_free,
)
from lightning_rank.functional.approximate import approx_map, approx_mrr, approx_ndcg
from lightning_rank.functional.batch import METHODS, Batch, under_gumbel
from lightning_rank.functional.listwise import listmle, listnet, plistmle, softmax, unique_softmax, xendcg
from lightning_rank.functional.neural_ndcg import neural_ndcg
from lightning_rank.functional.pairwise import lambda_, lambdarank, pairwise_hinge, ranknet
from lightning_rank.functional.plrank import plrank
from lightning_rank.functional.pointwise import ordinal, pointwise_bce, pointwise_mse
from lightning_rank.lists import Lists, arrange, check_grades, check_scores

REDUCTIONS = ("mean", "sum", "none")
SCHEMES = ("ndcg_loss1", "ndcg_loss2", "ndcg_loss2pp")
NOISE = ("gamma", "noise")
"""Options that are tensors: arguments of a function, not of a class."""


def gumbel_options(
    *, gumbel_samples: int = 0, generator: torch.Generator | None = None, noise: Tensor | None = None
) -> None:
    """The options of a loss that may be taken under Gumbel noise."""


@dataclass(frozen=True)
class LossSpec:
    """A row of the table of losses: a function, and what is true of it, which tests and documents read.

    Attributes:
        name: the short name, as in ``"approx_ndcg@10"``.
        function: from a ``Batch`` to per-query values and signal.
        signal: what a query needs to count, with a positive weight: ``"gain"`` an item with a positive gain, ``"relevant"``
            one with grade >= ``min_relevance``, ``"pair"`` two items of different grades, ``"item"`` any item.
        shift_invariant: a constant added to the scores of a query changes nothing.
        kinked: the gradient jumps somewhere.
        twice: the gradient can be differentiated again.
        waits_for_flat: with flat lists on a device, it waits once, for the longest list or the number of levels.
        gumbel: may be taken in expectation over Gumbel noise on the scores (``gumbel_samples``).
        logits: ``preds`` has a last axis of logits.
        max_grade: grades above it are refused.
        exempt: the laws of all losses that this one does not obey, and why.
        parameters: the loss's own options, as parameters of the public function.
        options: those of them that a class takes too, and their defaults.
    """

    name: str
    function: Callable[..., tuple[Tensor, Tensor]]
    signal: str = "gain"
    shift_invariant: bool = True
    kinked: bool = False
    twice: bool = True
    waits_for_flat: bool = False
    gumbel: bool = False
    logits: bool = False
    max_grade: float | None = None
    exempt: Mapping[str, str] = field(default_factory=dict, compare=False)
    parameters: tuple[inspect.Parameter, ...] = field(init=False, compare=False)
    options: dict[str, Any] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        parameters = (*options_of(self.function), *(options_of(gumbel_options) if self.gumbel else ()))
        object.__setattr__(self, "parameters", parameters)
        object.__setattr__(self, "options", {p.name: p.default for p in parameters if p.name not in NOISE})

    @property
    def noise(self) -> str | None:
        """The argument that takes explicit noise, by which a loss with random parts is a plain function."""
        names = [p.name for p in self.parameters if p.name in NOISE]
        return names[0] if names else None


_SMOOTH_METRIC = {"far gradients": "a smooth metric is flat where scores lie far apart"}

LOSSES: dict[str, LossSpec] = {
    spec.name: spec
    for spec in (
        LossSpec("approx_ndcg", approx_ndcg, gumbel=True, exempt=_SMOOTH_METRIC),
        LossSpec("approx_mrr", approx_mrr, signal="relevant", gumbel=True, kinked=True, exempt=_SMOOTH_METRIC),
        LossSpec("approx_map", approx_map, signal="relevant", gumbel=True, exempt=_SMOOTH_METRIC),
        LossSpec("ranknet", ranknet, signal="pair"),
        LossSpec("lambdarank", lambdarank, signal="pair"),
        LossSpec("lambda", lambda_, signal="pair"),
        LossSpec("pairwise_hinge", pairwise_hinge, signal="pair", kinked=True),
        LossSpec("softmax", softmax),
        LossSpec("listnet", listnet),
        LossSpec("xendcg", xendcg),
        LossSpec(
            "unique_softmax", unique_softmax, twice=False, exempt={"large grades": "the gain itself must fit the dtype"}
        ),
        LossSpec("listmle", listmle, signal="pair", twice=False),
        LossSpec("plistmle", plistmle, signal="pair", twice=False),
        LossSpec(
            "neural_ndcg",
            neural_ndcg,
            twice=False,
            waits_for_flat=True,
            exempt=_SMOOTH_METRIC | {"compile": "it runs until it has converged, which a graph cannot see"},
        ),
        LossSpec(
            "plrank", plrank, twice=False, exempt=_SMOOTH_METRIC | {"sum of gradients": "it is 0 in expectation only"}
        ),
        LossSpec("ordinal", ordinal, signal="item", shift_invariant=False, logits=True),
        LossSpec("pointwise_bce", pointwise_bce, signal="item", shift_invariant=False, max_grade=1),
        LossSpec("pointwise_mse", pointwise_mse, signal="item", shift_invariant=False),
    )
}


def find_loss(name: str) -> LossSpec:
    """The row of a loss by its name, with or without ``_loss``."""
    try:
        return LOSSES[name.lower().removesuffix("_loss")]
    except KeyError:
        raise unknown("loss", name, tuple(LOSSES)) from None


def _check_at_least(least: int, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"`{name}` must be a whole number >= {least}, got {value!r}.")


def _check_not_negative(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= float(value) < math.inf:
        raise ValueError(f"`{name}` must be a finite number >= 0, got {value!r}.")


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` must be True or False, got {value!r}.")


def _check_generator(name: str, value: object) -> None:
    if value is not None and not isinstance(value, torch.Generator):
        raise TypeError(f"`{name}` must be a torch.Generator or None, got {type(value).__name__}.")


_CHECKS: dict[str, Callable[[str, Any], None]] = {
    "top_k": lambda _, value: check_top_k(value),
    "gain": lambda _, value: check_gain(value),
    "scheme": lambda name, value: check_choice(name, value, SCHEMES),
    "min_relevance": check_number,
    "temperature": partial(check_number, above=0),
    "sigma": partial(check_number, above=0),
    "sinkhorn_tol": partial(check_number, above=0),
    "mu": _check_not_negative,
    "margin": _check_not_negative,
    "normalize": _check_flag,
    "normalize_pairs": _check_flag,
    "num_samples": partial(_check_at_least, 1),
    "gumbel_samples": partial(_check_at_least, 0),
    "sinkhorn_max_iter": partial(_check_at_least, 1),
    "generator": _check_generator,
    "method": lambda name, value: None if value is None else check_choice(name, value, METHODS),
}


def check_options(spec: LossSpec, options: Mapping[str, Any]) -> None:
    """Raise for an option that the loss has not or that would be ignored, and for an impossible value.

    Raises:
        ValueError: an option means nothing for this loss, or its value is impossible.
        TypeError: a generator that is none.
    """
    for name, value in options.items():
        if name not in spec.options:
            raise ValueError(
                f"`{name}` means nothing for the loss {spec.name}; it takes {', '.join(spec.options) or 'no options'}."
            )
        _CHECKS[name](name, value)
    values = spec.options | dict(options)
    if values.get("scheme", "ndcg_loss2pp") != "ndcg_loss2pp" and values["mu"] != spec.options["mu"]:
        raise ValueError(f"`mu` means nothing for the scheme {values['scheme']!r}; 'ndcg_loss2pp' alone has it.")
    if values.get("generator") is not None and values.get("gumbel_samples") == 0:
        raise ValueError("`generator` means nothing for a loss without noise; ask for it by `gumbel_samples`.")


def on_lists(spec: LossSpec) -> Callable[..., Tensor]:
    """The public form of a loss: scores and grades in one of the layouts -> the reduced value."""

    def loss(
        preds: Tensor,
        target: Tensor,
        mask: Tensor | None = None,
        indexes: Tensor | None = None,
        offsets: Tensor | None = None,
        *,
        weight: Tensor | None = None,
        reduction: str = "mean",
        global_mean: bool = False,
        **options: Any,
    ) -> Tensor:
        noise = options.pop(spec.noise, None) if spec.noise else None
        check_options(spec, options)
        check_choice("reduction", reduction, REDUCTIONS)
        first, *others = _logits(spec, preds)
        query_weight, item_weight = _split_weight(weight, first)
        samples = {f"{spec.noise}_{i}": sample for i, sample in enumerate(_samples(spec, noise, first))}
        logits = {f"logit_{i}": logit for i, logit in enumerate(others)}
        lists, score, target, items = arrange(
            first, target, mask=mask, indexes=indexes, offsets=offsets, weight=item_weight, **samples, **logits
        )
        if spec.logits:
            score = torch.stack([score, *_of(items, logits)], -1)
        for column in score.unbind(-1) if spec.logits else (score,):
            check_scores(lists, column)
        check_grades(lists, target)
        _note_negative(target)
        score, target, bad = _without_nan(spec, lists, score, target)
        dtype = value_dtype(preds)
        query_weight = _checked_weight(query_weight, torch.Size((lists.num_queries,)), dtype)
        item_weight = _checked_weight(items["weight"], first.shape, dtype)
        batch = Batch(lists, score.to(dtype), target.to(dtype).clamp(min=0), item_weight)
        beyond = _beyond(spec, batch)
        bad = beyond if bad is None else bad if beyond is None else bad | beyond
        if samples:
            explicit = torch.stack(_of(items, samples)).to(dtype)
            options = {**options, **({"gamma": explicit.squeeze(0)} if spec.noise == "gamma" else {"noise": explicit})}
        value, signal = under_gumbel(spec.function, batch, **options) if spec.gumbel else spec.function(batch, **options)
        value = torch.where(signal, value, 0.0)
        if bad is not None:
            value, signal = torch.where(bad, torch.nan, value), signal | bad
        return _reduce(value, signal.to(dtype), query_weight, reduction, global_mean)

    shared = inspect.signature(loss)
    parameters = [p for p in shared.parameters.values() if p.kind is not p.VAR_KEYWORD]
    parameters[5:5] = spec.parameters
    loss.__signature__ = shared.replace(parameters=parameters)  # type: ignore[attr-defined]  # functions take any
    loss.__name__ = loss.__qualname__ = f"{spec.name}_loss"
    loss.__module__ = "lightning_rank.functional"  # where pickle finds it
    loss.__doc__ = _doc(spec)
    return loss


def _note_negative(target: Tensor) -> None:
    """Say that grades below 0 count as 0, where looking is free: -1 is often padding that no mask tells of."""
    if values_are_free(target) and target.numel() and target.min() < 0:
        # Always the same words from the same line, which Python says once.
        warnings.warn(
            "Some items have a grade below 0, which counts as 0: not relevant. If those are padding, give a `mask`.",
            stacklevel=1,
        )


def _without_nan(spec: LossSpec, lists: Lists, score: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Where NaN is no error, since looking is not free: scores and grades without it, and the queries that had it.

    Sums over flat lists would carry it into other queries, in values and gradients. The value of such a query is NaN, its
    gradient 0.
    """
    if values_are_free(score):
        return score, target, None
    nan, bad_grade = torch.isnan(score), torch.isnan(target) | (target == torch.inf)
    bad = lists.count((nan.any(-1) if spec.logits else nan) | bad_grade) > 0
    return torch.where(nan, 0.0, score), torch.where(bad_grade, 0, target), bad


def _logits(spec: LossSpec, preds: Tensor) -> tuple[Tensor, ...]:
    """The scores, or each of the logits, in the shape of the items."""
    if not spec.logits or not isinstance(preds, Tensor):
        return (preds,)
    if preds.ndim < 2 or preds.shape[-1] == 0:
        raise ValueError(
            f"`preds` of {spec.name} has a last axis of logits, one per grade >= 1: [query, item, grade], or flat "
            f"[item, grade]; got the shape {list(preds.shape)}."
        )
    return preds.unbind(-1)


def _samples(spec: LossSpec, noise: Tensor | None, preds: Tensor) -> tuple[Tensor, ...]:
    """Explicit noise, sample by sample, each in the shape of ``preds``."""
    if noise is None:
        return ()
    if not isinstance(noise, Tensor):
        raise TypeError(f"`{spec.noise}` must be a tensor, got {type(noise).__name__}.")
    if spec.noise == "gamma":
        return (noise,)
    if noise.ndim != preds.ndim + 1 or len(noise) == 0:
        raise ValueError(f"`noise` must be [sample, *shape of `preds`] with a sample at least, got {list(noise.shape)}.")
    return noise.unbind(0)


def _of(items: Mapping[str, Tensor | None], names: Iterable[str]) -> list[Tensor]:
    found = []
    for name in names:
        item = items[name]
        if item is not None:
            found.append(item)
    return found


def _beyond(spec: LossSpec, batch: Batch) -> Tensor | None:
    """Queries with a grade that the loss does not know; an error where looking is free."""
    most = batch.score.shape[-1] if spec.logits else spec.max_grade
    if most is None:
        return None
    beyond = batch.lists.max(batch.grade) > most
    if values_are_free(beyond) and beyond.any():
        what = f"at most the number of logits, {most}" if spec.logits else f"in [0, {most:g}]"
        raise ValueError(
            f"`target` of {spec.name} must be {what}, got {batch.grade.max().item():g}. "
            f"{'Add a logit per grade.' if spec.logits else 'Divide grades by the largest there is, or pass target > 0.'}"
        )
    return beyond


def _split_weight(weight: Tensor | None, preds: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """A weight is one per query, or one per item: which, its shape tells."""
    if weight is not None and not isinstance(weight, Tensor):
        raise TypeError(f"`weight` must be a tensor, got {type(weight).__name__}.")
    return (None, weight) if weight is not None and weight.shape == preds.shape else (weight, None)


def _checked_weight(weight: Tensor | None, shape: torch.Size, dtype: torch.dtype) -> Tensor | None:
    if weight is None:
        return None
    if weight.shape != shape:
        raise ValueError(
            f"`weight` must be one per query, {list(shape)}, or have the shape of `preds`, got {list(weight.shape)}."
        )
    if values_are_free(weight) and not ((weight >= 0) & (weight < torch.inf)).all():
        raise ValueError("`weight` must be finite and >= 0, got a negative, infinite or NaN weight.")
    return weight.to(dtype)


def _reduce(value: Tensor, signal: Tensor, weight: Tensor | None, reduction: str, global_mean: bool) -> Tensor:
    if weight is not None:
        value, signal = value * weight, signal * weight
    if reduction == "none":
        return value
    if reduction == "sum":
        return value.sum()
    count, processes = signal.sum(), 1
    if global_mean and torch.distributed.is_available() and torch.distributed.is_initialized():
        # Strategies average gradients over processes, so that each divides by the mean count.
        torch.distributed.all_reduce(count)
        processes = torch.distributed.get_world_size()
    return value.sum() * processes / torch.where(count > 0, count, 1.0)


def _doc(spec: LossSpec) -> str:
    own = inspect.cleandoc(spec.function.__doc__ or "")
    if spec.gumbel:
        own = f"{own}\n\n{_GUMBEL_DOC}"
    if "method" in spec.options:
        own = f"{own}\n\n{_METHOD_DOC}"
    scores = "[[[0.2, -1.0], [1.5, 0.3], [-0.3, -0.1]]]" if spec.logits else "[[0.2, 1.5, -0.3]]"
    target = "[[1, 0, 1]]" if spec.max_grade == 1 else "[[2, 0, 1]]"
    shared = _LOGITS_DOC if spec.logits else _SCORES_DOC
    example = _SHARED_DOC.replace("LOSS", f"{spec.name}_loss").replace("SCORES", scores).replace("TARGET", target)
    return f"{own}\n\n{shared}{example}"


_GUMBEL_DOC = """With ``gumbel_samples`` it is the mean over that many samples of the scores with Gumbel noise, from ``generator``,
or as explicit ``noise`` [sample, *shape of ``preds``]: smoother, and items far below the cutoff still get a gradient
(Bruch, Han, Bendersky and Najork, "A stochastic treatment of learning to rank scoring functions", WSDM 2020)."""

_METHOD_DOC = """``method`` forces how sums over pairs are made: ``"dense"`` lays out all of them, ``"rows"`` those of some items
at a time, ``"near_linear"`` takes sums of exponentials. None chooses by size. All give the same numbers."""

_SCORES_DOC = """Args:
    preds: scores ``[query, item]``, or flat ``[item]``; any real number, higher is better.
    target: grades like ``preds``; higher is better, 0 or below is not relevant.
"""
_LOGITS_DOC = """Args:
    preds: logits ``[query, item, grade]``, or flat ``[item, grade]``: the k-th of K says how likely grade >= k is.
    target: grades ``[query, item]`` or ``[item]``, 0 to K; higher is better, below 0 counts as 0.
"""

_SHARED_DOC = """    mask: bool like padded ``target``, False is padding.
    indexes: for flat lists the query id of each item, in any order; otherwise the id of each query.
    offsets: for flat lists, ``[query + 1]``: query q is ``offsets[q]:offsets[q + 1]``.
    weight: ``[query]`` multiplies a query's value, and the mean divides by the weights; like ``target``, it multiplies
        what an item contributes (its gain, its term, the pairs it should win), as inverse propensities do.
    reduction: ``"mean"`` over the queries with signal (a batch with none gives 0, with gradient 0), ``"sum"``, or
        ``"none"``: ``[query]``, in ascending id for flat ``indexes``.
    global_mean: divide by the number of queries with signal over all processes, so that DDP equals one process.

Values are float64 for float64 ``preds``, else float32.

Raises:
    ValueError: shapes or options do not fit, or an option means nothing here; NaN scores or grades, a weight that is
        negative or not finite (where looking is free: on the CPU in eager mode).
    TypeError: a wrong dtype.

Example:
    >>> import torch
    >>> from lightning_rank.functional import LOSS
    >>> scores = torch.tensor(SCORES, requires_grad=True)
    >>> loss = LOSS(scores, torch.tensor(TARGET))
    >>> loss.backward()
    >>> bool(loss > 0), bool(scores.grad.isfinite().all())
    (True, True)"""
