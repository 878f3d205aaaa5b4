"""Read LETOR and SVMlight files: ``grade qid:ID index:value ... # comment``, an item a line."""

from __future__ import annotations

import codecs
import gzip
import io
import re
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from lightning_rank.data.batches import RankingDataset

_T = TypeVar("_T", int, float)

# A query id is any token, so a "#" inside it is part of it; everywhere else "#" starts the comment, as in SVMlight.
_ITEM = re.compile(rb"\s*(?P<grade>[^\s#]+)\s+qid:(?P<query>\S+)(?P<features>[^#]*)(?P<comment>#.*)?", re.DOTALL)
_DOCUMENT = re.compile(rb"\bdocid\s*=\s*(\S*)")
# Text of these characters alone is read by scikit-learn as we would; it also takes "nan", "1_0" and a second "qid:".
_PLAIN = b"0123456789.:+-eE \t\r\n"
_CHUNK_BYTES = 1 << 22  # of text at a time, so that what is only needed while reading stays small
_LARGEST_INDEX = 1_000_000  # where no number is declared: features are dense in memory, and a stray index must not fill it
_LARGEST_VALUE = float(np.finfo(np.float32).max)
_CUT_SHORT = "the file seems cut short: its last line has no newline"


class _Numbers(NamedTuple):
    """The numbers of some items; item i lists ``columns[starts[i]:starts[i + 1]]``, in the order of its line."""

    grades: np.ndarray
    starts: np.ndarray
    columns: np.ndarray
    values: np.ndarray


class _Block(NamedTuple):
    """The items of some lines of a file that follow one another."""

    numbers: _Numbers
    query_ids: list[str]
    document_ids: list[str]
    line_numbers: list[int]
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
    files = [_existing_file(Path(path)) for path in paths]

    dense_blocks: deque[np.ndarray] = deque()
    grades: list[np.ndarray] = []
    document_ids: list[str] = []
    query_numbers: dict[str, int] = {}
    query_of_item: list[int] = []
    resumed: dict[str, str] = {}  # queries whose lines are apart, and where each goes on
    for file in files:
        previous = None
        for block in _read_blocks(file, num_features):
            dense_blocks.append(_dense(block.numbers))
            grades.append(block.numbers.grades)
            document_ids += block.document_ids
            for query_id, line_number in zip(block.query_ids, block.line_numbers, strict=True):
                if query_id != previous and query_id in query_numbers:
                    resumed.setdefault(query_id, f"{file}:{line_number}")
                query_of_item.append(query_numbers.setdefault(query_id, len(query_numbers)))
                previous = query_id

    features = _stack(dense_blocks, len(query_of_item), num_features)
    grade = np.concatenate(grades)
    query = np.array(query_of_item, np.int64)
    rows = np.arange(len(query), dtype=np.int64)
    if resumed:
        query_id, where = next(iter(resumed.items()))
        warnings.warn(
            f"{len(resumed)} of {len(query_numbers)} queries have lines that are not contiguous, which were merged: "
            f"for example query {query_id!r}, which goes on at {where}.",
            stacklevel=2,
        )
        rows = np.argsort(query, kind="stable")
        features, grade = features[rows], grade[rows]
        document_ids = [document_ids[row] for row in rows]
    return RankingDataset(
        features=torch.from_numpy(features),
        grades=torch.from_numpy(grade),
        offsets=torch.from_numpy(np.concatenate([[0], np.bincount(query).cumsum()])),
        query_ids=list(query_numbers),
        document_ids=document_ids if any(document_ids) else None,
        rows=torch.from_numpy(rows),
    )


def _existing_file(path: Path) -> Path:
    if path.is_dir():
        raise FileNotFoundError(f"Expected a LETOR file, got the directory '{path.absolute()}'; it holds {_names(path)}.")
    if not path.exists():
        folder = path.absolute().parent
        hint = f"the directory holds {_names(folder, path.name)}" if folder.is_dir() else f"no directory '{folder}' either"
        raise FileNotFoundError(f"No LETOR file '{path.absolute()}'; {hint}.")
    return path


