"""Golden values of `lightning_rank.stats`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from lightning_rank import stats
from tests.conftest import golden

FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
CASES = [
    # The duration of a test needs no data, so that it is here.
    pytest.param(case, id=case["id"])
    for case in golden("online")["cases"]
    if case["call"].startswith("stats.") or case["call"] == "online.duration"
]


def decoded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: decoded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [decoded(entry) for entry in value]
    return FLOATS.get(value, value) if isinstance(value, str) else value


def call(case: dict[str, Any]) -> Any:
    function = getattr(stats, case["call"].partition(".")[2])
    args = decoded(case["args"])
    if isinstance(args, list):
        return function(*args)
    return function(*args.pop("*", ()), **args)


def test_cases_are_many():
    assert len(CASES) == 64


@pytest.mark.parametrize("case", CASES)
def test_golden(case):
    expected = decoded(case["expected"])
    if isinstance(expected, dict) and "raises" in expected:
        assert expected["raises"] == "ValueError"
        with pytest.raises(ValueError, match="must"):
            call(case)
        return
    # A warning of numpy is an error under the settings of pytest.
    result = call(case)
    tol = case["tol"]
    rtol, atol = (tol["rel"], tol["abs"]) if isinstance(tol, dict) else (tol, tol)
    for field, value in expected.items() if isinstance(expected, dict) else [(".", expected)]:
        actual = result if field == "." else getattr(result, field)
        if isinstance(value, bool):
            assert actual is value, field
        else:
            np.testing.assert_allclose(actual, value, rtol=rtol, atol=atol, err_msg=field)
