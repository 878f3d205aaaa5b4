"""Checkpoints that are whole or not there, and looked through before they are read.

The class here knows no Lightning package; see ``lightning_rank.callbacks``.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from glob import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_rank.data.trec import writing


class SafeCheckpointIOMixin:
    """Reads and writes checkpoints on a local disk, for ``Trainer(plugins=[SafeCheckpointIO()])``; ``lightning-rank`` uses it.

    Lightning writes a checkpoint in the system's temporary folder and moves it. If that is another file system, the move is a copy,
    and a kill or a full disk in its middle leaves a part of a file in the place of the last checkpoint. Here it is written beside
    its place, and put there by one renaming. Every byte of a checkpoint is compared with its checksum before it is read.

    Raises:
        OSError: there is no room; the checkpoints that were there are untouched.
        ValueError: a checkpoint that is empty, cut short, changed, or none at all; the message has the others of its folder.
        FileNotFoundError: there is no such checkpoint.

    Example:
        >>> from lightning_rank.pytorch_lightning import SafeCheckpointIO
        >>> plugins = [SafeCheckpointIO()]
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        if not is_local(path):
            super().save_checkpoint(checkpoint, path, storage_options)  # type: ignore[misc]  # of CheckpointIO
            return
        path = Path(path)
        for left in path.parent.glob(f".{escape(path.name)}.*"):  # by one that was killed
            left.unlink(missing_ok=True)
        # Not into the file at once: PyTorch hides that there is no room behind an error of its own.
        whole = io.BytesIO()
        torch.save(checkpoint, whole)
        with writing(path) as file:
            file.write(whole.getbuffer())

    def load_checkpoint(self, path: Any, *args: Any, **options: Any) -> dict[str, Any]:
        if is_local(path):
            check_checkpoint(path)
        return super().load_checkpoint(path, *args, **options)  # type: ignore[misc]  # of CheckpointIO


def is_local(path: Any) -> bool:
    """Whether a path is one of this machine, not a URL."""
    return "://" not in str(path)


def check_checkpoint(path: str | Path) -> None:
    """Raise unless a file is as PyTorch wrote it, to the last byte; nothing in it is run.

    Raises:
        ValueError: the file is empty, cut short or changed since it was written, or no checkpoint.
        FileNotFoundError: there is no such file.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"There is no checkpoint {path}. {others(path)}")
    if path.is_dir():  # that of a strategy which spreads it over files
        return
    if wrong := _what_is_wrong(path):
        raise ValueError(f"The checkpoint {path} {wrong}. {others(path)}")


def _what_is_wrong(path: Path) -> str:
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(4)
    if not start:
        return "is empty"
    if start[:1] == b"\x80":  # a pickle, as PyTorch wrote before 1.6, without checksums
        return ""
    if start != b"PK\x03\x04":
        return f"is none: its {size:,} bytes do not begin as a file of PyTorch"
    has_sums = getattr(torch.serialization, "get_crc32_options", lambda: True)()
    try:
        with zipfile.ZipFile(path) as archive:
            changed = archive.testzip() if has_sums else None
    except zipfile.BadZipFile:
        return f"is cut short or changed: its {size:,} bytes have no end as PyTorch writes it"
    return "" if changed is None else f"was changed after it was written: the checksum of {changed!r} in it does not fit"


def shapes_in(path: str | Path) -> dict[str, torch.Size]:
    """The weights in a whole checkpoint, by name, and their shapes; the weights themselves are not read into memory.

    Raises:
        ValueError: there are none, or there is something in it that could run code.
    """
    try:
        content = torch.load(path, map_location="meta", weights_only=True, mmap=zipfile.is_zipfile(path))
        return {name: value.shape for name, value in content["state_dict"].items() if isinstance(value, Tensor)}
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"The checkpoint {path} holds more than weights and numbers: {str(error).splitlines()[0]}"
        ) from None
    except (KeyError, TypeError, AttributeError, RuntimeError, EOFError):
        raise ValueError(f"{path} holds no `state_dict`, so it is no checkpoint of Lightning. {others(path)}") from None


def others(path: str | Path) -> str:
    """A sentence on the other checkpoints in the folder of one, of those that have an end, the newest first."""
    path = Path(path)
    if not path.parent.is_dir():
        return f"Nor is there a folder {path.parent}."
    whole = (p for p in path.parent.glob("*.ckpt") if p != path and (p.is_dir() or zipfile.is_zipfile(p)))
    found = sorted(whole, key=lambda p: p.stat().st_mtime, reverse=True)
    if not found:
        return f"There is no other in {path.parent.absolute()}."
    names = ", ".join(p.name for p in found[:5]) + (", …" if len(found) > 5 else "")
    return f"Take another of {path.parent.absolute()}, the newest first: {names}."
