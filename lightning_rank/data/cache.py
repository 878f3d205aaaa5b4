"""Data sets converted once into memory-mapped files: opened at once, larger than memory, shared by processes.

A converted set is a folder: ``manifest.json``, and NumPy files ``features``, ``grades``, ``offsets``, texts of ids as bytes
with the place where each ends, and ``rows`` where queries had to be put together. Its name is a digest of the content of the
sources and of the options. It is written beside its place and renamed, so that it is there whole or not at all.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import secrets
import shutil
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, overload

import numpy as np
import torch

from lightning_rank.conventions import check_choice
from lightning_rank.data.batches import RankingDataset
from lightning_rank.data.features import is_table, source_items
from lightning_rank.data.items import Items, Queries, check_width
from lightning_rank.data.letor import existing_file

FORMAT = 2  # of the files; another number is another key
DTYPES = ("float32", "float16")
_HEADER_BYTES = 128
_COPY_ITEMS = 1 << 14  # at a time, where a file is written anew
_SAMPLED = 8  # blocks of a file whose checksums are looked at on opening
_SMALL_BYTES = 1 << 22  # files up to here are looked at whole


class CacheError(ValueError):
    """A converted data set that is not as it was written."""


class Texts(Sequence[str]):
    """Texts in a file: bytes, and where each ends."""

    def __init__(self, content: np.ndarray, ends: np.ndarray) -> None:
        self.content, self.ends = content, ends

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [self[i] for i in range(len(self))[place]]
        place = range(len(self))[place]  # raises IndexError, and counts from the end
        return self.content[self.ends[place - 1] if place else 0 : self.ends[place]].tobytes().decode()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(str.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]  # as a list


@dataclass(frozen=True, eq=False)
class CachedDataset(RankingDataset):
    """A converted data set. What is written into its tensors stays in this process.

    Attributes:
        folder: where it lies.
        manifest: what is known about it: ``sources``, ``options``, ``queries``, ``items``, ``feature_names`` and more.
    """

    folder: Path = Path()
    manifest: Mapping[str, Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process opens the files rather than being sent their content.
        return _reopened, (self.folder, self.max_items, self.layout)


def _reopened(folder: Path, max_items: int | None, layout: str) -> CachedDataset:
    return replace(open_cache(folder), max_items=max_items, layout=layout)


# Opening --------------------------------------------------------------------------------------------------------------


def is_cache(path: str | Path) -> bool:
    """Whether a path is a converted data set."""
    return Path(path, "manifest.json").is_file()


def open_cache(folder: str | Path, *, verify: str = "quick") -> CachedDataset:
    """Open a converted data set; takes milliseconds, whatever its size.

    Args:
        folder: as ``convert`` returns it.
        verify: ``"quick"`` looks at every size, the whole of small files, and some blocks of large ones; ``"full"`` reads
            everything.

    Raises:
        FileNotFoundError: there is none.
        CacheError: (a ValueError) a file is missing, cut short or changed; it names the file.
    """
    check_choice("verify", verify, ("quick", "full"))
    folder = Path(folder)
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
        if manifest["format"] != FORMAT:
            raise CacheError(
                f"{folder} was written by another version (format {manifest['format']}, here {FORMAT}): convert again."
            )
        arrays = {
            name: _mapped(folder / f"{name}.npy", **facts, verify=verify) for name, facts in manifest["files"].items()
        }
        texts = {
            name: Texts(arrays[name], arrays[f"{name}_ends"]) for name in ("query_ids", "document_ids") if name in arrays
        }
        _check_shapes(folder, arrays, texts)
        return CachedDataset(
            features=torch.from_numpy(arrays["features"]),
            grades=torch.from_numpy(arrays["grades"]),
            offsets=torch.from_numpy(arrays["offsets"]),
            query_ids=texts["query_ids"],
            document_ids=texts.get("document_ids"),
            rows=torch.from_numpy(arrays["rows"]) if "rows" in arrays else None,
            folder=folder,
            manifest=manifest,
        )
    except FileNotFoundError as error:
        if not is_cache(folder):
            raise FileNotFoundError(
                f"There is no converted data set at '{folder.absolute()}': it has no manifest.json."
            ) from None
        raise CacheError(f"{folder} is damaged: {Path(error.filename).name} is missing. {_AGAIN}") from None
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise CacheError(f"{folder} is damaged: manifest.json cannot be read ({error!r}). {_AGAIN}") from None


_AGAIN = "Delete the folder and convert again."


def _check_shapes(folder: Path, arrays: dict[str, np.ndarray], texts: dict[str, Texts]) -> None:
    items, queries = len(arrays["grades"]), len(texts["query_ids"])
    documents = len(texts.get("document_ids", arrays["grades"]))
    if len(arrays["features"]) != items or documents != items or len(arrays["offsets"]) != queries + 1:
        raise CacheError(f"{folder} is damaged: its files do not have the same number of items or queries. {_AGAIN}")


def _mapped(path: Path, dtype: str, shape: list[int], bytes: int, checksums: list[list[int]], verify: str) -> np.ndarray:
    """The array in a file; a write to it stays in memory."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size != bytes:
            raise CacheError(
                f"{path.parent} is damaged: {path.name} has {size:,} bytes, and {bytes:,} were written. {_AGAIN}"
            )
        if os.name == "posix":
            # Without MAP_NORESERVE the kernel may refuse a private mapping larger than memory.
            flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0x4000 if os.uname().sysname == "Linux" else 0)
            memory = mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        else:
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    looked_at = list(range(len(checksums)))
    if verify == "quick" and size > _SMALL_BYTES:
        looked_at = sorted({round(i * (len(checksums) - 1) / (_SAMPLED - 1)) for i in range(_SAMPLED)})
    for i in looked_at:
        start = checksums[i - 1][0] if i else 0
        end, expected = checksums[i]
        if zlib.crc32(memoryview(memory)[start:end]) != expected:
            raise CacheError(
                f"{path.parent} is damaged: {path.name} has changed between bytes {start:,} and {end:,}. {_AGAIN}"
            )
    count = int(np.prod(shape))
    array = np.frombuffer(memory, dtype, count, _HEADER_BYTES) if count else np.empty(0, dtype)
    return array.reshape(shape)


