"""Values of each query in a file: those of a baseline, against which others are compared."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_rank.data.runs import polars
from lightning_rank.data.tables import query_column, read_table, write_table
from lightning_rank.stats import PairedComparison, paired
from lightning_rank.stats.distributions import special


def write_per_query(
    path: str | Path, values: Mapping[str, Mapping[str, float]], *, run: str, overwrite: bool = True
) -> None:
    """Write a row per query, as ``lightning-rank evaluate --per-query`` does: run, query, and a column per measure.

    Args:
        path: the file, by its ending ``.csv``, ``.tsv``, ``.parquet`` or ``.jsonl``, and ``.gz`` after it.
        values: ``{measure: {query: value}}``; a query that a measure lacks has no value in its column.
        run: what the values are of.
        overwrite: whether a file may be there already.

    Raises:
        ValueError: another ending.
        FileExistsError: a file is there and ``overwrite`` is False.
        ModuleNotFoundError: polars is not installed (the extra ``files``).
    """
    queries = list(dict.fromkeys(query for of in values.values() for query in of))
    columns = {name: [of.get(query) for query in queries] for name, of in values.items()}
    pl = polars()
    schema = {"run": pl.String, "query": pl.String} | dict.fromkeys(columns, pl.Float64)
    frame = pl.DataFrame({"run": [run] * len(queries), "query": queries, **columns}, schema=schema)
    write_table(path, frame, overwrite=overwrite)


def read_per_query(path: str | Path, measures: Sequence[str]) -> dict[str, dict[str, float]]:
    """Read what ``write_per_query`` and ``lightning-rank evaluate --per-query`` wrote.

    Args:
        path: the file.
        measures: names of the columns.

    Returns:
        ``{measure: {query: value}}``, without queries that have no value.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: no column of query ids, a measure that is missing, several runs, a repeated query, a value that is no
            number.
        ModuleNotFoundError: polars is not installed (the extra ``files``).
    """
    pl = polars()
    frame = read_table(path)
    queries = query_column(path, frame)
    if missing := [name for name in measures if name not in frame.columns]:
        there = [name for name in frame.columns if name not in ("run", queries.name)]
        raise ValueError(
            f"{path}: there are no values of {', '.join(missing)}; there are those of {', '.join(there) or 'nothing'}. Make the "
            "file with the same names of metrics."
        )
    if "run" in frame.columns and (runs := frame["run"].unique(maintain_order=True).to_list())[1:]:
        raise ValueError(f"{path}: the values must be those of one run, got {', '.join(map(str, runs))}: keep one.")
    if queries.is_duplicated().any():
        raise ValueError(
            f"{path}: each query must come once, {queries.filter(queries.is_duplicated())[0]!r} comes several times."
        )
    found = {}
    for name in measures:
        column = frame[name].cast(pl.Float64, strict=False)
        # What had a value that is no number.
        bad = column.is_null() & frame[name].is_not_null()
        if bad.any():
            row = int(bad.arg_max())
            raise ValueError(f"{path}: {name} of the query {queries[row]!r} must be a number, got {frame[name][row]!r}.")
        pairs = zip(queries.to_list(), column.to_list(), strict=True)
        found[name] = {query: value for query, value in pairs if value is not None and value == value}
    return found


def read_attributes(path: str | Path, queries: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read what is known of queries: a table with a column of their ids and any others.

    Args:
        path: a CSV, TSV, Parquet or JSON lines file.
        queries: ids, some of which must be in it.

    Returns:
        ``{column: {query: value}}``; text that is a number throughout is one.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: no column of ids, none of which is known, a query that comes twice, no other column.
        ModuleNotFoundError: polars is not installed (the extra ``files``).
    """
    pl = polars()
    frame = read_table(path)
    ids = query_column(path, frame, queries)
    if ids.is_duplicated().any():
        raise ValueError(f"{path}: each query must come once, {ids.filter(ids.is_duplicated())[0]!r} comes several times.")
    found = {}
    for column in frame.drop(ids.name):
        if column.dtype == pl.String:
            numbers = column.cast(pl.Float64, strict=False)
            column = numbers if numbers.null_count() == column.null_count() < len(column) else column
        found[column.name] = dict(zip(ids.to_list(), column.to_list(), strict=True))
    if not found:
        raise ValueError(f"{path}: there is no column beside {ids.name!r}, so nothing is known of the queries.")
    return found


@dataclass
class Baseline:
    """The values of a ranker for each query, against which others are compared, on the queries of both.

    Attributes:
        path: where they are from.
        values: ``{measure: {query: value}}``.
        alpha: 1 - the level of the intervals.

    Example:
        >>> old = Baseline("old.csv", {"mrr": {"q1": 0.5, "q2": 1.0, "q3": 0.25}})
        >>> old.against({"mrr": {"q1": 1.0, "q2": 1.0, "q3": 0.5}})["mrr"].difference
        0.25
    """

    path: str
    values: Mapping[str, Mapping[str, float]]
    alpha: float = 0.05
    _said: bool = field(default=False, repr=False)

    @classmethod
    def read(cls, path: str | Path, measures: Sequence[str], *, alpha: float = 0.05) -> Baseline:
        """From a file, see ``read_per_query``.

        Raises:
            ModuleNotFoundError: scipy, which ``against`` needs, is not installed (the extra ``stats``).
        """
        special()
        return cls(str(path), read_per_query(path, measures), alpha)

    def against(self, values: Mapping[str, Mapping[str, float]], *, says: bool = True) -> dict[str, PairedComparison]:
        """``values`` - the baseline, by the paired t test.

        Args:
            values: ``{measure: {query: value}}``, of measures that the baseline has.
            says: warn, the first time, of queries that only one of the two has.

        Raises:
            ValueError: fewer than two queries in common.
        """
        found = {}
        for name, new in values.items():
            old = self.values[name]
            common = old.keys() & new.keys()
            if len(common) < 2:
                raise ValueError(
                    f"The baseline {self.path} must have two queries or more with a value of {name} in common with the validation, "
                    f"got {len(common)}: {_some(old)} against {_some(new)}."
                )
            if says and not self._said and len(common) < max(len(old), len(new)):
                self._said = True
                warnings.warn(
                    f"{len(common):,} queries have a value of {name} here and in the baseline {self.path}, and are compared; "
                    f"{len(old) - len(common):,} only there and {len(new) - len(common):,} only here are left out.",
                    stacklevel=2,
                )
            found[name] = paired(old, new, alpha=self.alpha, missing="drop")
        return found


def _some(queries: Mapping[str, float]) -> str:
    return (", ".join(map(repr, list(queries)[:3])) or "none") + (", …" if len(queries) > 3 else "")
