"""Files of the TREC tools: runs, judgements (qrels), and MS MARCO's three-column runs."""

from __future__ import annotations

import errno
import gzip
import io
import os
import shutil
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lightning_rank.data.runs import Judgements, Run, polars

if TYPE_CHECKING:
    from torch import Tensor

    from lightning_rank.data.batches import RankingDataset

_PIECE_BYTES = 1 << 23  # of text at a time, so that it stays in the cache, and what is only needed while reading small
_LOOK_BYTES = 1 << 18  # that are looked at together for how blanks stand
_BLANKS = bytes.maketrans(b"\t\v\f", b"   ")


class _Format(NamedTuple):
    """Columns of a line, and which of them hold what."""

    what: str
    columns: tuple[str, ...]
    query: int
    document: int
    value: int
    may_go_on: bool  # further columns are ignored


_RUN = _Format("run", ("query", "Q0", "document", "rank", "score", "tag"), 0, 2, 4, True)
_QRELS = _Format("qrels", ("query", "iteration", "document", "grade"), 0, 2, 3, False)
_MSMARCO = _Format("MS MARCO run", ("query", "document", "rank"), 0, 1, 2, False)
_SCORED = _Format("scores", ("query", "document", "score"), 0, 1, 2, False)


def read_trec_run(path: str | Path, *, name: str | None = None, strict: bool = False) -> Run:
    """Read a run, ``query Q0 document rank score tag``, plain or gzip.

    Columns are separated by blanks or tabs, any number of them; what follows the sixth is ignored, and so are blank lines and
    lines that begin with ``#`` (an id may hold one). The order is that of the scores, whatever the lines' order and ranks say.

    Args:
        path: the file.
        name: of the run; None takes the file's.
        strict: refuse repeated documents instead of counting them once, at their best rank, with a warning.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: with ``path:line``, a line of too few columns, a score that is no number; an empty file.
        ModuleNotFoundError: polars is not installed (the extra ``files``).

    Source: the results format of trec_eval.
    """
    run = Run.from_pieces(list(_pieces(path, _RUN)), name=_name(path) if name is None else name, strict=strict)
    return replace(run, tag=_first_line(path)[len(_RUN.columns) - 1])


def read_qrels(path: str | Path, *, strict: bool = False) -> Judgements:
    """Read judgements, ``query iteration document grade``, plain or gzip. Blanks, comments and errors: as ``read_trec_run``.

    Args:
        path: the file.
        strict: refuse a judgement that is there twice, instead of counting it once with a warning.

    Raises:
        ValueError: as ``read_trec_run``; a line that has not four columns; judgements that contradict one another.

    Source: the qrels format of trec_eval.
    """
    return Judgements.from_pieces(list(_pieces(path, _QRELS)), name=_name(path), strict=strict)


def read_msmarco_run(path: str | Path, *, name: str | None = None, strict: bool = False) -> Run:
    """Read a run of MS MARCO, ``query document rank``; the score is minus the rank. Otherwise as ``read_trec_run``.

    Raises:
        ValueError: also for what can be no rank, as where the column holds scores: a fraction, a number below 0, one that
            another document of the query has.

    Source: the MS MARCO passage ranking evaluation.
    """
    pieces = [(runs, documents, -ranks) for runs, documents, ranks in _pieces(path, _MSMARCO)]
    # Looked at first: of scores the order is the other way round, and so is which of repeated documents counts.
    unfit = any(((scores > 0) | (scores != np.floor(scores))).any() for _, _, scores in pieces)
    if not unfit:
        run = Run.from_pieces(pieces, name=_name(path) if name is None else name, strict=strict)
        unfit = bool(run.tied_with_above(run.order("arrival")).any())
    if unfit:
        raise _no_rank(path)
    return run


def read_scored_run(path: str | Path, *, name: str | None = None, strict: bool = False) -> Run:
    """Read ``query document score`` without a header, plain or gzip, separated by blanks or tabs; as ``read_trec_run``."""
    return Run.from_pieces(list(_pieces(path, _SCORED)), name=_name(path) if name is None else name, strict=strict)


