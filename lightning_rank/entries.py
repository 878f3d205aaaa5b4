"""From the names and options of metrics to what is computed: every option checked, every default and preset resolved."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from lightning_rank.conventions import (
    DENOMINATORS,
    EMPTY_TARGET_ACTIONS,
    TIES,
    check_aggregation,
    check_choice,
    check_gain,
    check_number,
    check_top_k,
    options_of,
    preset,
    unknown,
)


@dataclass(frozen=True)
class MetricSpec:
    """A row of a table of metrics.

    Attributes:
        name: the short name, as in ``"map@10"``.
        function: from a ranking to per-query values.
        bounded: values lie in [0, 1], so that an empty query can count as perfect.
        perfect_is_one: without a cutoff, the ideal order has the value 1.
        grows_with_k: the value never falls as the cutoff grows.
        higher_is_better: as torchmetrics means it.
        needs_cutoff: without a cutoff, the order changes nothing.
        waits_for_flat_ties: on a device, flat lists cost one wait, for the length of the longest tie.
        takes_top_k: it has a cutoff; without, the whole list counts.
        options: the metric's own options and their defaults.
    """

    name: str
    function: Callable[..., Any]
    bounded: bool = True
    perfect_is_one: bool = False
    grows_with_k: bool = False
    higher_is_better: bool = True
    needs_cutoff: bool = False
    waits_for_flat_ties: bool = False
    takes_top_k: bool = field(init=False, compare=False)
    options: dict[str, Any] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "takes_top_k", "top_k" in inspect.signature(self.function).parameters)
        object.__setattr__(self, "options", {option.name: option.default for option in options_of(self.function)})

    def check_top_k(self, top_k: object) -> None:
        """Raise ValueError for a cutoff that is no whole number >= 1, or where there is none."""
        check_top_k(top_k)
        if top_k is not None and not self.takes_top_k:
            raise ValueError(f"{self.name} uses the whole list and takes no cutoff, got top_k={top_k}.")

    def values(self, ranking: Any, top_k: int | None, options: dict[str, Any]) -> Any:
        """Per-query values."""
        return self.function(ranking, top_k, **options) if self.takes_top_k else self.function(ranking, **options)


def find_metric(name: str, table: Mapping[str, MetricSpec]) -> MetricSpec:
    """The row of a metric by its short or its function's name."""
    for spec in table.values():
        if name.lower() in (spec.name, spec.function.__name__):
            return spec
    raise unknown("metric", name, tuple(table))


def parse_name(name: str, table: Mapping[str, MetricSpec]) -> tuple[MetricSpec, int | None]:
    """``"ndcg@10"`` -> its row of the table and 10.

    Raises:
        ValueError: unknown metric, or a cutoff that is no whole number >= 1.
    """
    if not isinstance(name, str):
        raise TypeError(f"A metric is named by text such as 'ndcg@10', got {name!r}.")
    base, at, cutoff = name.partition("@")
    spec = find_metric(base.strip(), table)
    if not at:
        return spec, None
    if not cutoff.isdecimal() or int(cutoff) < 1:
        raise ValueError(f"The cutoff in {name!r} must be a whole number >= 1, as in '{spec.name}@10'.")
    spec.check_top_k(int(cutoff))
    return spec, int(cutoff)


def one_cutoff(name: str, top_k: int | None, options: dict[str, Any]) -> int | None:
    """The cutoff of a name, or that of ``options``, out of which it is taken; ValueError where both have one."""
    if "top_k" not in options:
        return top_k
    if top_k is not None:
        raise ValueError(f"{name!r} has a cutoff, and top_k={options['top_k']!r} gives another: give one of them.")
    return options.pop("top_k")


def check_options(options: dict[str, Any]) -> None:
    """Raise ValueError for an option whose value no metric could take."""
    for name, value in options.items():
        if name == "gain":
            check_gain(value)
        elif name == "denominator":
            check_choice(name, value, DENOMINATORS)
        else:
            check_number(name, value, above=0, below=1 if name == "p" else math.inf)


_CUTOFF_NAMES = ("k", "top_k", "topk", "at_k", "cutoff")


def shared_options(
    *,
    ties: str = "average",
    empty_target_action: str = "neg",
    ignore_index: int | None = None,
    aggregation: str | Callable[[Any], Any] = "mean",
    whole_queries: bool = False,
    per_query: bool = False,
    convention: str | None = None,
) -> None:
    """The options that every metric takes, and their defaults; what only some take stands in the table of metrics."""


SHARED_OPTIONS: dict[str, Any] = {option.name: option.default for option in options_of(shared_options)}