# Converting -----------------------------------------------------------------------------------------------------------


def convert(
    paths: str | Path | Sequence[str | Path],
    cache: str | Path,
    *,
    num_features: int | None = None,
    dtype: str = "float32",
    columns: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> Path:
    """Convert LETOR, Parquet, CSV or TSV files to a memory-mapped data set, unless that has been done.

    Memory holds some megabytes of items and the query ids, whatever the size of the files. Of several processes that ask for the
    same at once, one converts and the others wait. A conversion that was killed leaves nothing that is taken for data; the next
    one removes what it left.

    Args:
        paths: one file or several, which are read as one.
        cache: folder of converted data sets; made if it does not exist.
        num_features: as in ``read_letor``.
        dtype: of the features, ``"float32"`` or ``"float16"``, which takes half the room and holds numbers up to 65,504.
        columns: of tables: which column is the ``query``, the ``grade``, the ``document``, and which are the ``features`` (a
            list); by default those with the usual names, and all other columns of numbers.
        progress: show a bar on stderr if that is a terminal.

    Returns:
        The folder of the data set, for ``open_cache``.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: what the files hold is wrong, with the line; a number that float16 cannot hold.
        OSError: the disk is full, or another reason not to write; nothing is left behind.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "train.txt").write_text("2 qid:7 1:0.5 2:1\\n0 qid:7 1:0.1 2:3\\n")
        ...     data = open_cache(convert(Path(folder, "train.txt"), Path(folder, "cache")))
        ...     data[[0]]["features"]
        tensor([[[0.5000, 1.0000],
                 [0.1000, 3.0000]]])
    """
    check_choice("dtype", dtype, DTYPES)
    files = [existing_file(Path(path)) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    cache = Path(cache)
    cache.mkdir(parents=True, exist_ok=True)
    sources: list[dict[str, Any]] = [
        {"name": file.name, "bytes": file.stat().st_size, "sha256": _digest(file, cache)} for file in files
    ]
    options = {
        "num_features": num_features,
        "dtype": dtype,
        "columns": dict(columns or {}),
        "tables": [*map(is_table, files)],
    }
    known = {"sources": sources, "options": options}
    identity = [FORMAT, [source["sha256"] for source in sources], options]
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]
    folder = cache / key
    if _usable(folder, say=False):
        return folder
    with _alone(cache / f".{key}.lock") as alone:
        if _usable(folder):
            return folder
        if alone:
            for left in cache.glob(f".{key}.*.part"):
                shutil.rmtree(left, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
        part = cache / f".{key}.{secrets.token_hex(4)}.part"
        part.mkdir()
        try:
            total = sum(source["bytes"] for source in sources)
            with _bar(total, progress) as seen:
                _write(part, source_items(files, num_features, columns, seen), num_features, dtype, known)
            try:
                part.rename(folder)
            except OSError:
                if not _usable(folder, say=False):  # else another process, on a system without locks, was faster
                    raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                free = shutil.disk_usage(cache).free
                raise OSError(
                    error.errno,
                    f"no room to convert {', '.join(file.name for file in files)} ({total / 1e9:.2f} GB of text) in "
                    f"'{cache.absolute()}', where {free / 1e9:.2f} GB are free; nothing was left behind. Give another "
                    f"folder{', or dtype float16' if dtype == 'float32' else ''} ({os.strerror(error.errno)})",
                ) from error
            raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return folder


def _usable(folder: Path, say: bool = True) -> bool:
    """Whether a data set is there and whole; says what is wrong with one that is to be converted again."""
    if not folder.exists():
        return False
    try:
        open_cache(folder)
    except (CacheError, FileNotFoundError) as error:
        if say:
            warnings.warn(f"{str(error).removesuffix(_AGAIN)}It is converted again.", stacklevel=3)
        return False
    return True


def _digest(path: Path, cache: Path) -> str:
    """SHA-256 of a file; that of a file of the same path, size and time of change is remembered."""
    facts = path.stat()
    known_by = f"{path.absolute()}\0{facts.st_size}\0{facts.st_mtime_ns}\0{facts.st_ino}"
    note = cache / f".{hashlib.sha256(known_by.encode()).hexdigest()[:24]}.source"
    if note.exists() and len(text := note.read_text()) == 64:
        return text
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    part = note.with_suffix(f".{secrets.token_hex(4)}")
    try:
        part.write_text(digest.hexdigest())
        part.replace(note)
    except OSError:  # it only saves reading the file again
        part.unlink(missing_ok=True)
    return digest.hexdigest()


@contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Let one process in at a time; the lock of one that was killed is free. False where the system has no such locks."""
    try:
        import fcntl
    except ModuleNotFoundError:
        yield False
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield True


@contextmanager
def _bar(total: int, shown: bool) -> Iterator[Callable[[int], object]]:
    if not shown:
        yield lambda _: None
        return
    from tqdm import tqdm

    with tqdm(total=total, unit="B", unit_scale=True, desc="converting", disable=None, leave=False) as bar:
        yield bar.update


class _Writer:
    """A NumPy file that is written row by row, with checksums of its blocks."""

    def __init__(self, path: Path, dtype: str, width: int | None = None) -> None:
        self.path, self.dtype, self.width = path, np.dtype(dtype).newbyteorder("<"), width
        self.rows, self.place = 0, _HEADER_BYTES
        self.checksums: list[list[int]] = []
        self.file: IO[bytes] = path.open("wb")
        self.file.write(bytes(_HEADER_BYTES))

    def add(self, rows: np.ndarray) -> None:
        content = np.ascontiguousarray(rows, self.dtype).reshape(-1).view(np.uint8) if rows.size else np.empty(0, np.uint8)
        self.file.write(content.data)
        self.place += len(content)
        self.rows += len(rows)
        if len(content):
            self.checksums.append([self.place, zlib.crc32(content.data)])

    def close(self) -> dict[str, Any]:
        """Finish the file; what the manifest says of it."""
        shape = (self.rows,) if self.width is None else (self.rows, self.width)
        header = f"{{'descr': '{self.dtype.str}', 'fortran_order': False, 'shape': {shape}, }}".encode()
        header = (
            b"\x93NUMPY\x01\x00" + (_HEADER_BYTES - 10).to_bytes(2, "little") + header.ljust(_HEADER_BYTES - 11) + b"\n"
        )
        self.file.seek(0)
        self.file.write(header)
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        checksums = [[_HEADER_BYTES, zlib.crc32(header)], *self.checksums]
        return {"dtype": self.dtype.str, "shape": list(shape), "bytes": self.place, "checksums": checksums}


def _write(folder: Path, source: Iterable[Items], num_features: int | None, dtype: str, known: dict[str, Any]) -> None:
    """All files of a data set."""
    features = _Writer(folder / "features.npy", dtype, num_features or 0)
    grades = _Writer(folder / "grades.npy", "float32")
    documents = _Writer(folder / "document_ids.npy", "uint8"), _Writer(folder / "document_ids_ends.npy", "int64")
    queries = Queries()
    with_documents, names = False, None
    missing: Counter[int] = Counter()  # items in which a feature is NaN, by its number
    for items in source:
        check_width(items, num_features)
        if (width := items.features.shape[1]) > (features.width or 0):
            features = _rewritten(features, np.arange(features.rows), width)
        features.add(_as_stored(items.features, features, items))
        nan = np.isnan(items.features).sum(axis=0)
        missing.update({int(i): int(nan[i]) for i in nan.nonzero()[0]})
        grades.add(items.grades)
        with_documents = with_documents or items.document_ids is not None
        _add_texts(*documents, items.document_ids or [""] * len(items.grades))
        queries.add(items)
        names = items.feature_names or names
    if not grades.rows:
        raise ValueError("There is no item in the files.")
    if (order := queries.order()) is not None:
        warnings.warn(str(queries.warning()), stacklevel=3)
        features, grades = _rewritten(features, order), _rewritten(grades, order)
        if with_documents:
            documents = _texts_rewritten(*documents, order)
    ids = _Writer(folder / "query_ids.npy", "uint8"), _Writer(folder / "query_ids_ends.npy", "int64")
    _add_texts(*ids, queries.ids)
    offsets = _Writer(folder / "offsets.npy", "int64")
    offsets.add(queries.offsets())
    writers = [features, grades, offsets, *ids, *documents]
    if order is not None and not np.array_equal(order, np.arange(len(order))):
        writers.append(_Writer(folder / "rows.npy", "int64"))
        writers[-1].add(order)
    files = {writer.path.stem: writer.close() for writer in writers}
    if not with_documents:
        for writer in documents:
            writer.path.unlink()
            del files[writer.path.stem]
    manifest = {
        "format": FORMAT, **known, "queries": len(queries.ids), "items": grades.rows, "features": features.width,
        "feature_names": names, "files": files,
        "nan_features": {names[i] if names else str(i + 1): count for i, count in sorted(missing.items())},
    }  # fmt: skip
    with (folder / "manifest.json").open("w") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def _as_stored(rows: np.ndarray, features: _Writer, items: Items) -> np.ndarray:
    """Features at the width and of the type of the file."""
    with np.errstate(over="ignore"):
        stored = rows.astype(features.dtype, copy=False)
    if features.dtype.itemsize < 4 and (lost := np.isinf(stored) & ~np.isinf(rows)).any():
        row, column = np.argwhere(lost)[0]
        ends = np.cumsum([run.number for run in items.runs])
        run = items.runs[int(np.searchsorted(ends, row, "right"))]
        raise ValueError(
            f"float16 holds numbers up to 65,504; feature {column + 1} is {rows[row, column]:g} in query {run.query_id!r}, which "
            f"begins at {run.where}. Convert to float32, or scale the features."
        )
    missing = (features.width or 0) - rows.shape[1]
    return np.pad(stored, ((0, 0), (0, missing))) if missing else stored


def _add_texts(content: _Writer, ends: _Writer, texts: list[str]) -> None:
    encoded = [text.encode() for text in texts]
    start = content.rows
    content.add(np.frombuffer(b"".join(encoded), np.uint8))
    ends.add(start + np.cumsum([len(text) for text in encoded], dtype=np.int64))


def _rewritten(old: _Writer, order: np.ndarray, width: int | None = None) -> _Writer:
    """The rows of a file in another order, or widened by zeros."""
    facts = old.close()
    new = _Writer(old.path.with_suffix(".new"), old.dtype.str, old.width if width is None else width)
    content = np.memmap(old.path, old.dtype, "r", _HEADER_BYTES, tuple(facts["shape"])) if np.prod(facts["shape"]) else None
    for start in range(0, len(order), _COPY_ITEMS):
        some = order[start : start + _COPY_ITEMS]
        rows = np.zeros((len(some), *facts["shape"][1:]), old.dtype) if content is None else content[some]
        new.add(rows if new.width == old.width else np.pad(rows, ((0, 0), (0, (new.width or 0) - rows.shape[1]))))
    new.path.replace(old.path)
    new.path = old.path
    return new


def _texts_rewritten(content: _Writer, ends: _Writer, order: np.ndarray) -> tuple[_Writer, _Writer]:
    content.close(), ends.close()
    old = Texts(np.load(content.path, mmap_mode="r"), np.load(ends.path, mmap_mode="r"))
    new = _Writer(content.path.with_suffix(".new"), "uint8"), _Writer(ends.path.with_suffix(".new"), "int64")
    for start in range(0, len(order), _COPY_ITEMS):
        _add_texts(*new, [old[i] for i in order[start : start + _COPY_ITEMS]])
    for writer, path in zip(new, (content.path, ends.path), strict=True):
        writer.path.replace(path)
        writer.path = path
    return new