def write_trec(path: str | Path, lists: Run | Judgements, *, tag: str | None = None, overwrite: bool = True) -> None:
    """Write a run, the documents of each query by rank, or judgements (qrels); gzip where the name ends in ``.gz``.

    Args:
        path: the file; replaced whole once everything is written.
        lists: what to write. A score is written so that it reads back as the same number.
        tag: name of the run in the file; None takes that of the run.
        overwrite: whether a file may be there already.

    Raises:
        FileExistsError: a file is there and ``overwrite`` is False.
        ValueError: an id that is empty or has a blank in it, a query that begins with ``#``: the format cannot hold them.
    """
    pl = polars()
    for ids, wrong in ((pl.Series(lists.query_ids, dtype=pl.String), r"\s|^$|^#"), (lists.documents, r"\s|^$")):
        bad = ids.str.contains(wrong)
        if bad.any():
            raise ValueError(
                "Blanks separate the columns and # begins a comment, so an id must not be empty, hold a blank, or, of a query, "
                f"begin with #, got {ids.filter(bad)[0]!r}."
            )
    frame = lists.to_polars()
    if isinstance(lists, Run):
        order = lists.order("arrival")
        frame = frame if order is None else frame[order]
        rank = np.arange(len(frame)) - np.repeat(lists.offsets[:-1], lists.lengths) + 1
        tag = (tag or lists.tag or lists.name or "lightning_rank").replace(" ", "_")
        frame = frame.select("query", pl.lit("Q0"), "document", pl.Series("rank", rank), "score", pl.lit(tag).alias("tag"))
    else:
        frame = frame.select("query", pl.lit("0"), "document", pl.col("grade"))
        if (lists.grades == np.floor(lists.grades)).all() and np.abs(lists.grades).max() < 2**53:
            frame = frame.with_columns(pl.col("grade").cast(pl.Int64))
    with writing(path, overwrite=overwrite) as file:
        frame.write_csv(file, include_header=False, separator=" ", quote_style="never")


