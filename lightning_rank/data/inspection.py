"""What is in a data set: sizes, grades, features that say nothing, queries that teach nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from lightning_rank.data.batches import RankingDataset

_ITEMS_AT_A_TIME = 1 << 14
_QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.95, 1.0)
_SHOWN = 12  # names of features in a line


@dataclass(frozen=True)
class Inspection:
    """Counts of a data set.

    Attributes:
        queries, items, features: numbers.
        lengths: items per query: the mean, and the quantiles ``min``, ``25%``, ``median``, ``75%``, ``95%``, ``max``.
        grades: items of each grade, by grade.
        nan_features: items in which a feature is NaN, by feature, where there is any.
        constant_features: the value of each feature that never differs (NaN left out).
        queries_without_relevant: no item is graded above 0: most metrics have no value, most losses no gradient.
        queries_of_one_grade: all items have the same grade, so that every order is as good.
        queries_without_signal: either of both, or no item at all.
    """

    queries: int
    items: int
    features: int
    lengths: dict[str, float]
    grades: dict[float, int]
    nan_features: dict[str, int]
    constant_features: dict[str, float]
    queries_without_relevant: int
    queries_of_one_grade: int
    queries_without_signal: int

    def to_dict(self) -> dict[str, Any]:
        """For JSON, where names are text."""
        return asdict(self) | {"grades": {f"{grade:g}": count for grade, count in self.grades.items()}}

    def text(self) -> str:
        """A line per fact."""
        lengths = ", ".join(f"{name} {value:,.6g}" for name, value in self.lengths.items())
        most = max(self.grades.values(), default=1)
        lines = [
            f"queries   {self.queries:,}",
            f"items     {self.items:,}",
            f"features  {self.features:,}",
            f"lengths   {lengths}",
        ]
        for i, (grade, count) in enumerate(self.grades.items()):
            bar = "█" * max(1, round(30 * count / most))
            lines.append(f"{'' if i else 'grades':<9} {grade:>4g}  {count:>12,}  {count / self.items:6.1%}  {bar}")
        lines.append(f"NaN       {_listed([f'{name} ({count:,} items)' for name, count in self.nan_features.items()])}")
        lines.append(f"constant  {_listed([f'{name} ({value:g})' for name, value in self.constant_features.items()])}")
        share = self.queries_without_signal / max(self.queries, 1)
        lines.append(
            f"no signal {self.queries_without_signal:,} queries ({share:.1%}): {self.queries_without_relevant:,} without a grade "
            f"above 0, {self.queries_of_one_grade:,} of one grade"
        )
        return "\n".join(lines)


def _listed(names: list[str]) -> str:
    if not names:
        return "no feature"
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return f"{len(names):,}: {', '.join(names[:_SHOWN])}{more}"


def inspect(data: RankingDataset, feature_names: list[str] | None = None) -> Inspection:
    """Look through a data set, some items at a time.

    Args:
        data: queries and items.
        feature_names: of its features; by default their numbers from 1, as in LETOR files.

    Example:
        >>> data = RankingDataset(torch.tensor([[1.0, 5.0], [2.0, 5.0]]), torch.tensor([0.0, 2.0]), torch.tensor([0, 2]), ["q"])
        >>> inspect(data).constant_features
        {'2': 5.0}
    """
    names = feature_names or [str(i) for i in range(1, data.num_features + 1)]
    missing = torch.zeros(data.num_features, dtype=torch.int64)
    low, high = torch.full((data.num_features,), torch.inf), torch.full((data.num_features,), -torch.inf)
    for some in data.features.split(_ITEMS_AT_A_TIME):
        values = some.float()
        nan = values.isnan()
        missing += nan.sum(0)
        low = torch.minimum(low, values.masked_fill(nan, torch.inf).amin(0) if len(values) else low)
        high = torch.maximum(high, values.masked_fill(nan, -torch.inf).amax(0) if len(values) else high)
    grades, counts = torch.unique(data.grades, return_counts=True)
    lengths = data.lengths
    some_items = lengths > 0
    query = torch.arange(len(data)).repeat_interleave(lengths)
    best = torch.full((len(data),), -torch.inf).scatter_reduce(0, query, data.grades, "amax")
    worst = torch.full((len(data),), torch.inf).scatter_reduce(0, query, data.grades, "amin")
    without, alike = best <= 0, (best == worst) & some_items
    spread: dict[str, float] = {}
    if len(lengths):
        spread["mean"] = lengths.double().mean().item()
        ordered = lengths.sort().values
        places = [round(share * (len(ordered) - 1)) for share in _QUANTILES]
        spread |= dict(zip(("min", "25%", "median", "75%", "95%", "max"), ordered[places].double().tolist(), strict=True))
    return Inspection(
        queries=len(data),
        items=len(data.grades),
        features=data.num_features,
        lengths=spread,
        grades=dict(zip(grades.tolist(), counts.tolist(), strict=True)),
        nan_features={name: count for name, count in zip(names, missing.tolist(), strict=True) if count},
        constant_features={
            name: value for name, value, same in zip(names, low.tolist(), (low == high).tolist(), strict=True) if same
        },
        queries_without_relevant=int(without.sum()),
        queries_of_one_grade=int(alike.sum()),
        queries_without_signal=int((without | alike | ~some_items).sum()),
    )
