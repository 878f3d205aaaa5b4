"""What all commands ask before they write a file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def refuse_existing(*outputs: str | None, overwrite: bool = False, inputs: Iterable[str | None] = ()) -> None:
    """Raise where a file to be written is there already, is one that is read, or is to be written twice.

    Args:
        outputs: files to be written; None is none.
        overwrite: whether files may be replaced. One that is read never may, by whichever path or link it is named.
        inputs: files that are read; None, and what is no file, is none.

    Raises:
        FileExistsError: an output exists and ``overwrite`` is False.
        ValueError: an output is one of the inputs, or two of them are one file.

    Example:
        >>> refuse_existing("new.txt", "new.txt")
        Traceback (most recent call last):
        ValueError: new.txt is to be written twice: give each output a name of its own.
    """
    given = [path for path in outputs if path is not None]
    read = [path for path in inputs if path is not None and Path(path).exists()]
    for i, path in enumerate(given):
        if os.path.exists(path) and any(os.path.samefile(path, other) for other in read):
            raise ValueError(f"{path} is read by this command, so it cannot be its output: choose another name.")
        if os.path.realpath(path) in map(os.path.realpath, given[:i]):
            raise ValueError(f"{path} is to be written twice: give each output a name of its own.")
        if os.path.exists(path) and not overwrite:
            raise FileExistsError(f"{path} exists: choose another name, or give --overwrite.")
