"""The vocabulary: options are checked when given, gains never overflow, presets say what each tool means."""

from __future__ import annotations

import math

import pytest
import torch

from lightning_rank.conventions import (
    PRESETS,
    check_aggregation,
    check_choice,
    check_gain,
    check_number,
    check_top_k,
    discount,
    gains_of,
    preset,
    unknown,
    value_dtype,
    values_are_free,
)
from lightning_rank.metrics import NAMED_CLASSES
from tests.conftest import assert_close

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("top_k", [None, 1, 10**9, torch.tensor([3]).shape[0]])
def test_cutoffs(top_k):
    check_top_k(top_k)


@pytest.mark.parametrize("top_k", [0, -1, 2.5, 2.0, True, False, "10", NAN, [5]])
def test_impossible_cutoffs(top_k):
    with pytest.raises(ValueError, match="`top_k` must be a whole number >= 1"):
        check_top_k(top_k)


@pytest.mark.parametrize("gain", ["exp2", "linear", [0, 1, 3], (0.0,), torch.square])
def test_gains(gain):
    check_gain(gain)


@pytest.mark.parametrize("gain", ["exp", "", [], [0, NAN], [0, INF], ["a"], None, 2])
def test_impossible_gains(gain):
    with pytest.raises(ValueError, match="`gain` must be"):
        check_gain(gain)


@pytest.mark.parametrize("value", [0, -1, NAN, INF, True, "1", None])
def test_impossible_numbers(value):
    with pytest.raises(ValueError, match="`temperature` must be a finite number above 0, got"):
        check_number("temperature", value, above=0)
    check_number("temperature", 1e-3, above=0)


def test_bounds_of_a_number_are_named():
    with pytest.raises(ValueError, match="`p` must be a finite number above 0 and below 1, got 1"):
        check_number("p", 1, above=0, below=1)


def test_choices():
    check_choice("ties", "stable", ("average", "stable"))
    for value in ("random", None, 3, ["stable"]):
        with pytest.raises(ValueError, match="`ties` must be one of 'average', 'stable'"):
            check_choice("ties", value, ("average", "stable"))


def test_aggregations():
    check_aggregation("median")
    check_aggregation(torch.mean)
    with pytest.raises(ValueError, match="`aggregation` must be one of 'mean', 'median', 'min', 'max'"):
        check_aggregation("average")


def test_unknown_names_the_nearest():
    error = unknown("metric", "ndgc", ("ndcg", "map", "mrr"))
    assert str(error) == "Unknown metric 'ndgc'. Did you mean 'ndcg'? Known: ndcg, map, mrr."
    assert "Did you mean" not in str(unknown("metric", "zzz", ("ndcg",)))


# Gains and discounts --------------------------------------------------------------------------------------------------


def test_discount():
    assert_close(discount(torch.tensor([1.0, 2.0, 3.0, 7.0], dtype=torch.float64)), [1, 1 / math.log2(3), 1 / 2, 1 / 3])


def test_values_of_gains():
    grade = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    assert gains_of(grade, "exp2").tolist() == [0, 1, 3, 7]
    assert gains_of(grade, "linear").tolist() == [0, 1, 2, 3]
    assert gains_of(grade, [0, 5, 6, 100]).tolist() == [0, 5, 6, 100]
    assert gains_of(grade, torch.square).tolist() == [0, 1, 4, 9]


def test_scaled_gains_keep_their_quotients_and_do_not_overflow():
    grade, top = torch.tensor([2000.0, 1999.0, 0.0], dtype=torch.float64), torch.tensor(2000.0, dtype=torch.float64)
    assert gains_of(grade, "exp2", top).tolist() == [1.0, 0.5, 0.0]


def test_grade_beyond_a_table_is_an_error_where_looking_is_free_and_nan_elsewhere():
    grade = torch.tensor([1.0, 2.0, 0.5])
    with pytest.raises(ValueError, match=r"table for the grades 0\.\.1, got the grade 2"):
        gains_of(grade, [0, 1])
    gains = torch.func.vmap(lambda grade: gains_of(grade, [0.0, 1.0]))(grade[None])
    assert_close(gains, [[1.0, NAN, NAN]])


