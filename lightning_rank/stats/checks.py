"""What the functions of this package ask of their arguments, checked at once; every failure is a ValueError."""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

ALTERNATIVES = ("two-sided", "greater", "less")


def check_choice(option: str, value: object, choices: Collection[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"`{option}` must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def check_alternative(alternative: object) -> None:
    check_choice("alternative", alternative, ALTERNATIVES)


def number(option: str, value: Any, *, above: float = -math.inf, below: float = math.inf, advice: str = "") -> float:
    """``value`` as a float.

    Raises:
        ValueError: it is not a real number with ``above < value < below``.
    """
    if not is_number(value) or not above < float(value) < below:
        bounds = [f"above {above:g}"] * (above > -math.inf) + [f"below {below:g}"] * (below < math.inf)
        must = f"a finite number {' and '.join(bounds)}".strip()
        raise ValueError(f"`{option}` must be {must}, got {value!r}.{advice and ' ' + advice}")
    return float(value)


def is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))


def probability(option: str, value: Any) -> float:
    """A number strictly between 0 and 1, such as ``alpha``, a power or a rate to plan with."""
    percent = is_number(value) and 1 < value < 100
    return number(option, value, above=0, below=1, advice=f"Not per cent: write {value / 100:g}." if percent else "")


def whole(option: str, value: Any, *, least: int = 0, advice: str = "") -> int:
    """``value`` as an int.

    Raises:
        ValueError: it is not a whole number of at least ``least``.
    """
    if not is_number(value) or not math.isfinite(value) or value != int(value) or value < least:
        raise ValueError(f"`{option}` must be a whole number >= {least}, got {value!r}.{advice and ' ' + advice}")
    return int(value)


def arm(successes: Any, n: Any, suffix: str = "") -> tuple[int, int]:
    """The successes of an arm and its users."""
    n = whole(f"n{suffix}", n, least=1, advice="An arm without users has no rate.")
    successes = whole(f"successes{suffix}", successes)
    if successes > n:
        raise ValueError(
            f"`successes{suffix}` must be at most `n{suffix}`, got {successes:,} of {n:,}. "
            "Count users who did it at least once, not how often; for events per user see `welch` and `ratio_of_means`."
        )
    return successes, n


def column(name: str, values: Any, *, least: int = 1) -> np.ndarray:
    """``values`` as a float64 vector of finite numbers.

    Raises:
        ValueError: something else came, or fewer than ``least`` of them.
    """
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise ValueError(f"`{name}` must be a sequence of numbers, got {type(values).__name__}.")
    try:
        array = np.asarray(values if hasattr(values, "__array__") else list(values), dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"`{name}` must be a sequence of numbers: {error}.") from error
    if array.ndim != 1:
        raise ValueError(f"`{name}` must have one axis, got the shape {array.shape}.")
    if len(array) < least:
        raise ValueError(f"`{name}` must have at least {least} value{'s' * (least > 1)}, got {len(array)}.")
    finite = np.isfinite(array)
    if not finite.all():
        raise ValueError(f"`{name}` must be finite, got {array[~finite][0]} at position {int(np.argmin(finite))}.")
    return array


def same_length(**columns: np.ndarray) -> None:
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{listed(lengths)} must be of one length, got {listed(lengths.values())}.")


def listed(things: Iterable[object]) -> str:
    """The things as text, names in backticks: ``\\`a\\` and \\`b\\```."""
    texts = [f"`{thing}`" if isinstance(thing, str) else str(thing) for thing in things]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