def _names(folder: Path, wanted: str = "") -> str:
    """Some names in a folder: those that look like the wanted one, else the first."""
    names = sorted(entry.name for entry in folder.iterdir())
    shown = get_close_matches(wanted, names, n=5) or names[:5]
    return ", ".join([*map(repr, shown), *(["…"] if len(shown) < len(names) else [])]) or "nothing"


def _dense(numbers: _Numbers) -> np.ndarray:
    """``[item, feature]``, as wide as these items need."""
    features = np.zeros((len(numbers.grades), int(numbers.columns.max(initial=-1)) + 1), np.float32)
    items = np.repeat(np.arange(len(features)), np.diff(numbers.starts))
    features[items, numbers.columns] = numbers.values
    return features


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


def _read_blocks(path: Path, num_features: int | None) -> Iterator[_Block]:
    """The items of a file, some lines at a time; a last line without newline is compared with the lines before it."""
    usual: np.ndarray | None = None  # what the first item lists
    alike = commented = True  # all items so far list the same; have a comment
    for first_line, lines in _read_lines(path):
        block = _parse(path, first_line, lines, num_features)
        if not block.query_ids:
            continue
        columns = block.numbers.columns
        if usual is None:
            usual = columns[: block.numbers.starts[1]].copy()
        elif not lines[-1].endswith(b"\n") and not block.all_commented:
            # A cut takes away the end of a line; one that lacks a feature in the middle is sparse, not cut.
            lacks_features = alike and len(columns) < len(usual) and np.array_equal(columns, usual[: len(columns)])
            if lacks_features or commented:
                wanted, came = (f"{len(usual)} features", len(columns)) if lacks_features else ("a comment", "none")
                raise ValueError(
                    f"{path}:{first_line}: expected {wanted}, as on every line before, got {came}; {_CUT_SHORT}. "
                    "If the line is whole, end it with a newline."
                )
        # An item lists no feature twice, so equal lists laid end to end mean that each item has that list.
        alike = alike and np.array_equal(columns, np.tile(usual, len(block.query_ids)))
        commented = commented and block.all_commented
        yield block
    if usual is None:
        raise ValueError(f"{path}: expected at least one item, got an empty file (or only blank lines and comments).")


def _read_lines(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    """Some lines at a time and the number of the first; a last line without newline comes alone."""
    with path.open("rb") as raw:
        is_gzip = raw.peek(2)[:2] == b"\x1f\x8b"  # whatever the suffix says
        file = gzip.GzipFile(fileobj=raw) if is_gzip else raw
        number = 1
        while True:
            try:
                lines = file.readlines(_CHUNK_BYTES)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise ValueError(f"{path}: expected a whole gzip file, got one cut short or damaged ({error}).") from error
            if not lines:
                return
            if number == 1:
                lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
            unfinished = [] if lines[-1].endswith(b"\n") else [lines.pop()]
            for some in filter(None, (lines, unfinished)):
                yield number, some
                number += len(some)


def _parse(path: Path, first_line: int, lines: list[bytes], num_features: int | None) -> _Block:
    """Items from lines: ids by a regular expression, numbers by scikit-learn or, where it refuses or may err, by us."""
    line_numbers: list[int] = []
    number_texts: list[bytes] = []
    query_ids: list[str] = []
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
        query_ids.append(_decode(query))
        document_ids.append(_document_id(comment))
        all_commented = all_commented and comment is not None
    numbers_read = _read_fast(number_texts, num_features)
    if numbers_read is None:
        numbers_read = _read_strictly(path, [(n, lines[n - first_line]) for n in line_numbers], num_features)
    return _Block(numbers_read, query_ids, document_ids, line_numbers, all_commented)


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
