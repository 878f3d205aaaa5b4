"""Packages that only some users need: imported when first used, with an error that says how to get them."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def extra(module: str, what: str, name: str) -> Any:
    """A module of a package that the extra ``name`` brings.

    Raises:
        ModuleNotFoundError: it is not installed; the message says that ``what`` needs it, and the command.

    Example:
        >>> extra("no_such_module", "A time machine needs", "travel")
        Traceback (most recent call last):
            ...
        ModuleNotFoundError: A time machine needs no_such_module: pip install 'lightning-rank[travel]'.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise ModuleNotFoundError(f"{what} {package}: pip install 'lightning-rank[{name}]'.") from error
