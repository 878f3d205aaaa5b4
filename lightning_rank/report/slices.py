"""Queries in groups by what is known of them, and a comparison within each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lightning_rank.stats import PairedComparison, paired

# Numbers with more values than this are cut into quarters of the queries; of texts the most frequent are kept.
MOST_VALUES, MOST_TEXTS = 6, 12
# Texts that come as often as this on average are names of groups; rarer ones are texts, of which the words are counted.
OFTEN = 5
OTHERS, UNKNOWN = "others", "not given"


class Slice(NamedTuple):
    """Some queries of a comparison.

    Attributes:
        label: which ones.
        n: how many have a value of the measure in both runs.
        baseline, candidate: means over them.
        result: the paired t test; None for a single query.
    """

    label: str
    n: int
    baseline: float
    candidate: float
    result: PairedComparison | None


class Slices(NamedTuple):
    """The queries of a comparison by one attribute.

    Attributes:
        attribute: its name.
        slices: in the order of its values, or the largest first where they are no numbers.
    """

    attribute: str
    slices: list[Slice]


def slices_of(
    attribute: str, of_query: Mapping[str, Any], old: Mapping[str, float], new: Mapping[str, float], *, alpha: float = 0.05
) -> Slices:
    """Compare within the groups that an attribute makes of the queries.

    Numbers of at most six values make a group each, others four of about as many queries. Texts make groups by name, the
    twelve largest and the others, where they come five times or more on average; otherwise the number of their words is the
    attribute.

    Args:
        attribute: its name.
        of_query: its value for each query; None, NaN or no entry is "not given".
        old, new: values of the measure by query, of baseline and candidate.
        alpha: 1 - the level of the intervals.

    Example:
        >>> old, new = {"q1": 0.2, "q2": 0.5, "q3": 0.9}, {"q1": 0.4, "q2": 0.6, "q3": 0.8}
        >>> for part in slices_of("market", {"q1": "de", "q2": "de"}, old, new).slices:
        ...     print(part.label, part.n, round(part.candidate - part.baseline, 3))
        de 2 0.15
        not given 1 -0.1
    """
    queries = [query for query in old if query in new]
    given = {query: of_query[query] for query in queries if _is_given(of_query.get(query))}
    if given and not _are_numbers(given.values()):
        texts = {query: str(value) for query, value in given.items()}
        if is_prose(list(texts.values())):
            attribute = f"words in {attribute}"
            groups = _by_number({query: len(text.split()) for query, text in texts.items()})
        else:
            groups = _by_name(texts)
    else:
        groups = _by_number(given)
    if unknown := [query for query in queries if query not in given]:
        groups.append((UNKNOWN, unknown))
    return Slices(attribute, [_slice(label, members, old, new, alpha) for label, members in groups])


def is_prose(texts: Sequence[str]) -> bool:
    """Whether texts are no names of groups: more than a few, and rarely the same."""
    return len(set(texts)) > MOST_TEXTS and len(texts) < OFTEN * len(set(texts))


def _is_given(value: Any) -> bool:
    return value is not None and value == value


def _are_numbers(values: Any) -> bool:
    return all(isinstance(value, (int, float, np.number)) and not isinstance(value, bool) for value in values)


def _by_number(of_query: Mapping[str, float]) -> list[tuple[str, list[str]]]:
    values = np.array(list(of_query.values()), dtype=np.float64)
    distinct = np.unique(values)
    if len(distinct) <= MOST_VALUES:
        return [(f"{value:g}", [query for query, v in of_query.items() if v == value]) for value in distinct.tolist()]
    # Equal values stay together: a quarter ends where the next larger value begins.
    edges = np.unique(np.quantile(values, (0.25, 0.5, 0.75), method="lower"))
    number = np.searchsorted(edges, values, "left")
    groups = []
    for i in np.unique(number).tolist():
        members = [query for query, at in zip(of_query, (number == i).tolist(), strict=True) if at]
        low, high = values[number == i].min(), values[number == i].max()
        groups.append((f"{low:g}" if low == high else f"{low:g} to {high:g}", members))
    return groups


def _by_name(of_query: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    kept = [name for name, _ in Counter(of_query.values()).most_common(MOST_TEXTS)]
    groups = [(name, [query for query, text in of_query.items() if text == name]) for name in kept]
    if others := [query for query, text in of_query.items() if text not in kept]:
        groups.append((OTHERS, others))
    return groups


def _slice(label: str, queries: list[str], old: Mapping[str, float], new: Mapping[str, float], alpha: float) -> Slice:
    a, b = [old[query] for query in queries], [new[query] for query in queries]
    result = paired(a, b, alpha=alpha) if len(queries) > 1 else None
    return Slice(label, len(queries), math.fsum(a) / len(a), math.fsum(b) / len(b), result)
