"""Features in files: tables (Parquet, CSV, TSV) with a row per item, or LETOR text, read some items at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_rank.data.items import Items, Run
from lightning_rank.data.letor import letor_items
from lightning_rank.data.runs import polars, text_column
from lightning_rank.data.tables import COLUMNS

if TYPE_CHECKING:
    import polars as pl

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_PARQUET = (".parquet", ".pq")
_ROWS = 1 << 14  # at a time
_INFERRED = 1000  # rows of a text file that tell which columns are numbers
_MISSING = ("nan", "na")  # in text, beside an empty cell, in any case


def is_table(path: str | Path) -> bool:
    """Whether a file is a table by its name; other files are LETOR text."""
    return Path(path).suffix.lower() in (*_SEPARATORS, *_PARQUET)


def source_items(
    paths: Sequence[str | Path],
    num_features: int | None = None,
    columns: Mapping[str, Any] | None = None,
    seen: Callable[[int], object] | None = None,
) -> Iterator[Items]:
    """The items of LETOR files or of tables, which are told by their names; see ``letor_items`` and ``table_items``."""
    tables = [is_table(path) for path in paths]
    if any(tables) and not all(tables):
        raise ValueError(f"A data set is of LETOR files or of tables, got both: {', '.join(map(str, paths))}.")
    return table_items(paths, columns, seen) if any(tables) else letor_items(paths, num_features, seen)


def table_items(
    paths: Sequence[str | Path],
    columns: Mapping[str, Any] | None = None,
    seen: Callable[[int], object] | None = None,
) -> Iterator[Items]:
    """The items of Parquet, CSV or TSV files (with a header), some at a time.

    Args:
        paths: files with the same features.
        columns: which column is the ``query``, the ``grade``, the ``document`` (need not be there), and which are the
            ``features``, a list. What is left out is found by its usual names; the features are all other columns of numbers,
            and a warning names those of text. An empty cell, ``nan`` and ``NA`` are NaN in a feature.
        seen: called with the size of each file, once it is read.

    Raises:
        ValueError: a column is missing or holds what is no number, with the row; other features than in the first file.
        ModuleNotFoundError: polars is not installed (the extra ``files``).
    """
    pl = polars()
    features: list[str] | None = None
    for path in map(Path, paths):
        try:
            parts, own, texts, rows = _scan(path, columns or {})
            if features is not None and own != features:
                raise ValueError(f"{path}: its features are {_few(own)}, those of the files before {_few(features)}.")
            if features is None and texts:
                warnings.warn(
                    f"{path}: columns that hold no numbers are no features, and were left out: {_few(texts)}.", stacklevel=2
                )
            features, place = own, 0
            for batch in rows.collect_batches(chunk_size=_ROWS, maintain_order=True):
                yield _items_of(path, batch, parts, own, place)
                place += len(batch)
        except pl.exceptions.PolarsError as error:
            raise ValueError(f"{path}: cannot be read: {str(error).splitlines()[0]}.") from None
        if seen is not None:
            seen(path.stat().st_size)


def _scan(path: Path, columns: Mapping[str, Any]) -> tuple[dict[str, str], list[str], list[str], pl.LazyFrame]:
    """The column of each part, the features, columns that are neither, and the rows, of which only the first two are read."""
    pl = polars()
    if strange := columns.keys() - {"query", "grade", "document", "features"}:
        raise ValueError(f"`columns` names the query, grade, document and features, got {', '.join(sorted(strange))}.")
    separator = _SEPARATORS.get(path.suffix.lower())
    # Text is read as text: a column whose first rows are numbers, or missing, need not go on so.
    rows = pl.scan_parquet(path) if separator is None else pl.scan_csv(path, separator=separator, infer_schema=False)
    schema = rows.collect_schema()
    listed = list(columns.get("features") or [])
    named = {part: name for part, name in columns.items() if part != "features" and name is not None}
    if missing := [name for name in (*named.values(), *listed) if name not in schema]:
        raise ValueError(f"{path}: there is no column {', '.join(map(repr, missing))}; there is {_few(schema.names())}.")
    lower = {name.strip().lower(): name for name in reversed(schema.names())}
    for part in ("query", "grade", "document"):
        usual = (lower[name] for name in COLUMNS[part] if name in lower and name != "score")
        found = next((name for name in usual if name not in (*named.values(), *listed)), None)
        if part not in named and found is not None:
            named[part] = found
        elif part not in named and part != "document":
            raise ValueError(
                f"{path}: no column is the {part} by its name; there is {_few(schema.names())}. Name it: "
                f"columns={{{part!r}: ...}}, or --{part} COLUMN on the command line."
            )
    if separator is None:
        numbers = [name for name, kind in schema.items() if kind.is_numeric() or kind in (pl.Boolean, pl.Null)]
    else:
        numbers = [column.name for column in rows.head(_INFERRED).collect() if _may_be_numbers(column)]
    rest = [name for name in schema if name not in named.values()]
    features = listed or [name for name in rest if name in numbers]
    if not features:
        raise ValueError(f"{path}: no column but the {', '.join(named)} holds numbers, so there are no features.")
    if separator is None and (texts := [name for name in (*features, named["grade"]) if name not in numbers]):
        raise ValueError(f"{path}: the column {texts[0]} must hold numbers, got {schema[texts[0]]}.")
    left_out = [] if listed else [name for name in rest if name not in numbers]
    return named, features, left_out, rows.select(list(dict.fromkeys((*named.values(), *features))))


def _may_be_numbers(column: pl.Series) -> bool:
    """Whether a column of text holds a number, or nothing that is none: a single odd cell is an error, not a column of text."""
    given = column.drop_nulls().str.strip_chars()
    given = given.filter(~given.str.to_lowercase().is_in(_MISSING))
    numbers = given.cast(polars().Float64, strict=False)
    return numbers.null_count() < len(numbers) or not len(numbers)


def _numbers(path: Path, batch: pl.DataFrame, names: list[str], place: int) -> pl.DataFrame:
    """Columns as float64, null where a cell is empty; ValueError for the first one with text that is no number."""
    pl = polars()
    found = batch.select(pl.col(names).cast(pl.Float64, strict=False))
    for name in names:
        given = batch[name]
        if given.dtype != pl.String or found[name].null_count() == given.null_count():
            continue
        text = given.str.strip_chars()
        is_missing = text.str.to_lowercase().is_in(_MISSING).fill_null(False)
        column = pl.select(pl.when(is_missing).then(float("nan")).otherwise(text.cast(pl.Float64, strict=False)))
        numbers = column.to_series().alias(name)
        bad = numbers.is_null() & (text.str.len_bytes() > 0).fill_null(False)
        if bad.any():
            message = f"the column {name} must hold numbers"
            raise ValueError(
                f"{_where(path, place, bad, message, given)} Correct it, or name the features that are meant: "
                "columns={'features': [...]}, or --features COLUMN,... on the command line."
            )
        found = found.with_columns(numbers)
    return found


def _items_of(path: Path, batch: pl.DataFrame, parts: dict[str, str], features: list[str], place: int) -> Items:
    pl = polars()
    numbers = _numbers(path, batch, list(dict.fromkeys((parts["grade"], *features))), place)
    grade = numbers[parts["grade"]].cast(pl.Float32)
    bad = grade.is_null() | ~grade.is_finite().fill_null(False)
    if bad.any():
        raise ValueError(_where(path, place, bad, f"the {parts['grade']} must be a finite number", numbers[parts["grade"]]))
    if batch[parts["query"]].null_count():
        none = batch[parts["query"]].is_null()
        raise ValueError(_where(path, place, none, f"the {parts['query']} must not be empty", batch[parts["query"]]))
    try:
        query = text_column(parts["query"], batch[parts["query"]])
        document = text_column(parts["document"], batch[parts["document"]].fill_null("")) if "document" in parts else None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    runs, start = [], place
    for query_id, count in query.rle().struct.unnest().select("value", "len").iter_rows():
        runs.append(Run(query_id, count, f"{path}, row {start + 1}"))
        start += count
    # Through float64, as numbers in LETOR text; what is missing is NaN, which `inspect` counts.
    values = numbers.select(pl.col(features).cast(pl.Float32).fill_null(np.nan)).to_numpy(order="c")
    documents = None if document is None else document.to_list()
    return Items(values, grade.to_numpy(), runs, documents, starts_file=place == 0, feature_names=features)


def _where(path: Path, place: int, bad: pl.Series, message: str, column: pl.Series) -> str:
    row = int(bad.arg_max() or 0)
    return f"{path}, row {place + row + 1}: {message}, got {column[row]!r}."


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
