"""Golden values of `lightning_rank.online` and of the gate."""

from __future__ import annotations

import math
from functools import reduce
from operator import or_
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lightning_rank.gate
from lightning_rank import online
from tests.conftest import golden

FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
CASES = [pytest.param(case, id=case["id"]) for case in golden("online")["cases"] if not case["call"].startswith("stats.")]


def decoded(value: Any) -> Any:
    if isinstance(value, dict):
        if "$table" in value:
            table = value["$table"]
            return {name: [decoded(row[i]) for row in table["rows"]] for i, name in enumerate(table["columns"])}
        if "$records" in value:
            table = value["$records"].get("$table", value["$records"])
            return [dict(zip(table["columns"], decoded(row), strict=True)) for row in table["rows"]]
        if "$object" in value:
            return SimpleNamespace(**decoded(value["$object"]))
        if "$repeat" in value:
            entry, n = value["$repeat"]
            return [decoded(entry)] * n
        if "$range" in value:
            return list(range(*value["$range"]))
        return {key: decoded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [decoded(entry) for entry in value]
    return FLOATS.get(value, value) if isinstance(value, str) else value


def call(function: Any, args: Any) -> Any:
    args = decoded(args)
    return function(*args) if isinstance(args, list) else function(*args.pop("*", ()), **args)


def found(name: str) -> Any:
    module, _, name = name.partition(".")
    return getattr({"online": online, "gate": lightning_rank.gate}[module], name)


def outcome(case: dict[str, Any]) -> Any:
    names = [name for name in case["call"].split("|") if hasattr(online, name.partition(".")[2]) or name.startswith("gate")]
    function = found(names[0])
    if "steps" not in case:
        return call(function, case["args"])

    def new(steps: list[Any]) -> Any:
        made = call(function, case["args"])
        for method, args in steps:
            call(getattr(made, method), args)
        return made

    holder = reduce(or_, map(new, case["shards"])) if "shards" in case else call(function, case["args"])
    result = None
    for method, args in case["steps"]:
        result = call(getattr(holder, method), args)
    return result


def at(result: Any, path: str) -> Any:
    if path == ".":
        return result
    for key in path.split("."):
        result = result[key] if isinstance(result, dict) else getattr(result, key)
    return result


def check(actual: Any, expected: Any, rtol: float, atol: float, where: str) -> None:
    if isinstance(expected, dict) and "length" in expected:
        assert len(actual) == expected["length"], where
    elif isinstance(expected, dict):
        assert dict(actual).keys() == expected.keys(), where
        for key, entry in expected.items():
            check(actual[key], entry, rtol, atol, f"{where}.{key}")
    elif isinstance(expected, bool):
        assert actual is expected, where
    elif isinstance(expected, str) or (isinstance(expected, list) and isinstance(expected[0], str)):
        assert (list(actual) if isinstance(expected, list) else actual) == expected, where
    else:
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol, err_msg=where)


def test_cases_are_many():
    assert len(CASES) == 59


@pytest.mark.parametrize("case", CASES)
def test_golden(case):
    expected = decoded(case["expected"])
    if isinstance(expected, dict) and "raises" in expected:
        with pytest.raises(ValueError, match=r"must|has no") as error:
            outcome(case)
        assert any(word in str(error.value) for word in expected.get("mentions", [""]))
        return
    # A warning of numpy is an error under the settings of pytest.
    result = outcome(case)
    tol = case["tol"]
    rtol, atol = (tol["rel"], tol["abs"]) if isinstance(tol, dict) else (tol, tol)
    for path, value in expected.items():
        check(at(result, path), value, rtol, atol, path)