@dataclass(frozen=True)
class Entry:
    """One metric with its cutoff and conventions."""

    spec: MetricSpec
    top_k: int | None
    options: dict[str, Any]
    empty_target_action: str

    @property
    def name(self) -> str:
        return self.spec.name if self.top_k is None else f"{self.spec.name}@{self.top_k}"

    def values(self, ranking: Any) -> Any:
        return self.spec.values(ranking, self.top_k, self.options)


def values_of(entries: Sequence[Entry], ranking: Any) -> list[Any]:
    """``[Q]`` values of each entry; what entries of one metric share is computed once, down to their largest cutoff."""
    depths: dict[str, int | None] = {}
    for entry in entries:
        depth = depths.setdefault(entry.spec.name, entry.top_k)
        depths[entry.spec.name] = None if depth is None or entry.top_k is None else max(depth, entry.top_k)
    return [entry.values(ranking.head(depths[entry.spec.name])) for entry in entries]


def odd_grades(entries: Sequence[Entry], target: Any, mask: Any) -> str | None:
    """What must be said of grades, an array, that are not relevant though they may be meant to: below 0, or all below 1."""
    import numpy as np

    def real(flags: Any) -> Any:
        return flags if mask is None else flags & mask

    # The least of all, with padding, is the cheaper look; NaN is not known to be at least 0.
    if not target.min(initial=0) >= 0 and (negative := np.count_nonzero(real(target < 0))):
        return f"{negative} items have a grade below 0, which counts as 0: not relevant."
    if target.dtype.kind != "f" or real(target >= 1).any():
        return None
    top = float(target[real(target > 0)].max(initial=0))
    if top > 0 and (blind := [entry.name for entry in entries if entry.options.get("min_relevance", 0) > top]):
        return (
            f"No grade is above {top:g}, so nothing is relevant to {', '.join(blind)}, for which "
            "an item is relevant from `min_relevance` on, 1 by default: give that, or whole grades."
        )
    return None


def resolve(
    metrics: Sequence[tuple[MetricSpec, int | None]], options: Mapping[str, Any], table: Mapping[str, MetricSpec]
) -> tuple[tuple[Entry, ...], dict[str, Any], dict[str, Any]]:
    """Metrics with cutoffs and the options given for them -> entries, the options they share, and what is none of either.

    ``table`` holds all metrics there are, so that an option of another one can be told from no option at all.

    Raises:
        ValueError: an option means nothing for any of the metrics, or its value is impossible.
        TypeError: an option of a wrong type.
    """
    own_names = {name for spec, _ in metrics for name in spec.options}
    elsewhere = {name for spec in table.values() for name in spec.options} - own_names
    if strange := sorted(options.keys() & elsewhere):
        names = ", ".join(dict.fromkeys(spec.name for spec, _ in metrics))
        raise ValueError(f"{', '.join(f'`{s}`' for s in strange)} means nothing for {names}.")
    own = {name: value for name, value in options.items() if name in own_names}
    given = {name: value for name, value in options.items() if name in SHARED_OPTIONS}
    rest = {name: value for name, value in options.items() if name not in own and name not in given}

    for name in rest:
        if name.lower() in _CUTOFF_NAMES:
            raise ValueError(
                f"`{name}` is no option: a cutoff is `top_k` of one metric, or stands in its name, as in 'ndcg@10'."
            )
        if near := get_close_matches(name, [*own_names, *SHARED_OPTIONS], n=1):
            raise ValueError(f"`{name}` is no option. Did you mean `{near[0]}`?")

    convention = given.get("convention")
    shared = SHARED_OPTIONS | preset(convention, "") | given
    check_options(own)
    check_choice("ties", shared["ties"], TIES)
    check_aggregation(shared["aggregation"])
    for flag in ("whole_queries", "per_query"):
        if not isinstance(shared[flag], bool):
            raise TypeError(f"`{flag}` must be True or False, got {shared[flag]!r}.")
    if shared["ignore_index"] is not None and not isinstance(shared["ignore_index"], int):
        raise TypeError(f"`ignore_index` must be a whole number or None, got {shared['ignore_index']!r}.")

    entries = []
    for spec, top_k in metrics:
        spec.check_top_k(top_k)
        defaults = SHARED_OPTIONS | spec.options | preset(convention, spec.name) | own | given
        action = defaults["empty_target_action"]
        check_choice("empty_target_action", action, EMPTY_TARGET_ACTIONS)
        entry = Entry(spec, top_k, {name: defaults[name] for name in spec.options}, action)
        if action == "pos" and not spec.bounded:
            raise ValueError(f"`empty_target_action='pos'` means nothing for {entry.name}, which has no best value.")
        entries.append(entry)
    return tuple(entries), shared, rest
