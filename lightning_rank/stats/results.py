"""What the results share: they are immutable, print in one line and turn into a mapping of plain Python values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np


class Result:
    """Base of the results, which are frozen dataclasses: fields by name, one line by ``str``, a mapping by ``to_dict``."""

    def to_dict(self) -> dict[str, Any]:
        """The fields as a mapping of plain Python values; arrays are lists."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value


def jsonable(value: Any) -> Any:
    """The value with numbers that JSON does not know as texts: ``"NaN"``, ``"Infinity"``, ``"-Infinity"``."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def frozen_array(values: Any) -> np.ndarray:
    """A float64 vector that cannot be written to, so that the result that holds it is immutable."""
    array = np.array(values, dtype=np.float64)
    array.flags.writeable = False
    return array


def show(value: float, sign: bool = False) -> str:
    """Four digits."""
    return f"{value:+.4g}" if sign else f"{value:.4g}"


def show_p(pvalue: float) -> str:
    return f"p = {pvalue:.3g}"


def show_interval(low: float, high: float, alpha: float) -> str:
    return f"[{show(low, True)}, {show(high, True)}] at {show(100 * (1 - alpha))} %"


def show_lift(relative: float, low: float, high: float) -> str:
    if math.isnan(relative):
        return "lift undefined"
    return f"lift {100 * relative:+.3g} % [{100 * low:+.3g}, {100 * high:+.3g}]"
