"""Read LETOR and SVMlight files: ``grade qid:ID index:value ... # comment``, an item a line."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from lightning_rank.data.batches import RankingDataset
from lightning_rank.data.items import Items, Run, assembled

_T = TypeVar("_T", int, float)

# A query id is any token, so a "#" inside it is part of it; everywhere else "#" starts the comment, as in SVMlight.
_ITEM = re.compile(rb"\s*(?P<grade>[^\s#]+)\s+qid:(?P<query>\S+)(?P<features>[^#]*)(?P<comment>#.*)?", re.DOTALL)
_DOCUMENT = re.compile(rb"\bdocid\s*=\s*(\S*)")
# Text of these characters alone is read by scikit-learn as we would; it also takes "nan", "1_0" and a second "qid:".
_PLAIN = b"0123456789.:+-eE \t\r\n"
# What stands between the numbers of a line, and everything else.
_BLANK_OR_COLON = bytes.maketrans(b":\t", b"  ")
_NOT_BETWEEN = bytes(set(range(256)) - set(b" \t:\n\v\f\r"))
_CHUNK_BYTES = 1 << 23  # of text at a time, so that what is only needed while reading stays small
_LARGEST_INDEX = 1_000_000  # where no number is declared: features are dense in memory, and a stray index must not fill it
_LARGEST_VALUE = float(np.finfo(np.float32).max)
_CUT_SHORT = "the file seems cut short: its last line has no newline"


class _Numbers(NamedTuple):
    """The numbers of some items; item i lists ``columns[starts[i]:starts[i + 1]]``, in the order of its line."""

    grades: np.ndarray
    starts: np.ndarray
    columns: np.ndarray
    values: np.ndarray

    def first_lists(self) -> np.ndarray:
        return self.columns[: self.starts[1]].copy()

    def all_list(self, columns: np.ndarray) -> bool:
        # An item lists no feature twice, so equal lists laid end to end mean that each item has that list.
        return np.array_equal(self.columns, np.tile(columns, len(self.grades)))

    def dense(self) -> np.ndarray:
        """``[item, feature]``, as wide as these items need."""
        features = np.zeros((len(self.grades), int(self.columns.max(initial=-1)) + 1), np.float32)
        items = np.repeat(np.arange(len(features)), np.diff(self.starts))
        features[items, self.columns] = self.values
        return features


class _AlikeNumbers(NamedTuple):
    """The numbers of some items that all list the same columns."""

    grades: np.ndarray
    columns: np.ndarray
    values: np.ndarray

    def first_lists(self) -> np.ndarray:
        return self.columns

    def all_list(self, columns: np.ndarray) -> bool:
        return np.array_equal(self.columns, columns)

    def dense(self) -> np.ndarray:
        width = int(self.columns.max()) + 1
        if np.array_equal(self.columns, np.arange(width)):
            return self.values
        features = np.zeros((len(self.grades), width), np.float32)
        features[:, self.columns] = self.values
        return features


class _Block(NamedTuple):
    """The items of some lines of a file that follow one another."""

    numbers: _Numbers | _AlikeNumbers
    runs: list[Run]
    document_ids: list[str] | None
    all_commented: bool


def read_letor(*paths: str | Path, num_features: int | None = None) -> RankingDataset:
    """Read one or more LETOR (SVMlight with query ids) files, plain or gzip, into one dataset.

    Queries keep the order in which they first appear, and items their order within a query. A query id is text: ``007`` is
    not ``7``. The document id is what follows ``docid =`` in the comment, or else the comment's first word. A query whose
    lines are apart, or which goes on in another file, is merged, with one warning that counts these queries.

    Args:
        paths: files, read in this order as if they were one.
        num_features: F, the number of features; those that the files lack are 0. None: the largest index in the files, at most
            1,000,000.

    Returns:
        ``features`` ``[item, F]`` (index 1 is column 0, a missing feature is 0), ``grades`` ``[item]``, ``offsets``
        ``[query + 1]``, ``query_ids``, ``document_ids`` (None where no line has one, ``""`` for an item without) and
        ``rows`` ``[item]``, the number of the item, from 0, in the order of the files.

    Raises:
        FileNotFoundError: a path that does not exist or is a directory.
        ValueError: with ``path:line``, for a line that is no item: no query id; a feature index that is no whole number,
            below 1, repeated or above ``num_features``; a grade or value that is no finite float32 number. Also for a file
            that seems cut short or holds no item.

    Source: the format of Joachims' SVMlight, as in Qin and Liu, "Introducing LETOR 4.0 Datasets", 2013.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "train.txt"
        ...     _ = path.write_text("2 qid:q-17 1:0.5 3:1 #docid = GX008\\n0 qid:q-17 2:0.25 #docid = GX037\\n")
        ...     dataset = read_letor(path)
        >>> dataset.features
        tensor([[0.5000, 0.0000, 1.0000],
                [0.0000, 0.2500, 0.0000]])
        >>> dataset.grades, dataset.query_ids, dataset.document_ids
        (tensor([2., 0.]), ['q-17'], ['GX008', 'GX037'])
    """
    if not paths:
        raise ValueError("`read_letor` needs at least one path, got none.")
    if num_features is not None and not (isinstance(num_features, (int, np.integer)) and num_features >= 1):
        raise ValueError(f"`num_features` must be None or a whole number of at least 1, got {num_features!r}.")
    return assembled(letor_items(paths, num_features), num_features)


def letor_items(
    paths: Sequence[str | Path], num_features: int | None = None, seen: Callable[[int], object] | None = None
) -> Iterator[Items]:
    """The items of LETOR files, some at a time; see ``read_letor``.

    Args:
        paths: files, read in this order as if they were one.
        num_features: the largest feature index that may come.
        seen: called with the number of bytes of each piece of the files, as they are read.
    """
    for path in [existing_file(Path(path)) for path in paths]:
        for i, block in enumerate(_read_blocks(path, num_features, seen)):
            runs = [run._replace(where=f"{path}:{run.where}") for run in block.runs]
            yield Items(block.numbers.dense(), block.numbers.grades, runs, block.document_ids, starts_file=i == 0)


def existing_file(path: Path) -> Path:
    if path.is_dir():
        held = _converted(path)
        if held:
            raise FileNotFoundError(
                f"Expected a file or a converted data set, got the directory '{path.absolute()}', into which data sets were "
                f"converted. Give the one that is meant: {'; '.join(held[:5])}{'; …' if len(held) > 5 else ''}."
            )
        raise FileNotFoundError(f"Expected a LETOR file, got the directory '{path.absolute()}'; it holds {_names(path)}.")
    if not path.exists():
        folder = path.absolute().parent
        hint = f"the directory holds {_names(folder, path.name)}" if folder.is_dir() else f"no directory '{folder}' either"
        raise FileNotFoundError(f"No LETOR file '{path.absolute()}'; {hint}.")
    return path


def _converted(folder: Path) -> list[str]:
    """The data sets that ``convert`` made in a folder, the newest first, each with the files that it was made of."""
    held = []
    for manifest in sorted(folder.glob("[!.]*/manifest.json"), key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            sources = ", ".join(source["name"] for source in json.loads(manifest.read_bytes())["sources"])
        except (ValueError, KeyError, TypeError, OSError):
            continue  # not ours, or damaged
        held.append(f"'{manifest.parent}' (of {sources})")
    return held


def _names(folder: Path, wanted: str = "") -> str:
    """Some names in a folder: those that look like the wanted one, else the first."""
    names = sorted(entry.name for entry in folder.iterdir())
    shown = get_close_matches(wanted, names, n=5) or names[:5]
    return ", ".join([*map(repr, shown), *(["…"] if len(shown) < len(names) else [])]) or "nothing"


def _read_blocks(path: Path, num_features: int | None, seen: Callable[[int], object] | None) -> Iterator[_Block]:
    """The items of a file, some lines at a time; a last line without newline is compared with the lines before it."""
    usual: np.ndarray | None = None  # what the first item lists
    alike = commented = True  # all items so far list the same; have a comment
    for first_line, lines in _read_lines(path, seen):
        block = _parse(path, first_line, lines, num_features)
        if not block.runs:
            continue
        listed = block.numbers.first_lists()
        if usual is None:
            usual = listed
        elif not lines[-1].endswith(b"\n") and not block.all_commented:
            # A cut takes away the end of a line; one that lacks a feature in the middle is sparse, not cut.
            lacks_features = alike and len(listed) < len(usual) and np.array_equal(listed, usual[: len(listed)])
            if lacks_features or commented:
                wanted, came = (f"{len(usual)} features", len(listed)) if lacks_features else ("a comment", "none")
                raise ValueError(
                    f"{path}:{first_line}: expected {wanted}, as on every line before, got {came}; {_CUT_SHORT}. "
                    "If the line is whole, end it with a newline."
                )
        alike = alike and block.numbers.all_list(usual)
        commented = commented and block.all_commented
        yield block
    if usual is None:
        raise ValueError(f"{path}: expected at least one item, got an empty file (or only blank lines and comments).")


def _read_lines(path: Path, seen: Callable[[int], object] | None) -> Iterator[tuple[int, list[bytes]]]:
    """Some lines at a time and the number of the first; a last line without newline comes alone."""
    with path.open("rb") as raw:
        is_gzip = raw.peek(2)[:2] == b"\x1f\x8b"  # whatever the suffix says
        file = gzip.GzipFile(fileobj=raw) if is_gzip else raw
        number, place = 1, 0
        while True:
            try:
                lines = file.readlines(_CHUNK_BYTES)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise ValueError(f"{path}: expected a whole gzip file, got one cut short or damaged ({error}).") from error
            if not lines:
                return
            if seen is not None:
                seen(raw.tell() - place)
                place = raw.tell()
            if number == 1:
                lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
            unfinished = [] if lines[-1].endswith(b"\n") else [lines.pop()]
            for some in filter(None, (lines, unfinished)):
                yield number, some
                number += len(some)


def _parse(path: Path, first_line: int, lines: list[bytes], num_features: int | None) -> _Block:
    """Items from lines: by polars where all are alike, else ids by a regular expression and numbers by scikit-learn or by us."""
    block = _parse_alike(first_line, lines, num_features)
    if block is not None:
        return block
    line_numbers: list[int] = []
    number_texts: list[bytes] = []
    query_ids: list[bytes] = []
    document_ids: list[str] = []
    all_commented = True
    for line_number, line in enumerate(lines, first_line):
        item = _ITEM.match(line)
        if item:
            query, numbers, comment = item["query"], item["grade"] + item["features"], item["comment"]
        elif line.lstrip()[:1] in (b"", b"#"):
            continue
        else:  # the strict reader says what is wrong here, or earlier
            query, numbers, comment = b"", b"no item", None
        line_numbers.append(line_number)
        number_texts.append(numbers)
        query_ids.append(query)
        document_ids.append(_document_id(comment))
        all_commented = all_commented and comment is not None
    numbers_read = _read_fast(number_texts, num_features)
    if numbers_read is None:
        numbers_read = _read_strictly(path, [(n, lines[n - first_line]) for n in line_numbers], num_features)
    runs, start = [], 0
    for query, items in groupby(query_ids):
        count = len(list(items))
        runs.append(Run(_decode(query), count, str(line_numbers[start])))
        start += count
    return _Block(numbers_read, runs, document_ids if any(document_ids) else None, all_commented)


def _parse_alike(first_line: int, lines: list[bytes], num_features: int | None) -> _Block | None:
    """The items of lines that all list the same features, as a table; None where they do not, or anything else is unusual.

    A table has one kind of separator, so it is made sure beforehand that each line has its blanks and colons where they belong.
    """
    try:
        import polars as pl
    except ModuleNotFoundError:
        return None
    document_ids = None
    all_commented = False
    if any(b"#" in line for line in lines):
        parts = [line.partition(b"#") for line in lines]
        lines = [head for head, _, _ in parts]
        document_ids = [_document_id(mark + comment) for _, mark, comment in parts]
        all_commented = all(mark for _, mark, _ in parts)
    lines = [line.rstrip() for line in lines]
    item = _ITEM.fullmatch(lines[0])
    listed = [token.partition(b":")[0] for token in item["features"].split()] if item else []
    if not listed or not all(index.isdigit() and 1 <= int(index) <= (num_features or _LARGEST_INDEX) for index in listed):
        return None
    columns = np.array(listed, np.int64) - 1
    text = b"\n".join(lines)
    between = b" :" * (len(columns) + 1) + b"\n"
    if len(np.unique(columns)) < len(columns) or text.translate(None, _NOT_BETWEEN) + b"\n" != between * len(lines):
        return None
    names = [f"{kind}{i}" for i in range(len(columns)) for kind in "iv"]
    schema = {"grade": pl.Float64, "qid": pl.String, "query": pl.String}
    schema |= {name: pl.Int64 if name[0] == "i" else pl.Float64 for name in names}
    try:
        table = pl.read_csv(
            text.translate(_BLANK_OR_COLON), separator=" ", has_header=False, schema=schema, quote_char=None
        )
    except pl.exceptions.PolarsError:
        return None
    as_listed = pl.all_horizontal(
        pl.col("qid").eq("qid").all(), *(pl.col(f"i{i}").eq_missing(int(c) + 1).all() for i, c in enumerate(columns))
    )
    if len(table) != len(lines) or not table.select(as_listed).item() or table["query"].null_count():
        return None
    # Through float64, as every other way here, so that a number is the same whichever way it came.
    numbers = table.select(pl.col("grade", *names[1::2]).cast(pl.Float32))
    values = numbers.select(names[1::2]).to_numpy(order="c")
    grades = numbers["grade"].to_numpy()
    if not (np.isfinite(values).all() and np.isfinite(grades).all()):
        return None
    runs, start = [], 0
    for query, count in table["query"].rle().struct.unnest().select("value", "len").iter_rows():
        runs.append(Run(query, count, str(first_line + start)))
        start += count
    if document_ids is not None and not any(document_ids):
        document_ids = None
    return _Block(_AlikeNumbers(grades, columns, values), runs, document_ids, all_commented)


def _decode(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text.decode("latin-1")  # any bytes are Latin-1, and different bytes stay different ids


def _document_id(comment: bytes | None) -> str:
    if comment is None:
        return ""
    named = _DOCUMENT.search(comment)
    words = [named[1]] if named else comment.lstrip(b"#").split(None, 1)
    return _decode(words[0]) if words else ""


def _read_fast(texts: list[bytes], num_features: int | None) -> _Numbers | None:
    """The numbers of items without their query ids, by scikit-learn; None where they need the strict reader."""
    from sklearn.datasets import load_svmlight_file

    text = b"\n".join(texts)
    if text.translate(None, _PLAIN):
        return None
    try:
        features, labels = load_svmlight_file(io.BytesIO(text), dtype=np.float32, zero_based=False)
    except (ValueError, OverflowError):  # malformed, unsorted or repeated; an index beyond a C int
        return None
    with np.errstate(over="ignore"):
        grades = labels.astype(np.float32)
    finite = np.isfinite(features.data).all() and np.isfinite(grades).all()
    within = features.indices.max(initial=-1) < (num_features or _LARGEST_INDEX)
    return _Numbers(grades, features.indptr, features.indices, features.data) if finite and within else None


def _read_strictly(path: Path, lines: list[tuple[int, bytes]], num_features: int | None) -> _Numbers:
    """The numbers of items, token by token: features in any order, and an error that says what is wrong where."""
    grades: list[float] = []
    starts = [0]
    columns: list[int] = []
    values: list[float] = []
    for line_number, line in lines:
        grade, features = _read_line(f"{path}:{line_number}", line, num_features)
        grades.append(grade)
        columns += (index - 1 for index in features)
        values += features.values()
        starts.append(len(columns))
    return _Numbers(
        np.array(grades, np.float32), np.array(starts), np.array(columns, np.int64), np.array(values, np.float32)
    )


def _read_line(where: str, line: bytes, num_features: int | None) -> tuple[float, dict[int, float]]:
    """The grade and ``{index: value}`` of an item."""
    item = _ITEM.match(line)
    words = line.partition(b"#")[0].split()
    grade = _number(words[0], "a number as grade", words[0], where, line)
    if item is None:
        raise _malformed("qid:ID after the grade", words[1] if len(words) > 1 else b"", where, line)
    features: dict[int, float] = {}
    for token in item["features"].split():
        index_text, colon, value_text = token.partition(b":")
        index = _convert(int, index_text)
        if not colon or index is None:
            raise _malformed("index:value, the index a whole number", token, where, line)
        if not 1 <= index <= (num_features or _LARGEST_INDEX):
            limit = (
                f"to {num_features} (`num_features`)"
                if num_features
                else f"to {_LARGEST_INDEX} (declare more as `num_features`)"
            )
            raise ValueError(f"{where}: expected a feature index from 1 {limit}, got {_shown(token)}.")
        if index in features:
            raise ValueError(f"{where}: expected each feature index once, got {index} again in {_shown(token)}.")
        features[index] = _number(value_text, f"a number as feature {index}", token, where, line)
    return grade, features


def _number(text: bytes, expected: str, token: bytes, where: str, line: bytes) -> float:
    value = _convert(float, text)
    if value is None:
        raise _malformed(expected, token, where, line)
    if not abs(value) <= _LARGEST_VALUE:
        raise ValueError(f"{where}: expected {expected} that is finite in float32, got {_shown(token)}.")
    return value


def _convert(kind: Callable[[bytes], _T], text: bytes) -> _T | None:
    """The number, None where the text is none; "1_000" is one only to Python."""
    try:
        return None if b"_" in text else kind(text)
    except ValueError:
        return None


def _malformed(expected: str, token: bytes, where: str, line: bytes) -> ValueError:
    """The error for a token that is wrong in form: at the end of a last line without newline it looks like a cut."""
    words = line.split()
    cut = f"; {_CUT_SHORT}" if not line.endswith(b"\n") and (words[-1] == token or len(words) == 1) else ""
    return ValueError(f"{where}: expected {expected}, got {_shown(token) if token else 'nothing'}{cut}.")


def _shown(token: bytes) -> str:
    return repr(_decode(token[:80]))
