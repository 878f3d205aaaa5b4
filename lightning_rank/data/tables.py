"""Runs and judgements from any file: CSV, TSV, Parquet and JSON lines with named columns, TREC files, and score files of LETOR."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from lightning_rank.data.runs import DocumentLists, Judgements, Run, polars, text_column
from lightning_rank.data.trec import (
    is_number,
    looks_like,
    number_of_columns,
    opened,
    read_msmarco_run,
    read_qrels,
    read_scored_run,
    read_trec_run,
    write_trec,
    writing,
)

if TYPE_CHECKING:
    import polars as pl

    from lightning_rank.data.batches import RankingDataset

T = TypeVar("T", bound=DocumentLists)

# Names of columns, as files have them; the first one that is there is taken.
COLUMNS: dict[str, tuple[str, ...]] = {
    "query": ("query", "query_id", "query-id", "qid", "q_id", "topic", "topic_id", "user", "user_id"),
    "document": (
        "document", "document_id", "document-id", "doc", "doc_id", "doc-id", "docid", "docno", "corpus-id", "corpus_id",
        "pid", "passage_id", "item", "item_id",
    ),
    "grade": ("grade", "relevance", "rel", "label", "judgment", "judgement", "rating", "score"),
    "score": ("score", "prediction", "pred", "similarity", "sim"),
    "rank": ("rank", "position"),
}  # fmt: skip
_SUFFIXES = {".csv": "csv", ".tsv": "tsv", ".parquet": "parquet", ".pq": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl"}
FORMATS = ("trec", "msmarco", "csv", "tsv", "parquet", "jsonl")
RUN_FORMATS = (*FORMATS, "scores")
JUDGEMENT_FORMATS = (*FORMATS, "letor")


def read_run(
    path: str | Path,
    *,
    form: str | None = None,
    columns: Mapping[str, str] | None = None,
    name: str | None = None,
    strict: bool = False,
    items: RankingDataset | None = None,
) -> Run:
    """Read what a system retrieved, from a file of any of these kinds, plain or gzip.

    ===========  ===================================================================================================
    kind         what it holds
    ===========  ===================================================================================================
    ``trec``     ``query Q0 document rank score tag``
    ``msmarco``  ``query document rank``
    ``csv``      named columns, separated by commas; ``tsv``: by tabs
    ``parquet``  columns
    ``jsonl``    an object a line
    ``scores``   ``query document score``; or a score a line, for the items of a LETOR file in their order
    ===========  ===================================================================================================

    Three columns without a header are taken for those of MS MARCO: ``form="scores"`` says that they end in a score.

    Args:
        path: the file.
        form: its kind; None goes by the ending of the name, and by the columns of the first line where that says nothing.
        columns: which column is the ``query``, the ``document``, the ``score`` (or the ``rank``, where there is no score);
            what is left out is found by its usual names.
        name: of the run; None takes the file's.
        strict: refuse repeated documents instead of counting them once, at their best rank, with a warning.
        items: what a file of scores is of, as read from its LETOR file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: with the line where there is one: a column that is missing, a score that is no number, an empty file; scores
            without their items, or of another number.
        ModuleNotFoundError: polars is not installed (the extra ``files``).
    """
    kind = file_kind(path, form, named=bool(columns))
    name = Path(path).name.removesuffix(".gz") if name is None else name
    if kind == "letor":
        raise ValueError(f"{path}: a LETOR file holds grades and features, no scores: it can only be the judgements.")
    if kind == "scores":
        if number_of_columns(path) == 3:
            return read_scored_run(path, name=name, strict=strict)
        if items is None:
            raise ValueError(
                f"{path}: a file of scores, one a line, does not say of which documents: the judgements must be the LETOR file of "
                "its items, in the same order."
            )
        try:
            run = lists_of(items, read_scores(path), name=name)[1]
        except ValueError as error:
            raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
        assert run is not None
        return run
    if kind in ("trec", "qrels"):
        return read_trec_run(path, name=name, strict=strict)
    if kind == "msmarco":
        return read_msmarco_run(path, name=name, strict=strict)
    return _read_table(Run, path, kind, columns or {}, name, strict)


def read_judgements(
    path: str | Path, *, form: str | None = None, columns: Mapping[str, str] | None = None, strict: bool = False
) -> Judgements:
    """Read relevance judgements; files, arguments and errors are those of ``read_run``, with ``grade`` for the score.

    ``form="trec"`` is a qrels file, ``query iteration document grade``; ``"letor"`` is one of LETOR, of which the grades count, and
    an item without a document id is named by its place, as in the runs of ``write_run``.

    Raises:
        ValueError: also for judgements that contradict one another.
    """
    kind = file_kind(path, form, named=bool(columns))
    if kind == "scores":
        raise ValueError(f"{path}: a file of scores, one a line, holds no judgements: it can only be a run.")
    if kind == "letor":
        from lightning_rank.data.letor import read_letor

        return lists_of(read_letor(path), name=Path(path).name.removesuffix(".gz"))[0]
    if kind in ("trec", "qrels", "msmarco"):
        return read_qrels(path, strict=strict)
    return _read_table(Judgements, path, kind, columns or {}, Path(path).name.removesuffix(".gz"), strict)


def write_lists(path: str | Path, lists: Run | Judgements, *, form: str | None = None, overwrite: bool = True) -> None:
    """Write a run or judgements as a file of one of the kinds of ``read_run``; None goes by the ending, else ``trec``.

    Raises:
        FileExistsError: a file is there and ``overwrite`` is False.
    """
    kind = form or _SUFFIXES.get(Path(str(path).removesuffix(".gz")).suffix.lower(), "trec")
    if kind == "trec":
        write_trec(path, lists, overwrite=overwrite)
    else:
        write_table(path, lists.to_polars(), form=kind, overwrite=overwrite)


def write_table(path: str | Path, frame: pl.DataFrame, *, form: str | None = None, overwrite: bool = True) -> None:
    """Write a polars DataFrame as ``csv``, ``tsv``, ``parquet`` or ``jsonl``; None goes by the ending of the name.

    Raises:
        ValueError: another form or ending.
        FileExistsError: a file is there and ``overwrite`` is False.
        OSError: there is no room; what was there is untouched.
    """
    writers: dict[str, Callable[[Any], None]] = {
        "csv": lambda file: frame.write_csv(file),
        "tsv": lambda file: frame.write_csv(file, separator="\t"),
        "parquet": lambda file: frame.write_parquet(file),
        "jsonl": lambda file: frame.write_ndjson(file),
    }
    write, whole = writers[form or table_kind(path)], io.BytesIO()
    # Not into the file at once: polars does not tell what kept it from writing.
    write(whole)
    with writing(path, overwrite=overwrite) as file:
        file.write(whole.getbuffer())


def read_table(path: str | Path) -> pl.DataFrame:
    """Read a CSV, TSV, Parquet or JSON lines file, by the ending of its name; columns of text files are text.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: another ending; a file that cannot be read as what its name says, or has no row.
    """
    pl = polars()
    kind = table_kind(path)
    try:
        with opened(path) as file:
            data = io.BytesIO(file.read())
        if kind == "parquet":
            frame = pl.read_parquet(data)
        elif kind == "jsonl":
            frame = pl.read_ndjson(data, infer_schema_length=None)
        else:
            frame = pl.read_csv(data, separator="," if kind == "csv" else "\t", infer_schema=False)
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"{path}: cannot be read as {kind}: {str(error).splitlines()[0]}.") from None
    if not len(frame):
        raise ValueError(f"{path}: there is no row in it.")
    return frame


def query_column(path: str | Path, frame: pl.DataFrame, known: Sequence[str] | None = None) -> pl.Series:
    """The ids of the queries in a table, as text, found by the usual names of their column.

    Args:
        path: the file, for errors.
        frame: the table.
        known: ids that some should be among, where several columns could hold them; None: the first of these columns.

    Raises:
        ValueError: there is no such column; it lacks an id; none of its ids is known.
    """
    lower = {column.strip().lower(): column for column in reversed(frame.columns)}
    names = [lower[name] for name in COLUMNS["query"] if name in lower]
    if not names:
        raise ValueError(
            f"{path}: no column is the query by its name ({', '.join(COLUMNS['query'])}); there is {', '.join(frame.columns)}."
        )
    if known is None:
        try:
            return text_column(names[0], frame[names[0]])
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    found = []
    for name in names:
        try:
            found.append(text_column(name, frame[name]))
        except ValueError as error:
            if len(names) == 1:
                raise ValueError(f"{path}: {error}") from None
    if not found:
        raise ValueError(f"{path}: none of the columns {', '.join(names)} holds ids in every row.")
    ids = set(known)
    best = max(found, key=lambda column: len(ids.intersection(column.to_list())))
    if ids.isdisjoint(best.to_list()):
        raise ValueError(
            f"{path}: none of its queries is known: {', '.join(map(repr, best[:3].to_list()))} against "
            f"{', '.join(map(repr, known[:3]))}."
        )
    return best


def is_table(path: str | Path) -> bool:
    """Whether a file is a table by the ending of its name."""
    return Path(str(path).removesuffix(".gz")).suffix.lower() in _SUFFIXES


def table_kind(path: str | Path) -> str:
    """The kind of a table by the ending of its name.

    Raises:
        ValueError: it is none.
    """
    kind = _SUFFIXES.get(Path(str(path).removesuffix(".gz")).suffix.lower())
    if kind is None:
        raise ValueError(f"{path}: the name of a table must end in .csv, .tsv, .parquet or .jsonl.")
    return kind


def lists_of(dataset: RankingDataset, scores: Any = None, *, name: str = "") -> tuple[Judgements, Run | None]:
    """The grades of a data set, such as a LETOR file, as judgements, and scores of its items as a run.

    An item without a document id is named by its place in the source, counted from 0, as ``write_run`` has it.

    Args:
        dataset: queries and items.
        scores: ``[item]`` in the order of the source's items, such as the lines of a score file (see ``read_scores``); None:
            no run.
        name: of the run.

    Raises:
        ValueError: a number of scores other than that of items.
    """
    pl = polars()
    number = len(dataset.grades)
    rows = np.arange(number) if dataset.rows is None else dataset.rows.numpy()
    ids = dataset.document_ids or [""] * number
    documents = pl.Series([document or str(row) for document, row in zip(ids, rows.tolist(), strict=True)], dtype=pl.String)
    queries = pl.DataFrame({"len": dataset.lengths.numpy(), "value": pl.Series(list(dataset.query_ids), dtype=pl.String)})
    queries = queries.filter(pl.col("len") > 0)
    judgements = Judgements.from_pieces([(queries, documents, dataset.grades.double().numpy())], name=name)
    if scores is None:
        return judgements, None
    scores = np.asarray(scores, dtype=np.float64)
    if scores.shape != (number,):
        raise ValueError(f"There must be a score for each of the {number:,} items, got {scores.size:,}.")
    return judgements, Run.from_pieces([(queries, documents, scores[rows])], name=name)


def read_scores(path: str | Path) -> np.ndarray:
    """Read a file of scores, one a line, in the order of the items of the LETOR file beside it.

    Raises:
        ValueError: with ``path:line``, a line that is no number.
    """
    with opened(path) as file:
        lines = file.read().decode().split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    try:
        return np.array(lines, dtype=np.float64)
    except ValueError:
        number, line = next((i, line) for i, line in enumerate(lines, 1) if not is_number(line))
        raise ValueError(f"{path}:{number}: a score must be a number, got {line[:80]!r}.") from None


def file_kind(path: str | Path, form: str | None = None, *, named: bool = False) -> str:
    """The kind of a file: as given, by the ending of its name, or by its first line; ``named``: its columns were.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: no such kind; nothing in the file.
    """
    if form is not None:
        kinds = (*FORMATS, "letor", "scores")
        if form not in kinds:
            raise ValueError(f"The kind of a file must be one of {', '.join(kinds)}, got {form!r}.")
        return form
    kind = _SUFFIXES.get(Path(str(path).removesuffix(".gz")).suffix.lower())
    if kind == "tsv" and not named:
        # Judgements of TREC and MS MARCO end so too; they have no header.
        with opened(path) as file:
            cells = file.readline().decode(errors="replace").rstrip("\r\n").split("\t")
        known = {name for names in COLUMNS.values() for name in names}
        return "tsv" if known & {cell.strip().lower() for cell in cells} else looks_like(path)
    return kind or looks_like(path)


def _read_table(cls: type[T], path: str | Path, kind: str, columns: Mapping[str, str], name: str, strict: bool) -> T:
    pl = polars()
    value = cls._value
    if strange := columns.keys() - {"query", "document", value, *(["rank"] if cls is Run else [])}:
        raise ValueError(f"`columns` names the query, the document and the {value}, got {', '.join(sorted(strange))}.")
    frame, found = _frame(path, kind, columns, value)
    if not len(frame):
        raise ValueError(f"{path}: there is no row in it, so there is nothing to evaluate.")
    try:
        ids = [text_column(found[part], frame[found[part]]) for part in ("query", "document")]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    by = value if value in found else "rank"
    numbers = frame[found[by]]
    if numbers.dtype == pl.String:
        numbers = numbers.str.strip_chars().cast(pl.Float64, strict=False)
    if not (numbers.dtype.is_numeric() or numbers.dtype in (pl.Boolean, pl.Null)):
        raise ValueError(f"{path}: the column {found[by]} must hold numbers, got {numbers.dtype}.")
    numbers = numbers.cast(pl.Float64)
    bad = numbers.is_null() | numbers.is_nan()
    if bad.any():
        row = int(bad.arg_max())
        where = f"{path}:{row + (1 if kind == 'jsonl' else 2)}" if kind != "parquet" else f"{path}, row {row + 1}"
        raise ValueError(f"{where}: the column {found[by]} must be a number, got {frame[found[by]][row]!r}.")
    pieces = [(ids[0].rle().struct.unnest(), ids[1], numbers.to_numpy() * (1 if by == value else -1))]
    return cls.from_pieces(pieces, name=name, strict=strict)


def _frame(path: str | Path, kind: str, columns: Mapping[str, str], value: str) -> tuple[pl.DataFrame, dict[str, str]]:
    """The columns that matter, ids and numbers of text files as text, and which one is what."""
    pl = polars()
    try:
        with opened(path) as file:
            if kind == "parquet":
                data = file.read()
                found = _found(path, list(pl.read_parquet_schema(io.BytesIO(data))), columns, value)
                return pl.read_parquet(io.BytesIO(data), columns=list(found.values())), found
            if kind == "jsonl":
                data = file.read()
                first = pl.read_ndjson(io.BytesIO(data.lstrip().partition(b"\n")[0]))
                found = _found(path, first.columns, columns, value)
                schema = {found["query"]: pl.String, found["document"]: pl.String}
                schema[found.get(value) or found["rank"]] = pl.Float64
                return pl.read_ndjson(io.BytesIO(data), schema=schema), found
            data = file.read()
        separator = "," if kind == "csv" else "\t"
        header = pl.read_csv(io.BytesIO(data), separator=separator, n_rows=0).columns
        if len(header) == 1:
            for other, told in (("\t", "tabs"), (";", "semicolons"), (",", "commas"), (" ", "blanks")):
                if other != separator and other in header[0]:
                    raise ValueError(
                        f"{path}:1: the columns of a {kind} file are separated by {'commas' if kind == 'csv' else 'tabs'}, "
                        f"but the header has {told}: {header[0][:80]!r}."
                    )
        found = _found(path, header, columns, value)
        frame = pl.read_csv(io.BytesIO(data), separator=separator, columns=list(found.values()), infer_schema=False)
        return frame, found
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"{path}: cannot be read as {kind}: {str(error).splitlines()[0]}.") from None


def _found(path: str | Path, header: Sequence[str], columns: Mapping[str, str], value: str) -> dict[str, str]:
    """The column of each part: as named, or by its usual names."""
    if missing := [column for column in columns.values() if column not in header]:
        raise ValueError(f"{path}: there is no column {', '.join(map(repr, missing))}; there is {', '.join(header)}.")
    found = dict(columns)
    lower = {column.strip().lower(): column for column in reversed(header)}
    for part in ("query", "document", value):
        if part not in found and not (part == "score" and "rank" in found):
            names = [lower[name] for name in COLUMNS[part] if name in lower and lower[name] not in found.values()]
            if names:
                found[part] = names[0]
    rank = next((lower[name] for name in COLUMNS["rank"] if name in lower), None)
    if rank and value == "score" and "score" not in found and "rank" not in found:
        found["rank"] = rank
    for part in ("query", "document", value):
        if part not in found and not (part == "score" and "rank" in found):
            raise ValueError(
                f"{path}: no column is the {part} by its name; there is {', '.join(map(repr, header))}. Name it: "
                f"columns={{{part!r}: ...}}, or --{'qrels' if value == 'grade' else 'run'}-columns {part}=... on the command line."
            )
    return found