def test_looking_at_values_is_free_on_the_cpu_in_eager_mode_only():
    tensor = torch.ones(2)
    assert values_are_free(tensor)
    assert not values_are_free(tensor.to("meta"))
    seen = []
    torch.func.vmap(lambda x: seen.append(values_are_free(x)) or x)(tensor)
    assert seen == [False]


def test_dtype_of_values():
    assert value_dtype(torch.ones(1, dtype=torch.float64)) == torch.float64
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64):
        assert value_dtype(torch.ones(1, dtype=dtype)) == torch.float32


# Presets --------------------------------------------------------------------------------------------------------------

# Tool: NDCG's gain, MAP's denominator, ties, empty queries; None where the tool does not have the metric.
TOOLS = {
    "trec_eval": ("linear", "relevant", "stable", "neg"),
    "sklearn": ("linear", None, "average", "neg"),
    "torchmetrics": ("linear", "hits", "average", "neg"),
    "lightgbm": ("exp2", "cutoff", "stable", "pos"),
    "xgboost": ("exp2", "cutoff", "stable", "pos"),
    "catboost": ("linear", "cutoff", "pessimistic", "pos"),
    "tf_ranking": ("exp2", "relevant", "average", "neg"),
    "rax": ("exp2", "relevant", "stable", "neg"),
    "kaggle": (None, "cutoff", "stable", "neg"),
    "msmarco": (None, None, "stable", "neg"),
    "beir": ("linear", "relevant", "stable", "neg"),
}


def test_every_preset_is_tested():
    assert PRESETS.keys() == TOOLS.keys()


@pytest.mark.parametrize("tool", TOOLS)
def test_preset_sets_the_options_of_a_metric(tool):
    gain, denominator, ties, empty = TOOLS[tool]
    ndcg = repr(NAMED_CLASSES["ndcg"](10, convention=tool))
    assert f"ties='{ties}'" in ndcg
    assert f"empty_target_action='{empty}'" in ndcg
    assert f"gain='{gain or 'exp2'}'" in ndcg
    assert f"denominator='{denominator or 'relevant'}'" in repr(NAMED_CLASSES["map"](10, convention=tool))


def test_catboost_has_a_policy_for_empty_queries_of_its_own_for_each_metric():
    policies = {name: preset("catboost", name)["empty_target_action"] for name in ("ndcg", "recall", "map", "mrr")}
    assert policies == {"ndcg": "pos", "recall": "pos", "map": "neg", "mrr": "neg"}


def test_what_is_given_beside_a_preset_wins():
    ndcg = NAMED_CLASSES["ndcg"](convention="lightgbm", gain="linear", ties="average", empty_target_action="skip")
    assert repr(ndcg).startswith("NDCG(top_k=None, gain='linear', empty_target_action='skip', ties='average'")


@pytest.mark.parametrize(
    ("tool", "name", "value"),
    [
        ("trec_eval", "ndcg", 0.370331),
        ("sklearn", "ndcg", 0.267634),
        ("lightgbm", "ndcg", 0.371118),
        ("catboost", "ndcg", 0.121507),
        ("tf_ranking", "ndcg", 0.199923),
        ("torchmetrics", "map", 0.666667),
        ("catboost", "map", 0.125),
        ("msmarco", "mrr", 0.5),
    ],
)
def test_value_under_a_preset(tool, name, value):
    metric = NAMED_CLASSES[name](4, convention=tool)
    metric.update(torch.tensor([[0.8, 0.8, 0.6, 0.4, 0.4, 0.4, 0.2]]), torch.tensor([[0, 1, 0, 3, 0, 1, 2]]))
    assert metric.compute().item() == pytest.approx(value, abs=1e-6)


def test_unknown_preset_names_the_nearest():
    with pytest.raises(ValueError, match=r"Unknown convention 'lightbgm'.*Did you mean 'lightgbm'"):
        NAMED_CLASSES["ndcg"](convention="lightbgm")
    with pytest.raises(ValueError, match="Unknown convention"):
        preset("excel", "ndcg")
