"""From the names and options of metrics to what is computed: every option checked, every default and preset resolved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lightning_rank.conventions import (
    EMPTY_TARGET_ACTIONS,
    TIES,
    check_aggregation,
    check_choice,
    options_of,
    preset,
)
from lightning_rank.functional.metrics import METRICS, MetricSpec, check_options
from lightning_rank.functional.ranking import Ranking


def shared_options(
    *,
    ties: str = "average",
    empty_target_action: str = "neg",
    ignore_index: int | None = None,
    aggregation: str | Callable[[Tensor], Any] = "mean",
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

    def values(self, ranking: Ranking) -> Tensor:
        return self.spec.values(ranking, self.top_k, self.options)


def values_of(entries: Sequence[Entry], ranking: Ranking) -> list[Tensor]:
    """``[Q]`` values of each entry; what entries of one metric share is computed once, down to their largest cutoff."""
    depths: dict[str, int | None] = {}
    for entry in entries:
        depth = depths.setdefault(entry.spec.name, entry.top_k)
        depths[entry.spec.name] = None if depth is None or entry.top_k is None else max(depth, entry.top_k)
    return [entry.values(ranking.head(depths[entry.spec.name])) for entry in entries]


def resolve(
    metrics: Sequence[tuple[MetricSpec, int | None]], options: Mapping[str, Any]
) -> tuple[tuple[Entry, ...], dict[str, Any], dict[str, Any]]:
    """Metrics with cutoffs and the options given for them -> entries, the options they share, and what is none of either.

    Raises:
        ValueError: an option means nothing for any of the metrics, or its value is impossible.
        TypeError: an option of a wrong type.
    """
    own_names = {name for spec, _ in metrics for name in spec.options}
    elsewhere = {name for spec in METRICS.values() for name in spec.options} - own_names
    if strange := sorted(options.keys() & elsewhere):
        names = ", ".join(dict.fromkeys(spec.name for spec, _ in metrics))
        raise ValueError(f"{', '.join(f'`{s}`' for s in strange)} means nothing for {names}.")
    own = {name: value for name, value in options.items() if name in own_names}
    given = {name: value for name, value in options.items() if name in SHARED_OPTIONS}
    rest = {name: value for name, value in options.items() if name not in own and name not in given}

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