@contextmanager
def writing(path: str | Path, *, overwrite: bool = True) -> Iterator[IO[bytes]]:
    """A binary file that appears at ``path`` once everything is written, or not at all; gzip where the name ends in ``.gz``.

    Raises:
        FileExistsError: a file is there and ``overwrite`` is False.
        OSError: there is no room; what was at ``path`` is untouched.
    """
    path = Path(path)
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists: choose another name, or allow it to be replaced.")
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        opener: Any = gzip.open if path.suffix == ".gz" else open
        with opener(unfinished, "wb") as file:
            yield file
        unfinished.replace(path)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        kept = "what was there is as it was" if path.exists() else "nothing was left behind"
        raise OSError(
            error.errno,
            f"no room to write '{path.absolute()}', where {shutil.disk_usage(path.parent).free / 1e6:.1f} MB are free; {kept}. "
            f"Make room, or give another place ({os.strerror(error.errno)})",
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def opened(path: str | Path) -> Iterator[IO[bytes]]:
    """The bytes of a file, plain or gzip (told by its content).

    Raises:
        FileNotFoundError: it does not exist, or is a directory.
        ValueError: it is a damaged gzip file.
    """
    path = Path(path)
    if not path.exists() or path.is_dir():
        raise FileNotFoundError(f"There is {'a directory, not a file,' if path.is_dir() else 'no file'} at '{path}'.")
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        try:
            if packed:
                with gzip.open(file) as unpacked:
                    yield unpacked  # type: ignore[misc]  # it reads as any file does
            else:
                yield file
        except (EOFError, gzip.BadGzipFile) as error:
            raise ValueError(f"{path}: a damaged gzip file: {error}.") from error


def looks_like(path: str | Path) -> str:
    """``"letor"``, ``"scores"``, ``"trec"``, ``"qrels"`` or ``"msmarco"`` by the columns of the first line that has any."""
    columns = _first_line(path)
    if len(columns) > 1 and columns[1].startswith("qid:"):
        return "letor"
    if len(columns) == 1 and is_number(columns[0]):
        return "scores"
    return {3: "msmarco", 4: "qrels"}.get(len(columns), "trec")


def number_of_columns(path: str | Path) -> int:
    """Of the first line that has any."""
    return len(_first_line(path))


def is_number(text: str) -> bool:
    """Whether it is one, infinity and NaN among them."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _first_line(path: str | Path) -> list[str]:
    with opened(path) as file:
        for line in file:
            if line.strip() and not line.lstrip().startswith(b"#"):
                return line.decode(errors="replace").split()
    raise ValueError(f"{path}: there is no line in it, so there is nothing to evaluate.")


def _name(path: str | Path) -> str:
    return Path(path).name.removesuffix(".gz")


def _pieces(path: str | Path, form: _Format) -> Iterator[tuple[Any, Any, np.ndarray]]:
    """Runs of equal query ids, documents and values of some lines at a time."""
    threads = min(polars().thread_pool_size(), 8)
    pending: deque[Future[tuple[Any, Any, np.ndarray]]] = deque()
    before = 0
    with opened(path) as file, ThreadPoolExecutor(threads) as pool:
        while text := file.read(_PIECE_BYTES):
            if not text.endswith(b"\n"):
                text += file.readline()
            pending.append(pool.submit(_columns, text, form, path, before))
            before += len(text)
            if len(pending) > threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _columns(text: bytes, form: _Format, path: str | Path, before: int) -> tuple[Any, Any, np.ndarray]:
    pl = polars()
    names = (*form.columns, "beyond")
    number = len(form.columns)
    wanted = [form.query, form.document, form.value, number - 1 if form.may_go_on else number]
    schema = {name: pl.Float64 if i == form.value else pl.String for i, name in enumerate(names)}
    plain, columns = _with_single_blanks(text)
    # To find one byte is much faster than to find two.
    has_comment = b"#" in plain and (plain.startswith(b"#") or b"\n#" in plain)
    if form.may_go_on and columns == number and not has_comment:
        # The last one, which nobody needs, need not be read to know that it is there: it costs a quarter of the time. (Lines
        # that lack it pass where others have as many too many; what is read of both is right.)
        del wanted[-1]
    try:
        table = pl.read_csv(
            io.BytesIO(plain), separator=" ", has_header=False, quote_char=None, comment_prefix="#" if has_comment else None,
            schema=schema, columns=sorted(set(wanted)), truncate_ragged_lines=True, extra_columns="ignore",
            missing_columns="insert",
        )  # fmt: skip
    except pl.exceptions.NoDataError:
        table = pl.DataFrame(schema={names[i]: schema[names[i]] for i in sorted(set(wanted))})
    except (pl.exceptions.ComputeError, pl.exceptions.SchemaError) as error:
        raise _first_fault(text, form, path, before, str(error)) from None
    query, document, value = (table[names[i]] for i in wanted[:3])
    last = table[names[wanted[-1]]]
    whole = last.null_count() == (0 if form.may_go_on else len(last))
    values = value.to_numpy()
    # A sum is the cheapest look at all values; it is also NaN for inf - inf.
    with np.errstate(invalid="ignore"):
        total = values.sum()
    if not whole or value.null_count() or (np.isnan(total) and np.isnan(values).any()):
        raise _first_fault(text, form, path, before, "")
    return query.rle().struct.unnest(), document, values


def _with_single_blanks(text: bytes) -> tuple[bytes, int | None]:
    """Lines whose columns one blank separates, without blanks at either end or empty lines; no line is split for it.

    Also how many columns their lines have, where they stood like this and it can be that each has as many; else None.
    """
    text = text.removeprefix(b"\xef\xbb\xbf")
    doubled, blanks, spaces, lines = _blanks(text)
    if blanks > spaces + lines and any(other in text for other in (b"\t", b"\v", b"\f")):
        text = text.translate(_BLANKS)
    if not doubled:
        return text, blanks // lines if lines and blanks % lines == 0 else None
    text = text.replace(b"\r\n", b"\n")
    for twice, once in ((b"  ", b" "), (b" \n", b"\n"), (b"\n ", b"\n"), (b"\n\n", b"\n")):
        while twice in text:
            text = text.replace(twice, once)
    return text.lstrip().removesuffix(b" "), None


def _blanks(text: bytes) -> tuple[bool, int, int, int]:
    """Whether two blanks stand side by side or one at the start; the numbers of blanks of all kinds, spaces, ends of lines."""
    characters = np.frombuffer(text, np.uint8)
    doubled, counts = len(text) > 0 and text[0] <= 32, np.zeros(3, int)
    for start in range(0, len(text), _LOOK_BYTES):
        part = characters[start : start + _LOOK_BYTES]
        blank = part <= 32
        doubled = doubled or bool((blank[1:] & blank[:-1]).any()) or bool(start and blank[0] and text[start - 1] <= 32)
        counts += [np.count_nonzero(x) for x in (blank, part == 32, part == 10)]
    blanks, spaces, lines = counts.tolist()
    return doubled, blanks, spaces, lines


def _first_fault(text: bytes, form: _Format, path: str | Path, before: int, error: str) -> ValueError:
    """The error for the first line that is wrong, of a text that so many bytes of the file come before."""
    number = len(form.columns)
    with opened(path) as file:
        lines_before = file.read(before).count(b"\n")
    for i, raw in enumerate(text.split(b"\n"), lines_before + 1):
        columns = raw.split()
        if not columns or columns[0].startswith(b"#"):
            continue
        where = f"{path}:{i}"
        try:
            raw.decode()
        except UnicodeDecodeError:
            return ValueError(f"{where}: the line is no UTF-8 text: {raw[:80]!r}.")
        if len(columns) < number or (len(columns) > number and not form.may_go_on):
            hint = _hint(raw, len(columns), form)
            return ValueError(
                f"{where}: a line of a {form.what} file must have {number}{' or more' if form.may_go_on else ''} columns, "
                f"{' '.join(form.columns)}, got {len(columns)}: {raw[:80].decode(errors='replace')!r}.{hint}"
            )
        shown = columns[form.value].decode()
        name = form.columns[form.value]
        try:
            if np.isnan(float(shown)):
                return ValueError(f"{where}: the {name} is NaN. The model has diverged, or divides by zero.")
        except ValueError:
            return ValueError(f"{where}: the {name} must be a number, got {shown!r}.")
        if "_" in shown:
            return ValueError(f"{where}: the {name} must be a number, got {shown!r}.")
    return ValueError(f"{path}: cannot be read as a {form.what} file: {error}")


def _no_rank(path: str | Path) -> ValueError:
    """The error for the first line of a run of MS MARCO whose rank can be none."""
    holder: dict[tuple[bytes, float], bytes] = {}
    with opened(path) as file:
        for i, line in enumerate(file, 1):
            columns = line.split()
            if not columns or columns[0].startswith(b"#"):
                continue
            query, document, shown = columns
            rank = float(shown)
            if rank >= 0 and rank.is_integer() and holder.setdefault((query, rank), document) == document:
                continue
            why = (
                "a rank is a whole number" if rank < 0 or not rank.is_integer()
                else f"two documents of the query {query.decode()!r} have it"
            )  # fmt: skip
            return ValueError(
                f"{path}:{i}: three columns are read as query, document and rank, but {shown.decode()!r} can be no rank: {why}. "
                "If it is a score, the higher the better, say so: --run-format scores, or form='scores'."
            )
    raise AssertionError("every rank is one")


def _hint(raw: bytes, columns: int, form: _Format) -> str:
    kinds = {3: "a run of MS MARCO", 4: "judgements (qrels)", 6: "a run"}
    if columns == 1:
        for mark, told in ((b",", "commas"), (b";", "semicolons"), (b"{", "braces, as JSON lines have")):
            if mark in raw:
                return f" It has {told}: name the file .csv, .tsv or .jsonl, or give its format."
    if columns in kinds and len(form.columns) != columns:
        return f" It looks like {kinds[columns]}."
    return ""


def write_run(path: str | Path, dataset: RankingDataset, scores: Tensor, *, tag: str = "lightning_rank") -> None:
    """Write a run: ``query Q0 document rank score tag``, the items of each query from the highest score down.

    An item without a document id is named by its place in the source, counted from 0.

    Args:
        path: the file; replaced whole once everything is written.
        dataset: the queries and their items.
        scores: ``[item]`` in the order of the dataset; items with NaN are left out.
        tag: name of the run.

    Source: the results format of trec_eval.
    """
    _write_lines(path, _run_lines(dataset, scores.double(), tag))


def write_scores(path: str | Path, dataset: RankingDataset, scores: Tensor) -> None:
    """Write one score per line, in the order of the source's items: the format of LETOR's evaluation tools.

    Args:
        path: the file; replaced whole once everything is written.
        dataset: the queries and their items.
        scores: ``[item]`` in the order of the dataset.
    """
    if dataset.rows is not None:
        in_source = scores.new_empty(scores.shape)
        in_source[dataset.rows] = scores
        scores = in_source
    _write_lines(path, (f"{score:.9g}\n" for score in scores.tolist()))


def _run_lines(dataset: RankingDataset, scores: Tensor, tag: str) -> Iterable[str]:
    bounds = dataset.offsets.tolist()
    for query, (start, end) in enumerate(pairwise(bounds)):
        order = scores[start:end].neg().argsort(stable=True)
        kept = order[~scores[start:end][order].isnan()] + start
        for rank, (item, score) in enumerate(zip(kept.tolist(), scores[kept].tolist(), strict=True), 1):
            document = dataset.document_ids[item] if dataset.document_ids is not None else ""
            document = document or str(item if dataset.rows is None else int(dataset.rows[item]))
            yield f"{dataset.query_ids[query]} Q0 {document} {rank} {score:.9g} {tag}\n"


def _write_lines(path: str | Path, lines: Iterable[str]) -> None:
    with writing(path) as file:
        file.writelines(line.encode() for line in lines)
