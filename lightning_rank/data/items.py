"""Items as a reader gives them, some at a time, and how they become a data set."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch

from lightning_rank.data.batches import RankingDataset


class Run(NamedTuple):
    """Items of one query that follow one another in the source.

    Attributes:
        query_id: as text.
        number: of its items.
        where: the place of the first, such as ``train.txt:17``.
    """

    query_id: str
    number: int
    where: str


class Items(NamedTuple):
    """Some items of a source, in its order.

    Attributes:
        features: ``[item, F]`` float32; F may grow from one to the next, and what is missing is 0.
        grades: ``[item]`` float32.
        runs: which items are whose; their counts add up to the items.
        document_ids: the text of each item's id, ``""`` for one without; None where none has one.
        starts_file: whether they are the first of a file.
        feature_names: of the columns of ``features``, where they have names.
    """

    features: np.ndarray
    grades: np.ndarray
    runs: list[Run]
    document_ids: list[str] | None = None
    starts_file: bool = False
    feature_names: list[str] | None = None


def check_width(items: Items, num_features: int | None) -> None:
    """Raise ValueError where there are more features than declared."""
    width = items.features.shape[1]
    if num_features is not None and width > num_features:
        raise ValueError(
            f"`num_features` declares {num_features} features, and there are {width} at {items.runs[0].where}."
        )


class Queries:
    """The queries of a stream of items, and in which order their items make each query whole."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._runs: list[tuple[int, int]] = []
        self._resumed: dict[str, str] = {}  # queries whose items are apart, and where each goes on

    def add(self, items: Items) -> None:
        goes_on = not items.starts_file  # a query that two files share is rather a mistake than one list
        for query_id, count, where in items.runs:
            known = len(self._numbers)
            number = self._numbers.setdefault(query_id, known)
            if goes_on and self._runs and self._runs[-1][0] == number:
                self._runs[-1] = number, self._runs[-1][1] + count
                continue
            if number < known:
                self._resumed.setdefault(query_id, where)
            self._runs.append((number, count))
            goes_on = True

    @property
    def ids(self) -> list[str]:
        return list(self._numbers)

    def offsets(self) -> np.ndarray:
        """``[query + 1]``."""
        number, count = np.array(self._runs, np.int64).reshape(-1, 2).T
        return np.concatenate([[0], np.bincount(number, count, len(self._numbers)).astype(np.int64).cumsum()])

    def warning(self) -> str | None:
        """What must be said of queries whose items are apart."""
        if not self._resumed:
            return None
        query_id, where = next(iter(self._resumed.items()))
        return (
            f"{len(self._resumed)} of {len(self._numbers)} queries have lines that are not contiguous, which were merged: "
            f"for example query {query_id!r}, which goes on at {where}."
        )

    def order(self) -> np.ndarray | None:
        """``[item]`` the place in the source of each item, query by query; None where that is the order of the source."""
        if not self._resumed:
            return None
        number, count = np.array(self._runs, np.int64).T
        return np.argsort(np.repeat(number, count), kind="stable")


def assembled(source: Iterable[Items], num_features: int | None = None, stacklevel: int = 3) -> RankingDataset:
    """A data set in memory of all items of a source; ``num_features`` is its width, by default the largest that comes."""
    features: deque[np.ndarray] = deque()
    grades: list[np.ndarray] = []
    document_ids: list[str] = []
    queries = Queries()
    for items in source:
        check_width(items, num_features)
        features.append(items.features)
        grades.append(items.grades)
        document_ids += items.document_ids or [""] * len(items.grades)
        queries.add(items)
    feature, grade = _stack(features, len(document_ids), num_features), np.concatenate(grades)
    rows = np.arange(len(grade), dtype=np.int64)
    if (order := queries.order()) is not None:
        warnings.warn(str(queries.warning()), stacklevel=stacklevel)
        rows = order
        feature, grade = feature[rows], grade[rows]
        document_ids = [document_ids[row] for row in rows]
    return RankingDataset(
        features=torch.from_numpy(feature),
        grades=torch.from_numpy(grade),
        offsets=torch.from_numpy(queries.offsets()),
        query_ids=queries.ids,
        document_ids=document_ids if any(document_ids) else None,
        rows=torch.from_numpy(rows),
    )


def _stack(blocks: deque[np.ndarray], num_items: int, num_features: int | None) -> np.ndarray:
    """The blocks as one array; each is let go once it is copied, so that the data is not in memory twice."""
    if num_features is None:
        num_features = max(block.shape[1] for block in blocks)
    features = np.zeros((num_items, num_features), np.float32)
    start = 0
    while blocks:
        block = blocks.popleft()
        features[start : start + len(block), : block.shape[1]] = block
        start += len(block)
    return features
