"""The composite score: what is refused, its interval, and its form relative to a baseline."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_rank.online import composite_score, relative_score

WEIGHTS = {"ndcg": 0.5, "ctr": 0.3, "csat": 0.2}
VALUES = {"ndcg": 0.78, "ctr": 0.35, "csat": 0.8}


@pytest.mark.parametrize(
    ("values", "weights", "options", "message"),
    [
        (VALUES, {**WEIGHTS, "csat": 0.3}, {}, "must sum to 1, got 1.1"),
        (VALUES, {"ndcg": 1.2, "ctr": -0.4, "csat": 0.2}, {}, "at least 0"),
        (VALUES, {}, {}, "must be a mapping"),
        ({"ndcg": 0.78, "ctr": 0.35}, WEIGHTS, {}, "'csat' is missing"),
        ({**VALUES, "mrr": 0.5}, WEIGHTS, {}, "'mrr'"),
        ({**VALUES, "csat": 4.2}, WEIGHTS, {}, r"'csat' must be in \[0, 1\].*scales"),
        ({**VALUES, "csat": 5.5}, WEIGHTS, {"scales": {"csat": (1, 5)}}, r"must be in \[1, 5\]"),
        ({**VALUES, "ctr": math.nan}, WEIGHTS, {}, "ctr.*finite number"),
        (VALUES, WEIGHTS, {"scales": {"csta": (1, 5)}}, "'csta'"),
        (VALUES, WEIGHTS, {"scales": {"csat": (5, 1)}}, "above 5"),
        (VALUES, WEIGHTS, {"variances": {"ndcg": 0.1, "ctr": 0.1}}, "'csat' is missing"),
        (VALUES, WEIGHTS, {"variances": {"ndcg": 0.1, "ctr": 0.1, "csat": -1}}, "at least 0"),
        (VALUES, WEIGHTS, {"alpha": 5}, "Not per cent"),
    ],
)
def test_bad_input_is_refused(values, weights, options, message):
    with pytest.raises(ValueError, match=message):
        composite_score(values, weights, **options)


def test_a_scale_divides_the_variance_by_its_square():
    raw = composite_score({"csat": 4.2}, {"csat": 1}, scales={"csat": (1, 5)}, variances={"csat": 0.16})
    mapped = composite_score({"csat": 0.8}, {"csat": 1}, variances={"csat": 0.01})
    np.testing.assert_allclose([raw.score, raw.low, raw.high], [mapped.score, mapped.low, mapped.high], rtol=1e-12)


def test_without_variances_the_ends_are_undefined_and_not_shown():
    result = composite_score(VALUES, WEIGHTS)
    assert math.isnan(result.low)
    assert math.isnan(result.high)
    assert "nan" not in str(result)
    assert result.to_dict()["contributions"] == pytest.approx({"ndcg": 0.39, "ctr": 0.105, "csat": 0.16})


@given(st.lists(st.floats(0, 1), min_size=3, max_size=3))
def test_score_is_between_the_smallest_and_the_largest_part(parts):
    score = composite_score(dict(zip(WEIGHTS, parts, strict=True)), WEIGHTS).score
    assert min(parts) - 1e-12 <= score <= max(parts) + 1e-12


@given(st.floats(0.01, 1000), st.floats(0.5, 2))
def test_relative_score_does_not_depend_on_the_unit_of_a_part(unit, value):
    baseline = {"ndcg": 0.7, "ctr": 0.3, "csat": 1.2}
    values = {"ndcg": 0.71, "ctr": 0.33, "csat": value}
    variances = {"ndcg": 1e-4, "ctr": 1e-5, "csat": 1e-3}
    plain = relative_score(values, baseline, WEIGHTS, variances=variances, baseline_variances=variances)
    scaled = relative_score(
        {**values, "csat": value * unit},
        {**baseline, "csat": 1.2 * unit},
        WEIGHTS,
        variances={**variances, "csat": 1e-3 * unit**2},
        baseline_variances={**variances, "csat": 1e-3 * unit**2},
    )
    np.testing.assert_allclose([scaled.score, scaled.low], [plain.score, plain.low], rtol=1e-9, atol=1e-12)


def test_relative_interval_is_that_of_the_delta_method():
    # One part: d(b / a) = db / a - b da / a²; sqrt(1e-4 / .25 + (.55 / .25)² · 2e-4) · 1.96 on either side of .1.
    result = relative_score({"x": 0.55}, {"x": 0.5}, {"x": 1}, variances={"x": 1e-4}, baseline_variances={"x": 2e-4})
    se = math.sqrt(1e-4 / 0.25 + (0.55 / 0.25) ** 2 * 2e-4)
    np.testing.assert_allclose([result.score, result.high], [0.1, 0.1 + 1.959963984540054 * se], rtol=1e-12)


def test_relative_score_over_nothing_is_refused():
    with pytest.raises(ValueError, match="above 0"):
        relative_score({"x": 0.5}, {"x": 0.0}, {"x": 1})
