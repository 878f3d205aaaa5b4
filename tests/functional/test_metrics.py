"""Metric functions: golden values, and the laws that every metric of the table obeys."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from itertools import permutations, product
from typing import Any
from unittest import mock

import pytest
import sklearn.metrics
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from lightning_rank import functional, lists
from lightning_rank.conventions import DENOMINATORS
from lightning_rank.entries import resolve, values_of
from lightning_rank.functional.metrics import METRICS, MetricSpec, find_metric
from lightning_rank.functional.ranking import rank, rank_in_blocks
from lightning_rank.metrics import RankingMetrics
from tests import reference
from tests.conftest import (
    CUTOFFS,
    GRADES,
    LAYOUTS,
    RTOL,
    SCORES,
    SEEDS,
    TIES,
    assert_close,
    batches,
    cutoffs_of,
    golden,
    ideal_of,
    lay_out,
    options_of,
    queries,
    reordered,
    with_items,
)

NAN, INF = math.nan, math.inf
every_metric = pytest.mark.parametrize("spec", METRICS.values(), ids=METRICS)


def function_of(spec: MetricSpec) -> Any:
    return getattr(functional, spec.function.__name__)


def values(
    spec: MetricSpec, batch: list, layout: str = "padded", *, dtypes: Any = None, seed: int = 0, **kwargs: Any
) -> Tensor:
    return function_of(spec)(**lay_out(batch, layout, dtypes=dtypes, seed=seed), **kwargs)


# Golden values --------------------------------------------------------------------------------------------------------

CASES = [case for case in golden("metrics")["cases"] if case["metric"] in METRICS]
IDEAL_CASES = [case for case in golden("metrics")["ideal_cases"] if case["metric"] in METRICS]


def by_id(case: dict) -> str:
    return case["id"]


def batch_of(case: dict) -> list:
    return [{name: [float(x) for x in query[name]] for name in ("preds", "target")} for query in case["queries"]]


def own_params(case: dict) -> dict[str, Any]:
    return {name: value for name, value in case["params"].items() if name != "empty_target_action"}


def expected_values(case: dict) -> list[float]:
    """NaN in place of what an empty query counts."""
    least = case["params"].get("min_relevance", 1)
    judged = [[max(grade, 0) for grade in query.get("ideal", query["target"])] for query in case["queries"]]
    empty = [reference.is_empty(case["metric"], reference.Judged(grades, 0), least) for grades in judged]
    if case["metric"] == "auc":
        empty = [len({grade >= least for grade in query["target"]}) < 2 for query in case["queries"]]
    return [NAN if is_empty else value for is_empty, value in zip(empty, case["per_query"], strict=True)]


@pytest.mark.parametrize("case", [case for case in CASES if "raises" not in case], ids=by_id)
def test_golden_values(case):
    batch = batch_of(case)
    layouts = LAYOUTS if len(batch) > 1 else (*LAYOUTS, "single")
    for name, layout in product(case.get("dtypes", ["float32", "float64"]), layouts):
        dtype = getattr(torch, name)
        target = getattr(torch, case.get("target_dtype", "float64" if name == "float64" else "float32"))
        dtypes = {"preds": dtype, "target": target}
        value = values(METRICS[case["metric"]], batch, layout, dtypes=dtypes, seed=len(batch), **own_params(case))
        assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert_close(value, expected_values(case), rtol=RTOL.get(dtype, 1e-5), where=(layout, dtype))


@pytest.mark.parametrize("case", IDEAL_CASES, ids=by_id)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_golden_values_with_ideal(case, dtype):
    ideal = ideal_of([query["ideal"] for query in case["queries"]], dtype=dtype, seed=2)
    dtypes = {"preds": dtype, "target": dtype}
    value = values(METRICS[case["metric"]], batch_of(case), dtypes=dtypes, seed=1, **ideal, **own_params(case))
    assert_close(value, expected_values(case), rtol=RTOL.get(dtype, 1e-5))


@pytest.mark.parametrize(
    "case", [case for case in (*CASES, *IDEAL_CASES) if not {"raises", "dtypes"} & case.keys()], ids=by_id
)
def test_reference_agrees_with_golden_values(case):
    for query, expected in zip(case["queries"], expected_values(case), strict=True):
        scores = [float(x) for x in query["preds"]]
        if case["params"].get("ties", "average") == "average" and reference.num_orders(scores) > 1000:
            continue
        value = reference.metric_value(
            case["metric"], scores, query["target"], ideal=query.get("ideal"), **own_params(case)
        )
        assert value == pytest.approx(expected, rel=1e-12, nan_ok=True)


# Laws -----------------------------------------------------------------------------------------------------------------


@every_metric
@given(data=st.data())
def test_equals_reference(spec, data):
    batch = data.draw(batches(max_queries=3))
    layout, ties, top_k = data.draw(st.sampled_from(LAYOUTS)), data.draw(st.sampled_from(TIES)), data.draw(cutoffs_of(spec))
    options = data.draw(options_of(spec))
    value = values(spec, batch, layout, seed=data.draw(SEEDS), top_k=top_k, ties=ties, **options)
    known = with_items(batch) if layout == "indexes" else batch
    expected = [
        reference.metric_value(spec.name, query["preds"], query["target"], top_k, ties=ties, **options) for query in known
    ]
    assert_close(value, expected)


@every_metric
@pytest.mark.parametrize("much_longer", [1, lists.MUCH_LONGER], ids=["partial sort", "full sort"])
@given(data=st.data())
def test_cutoffs_share_one_ranking(spec, much_longer, data):
    batch = data.draw(batches(max_queries=4, max_items=12))
    layout, ties, options = (
        data.draw(st.sampled_from(LAYOUTS)),
        data.draw(st.sampled_from(TIES)),
        data.draw(options_of(spec)),
    )
    cutoffs = sorted(data.draw(st.sets(st.integers(1, 13), min_size=1, max_size=4))) if spec.takes_top_k else [None]
    arguments = lay_out(batch, layout, seed=data.draw(SEEDS))
    entries, _, _ = resolve([(spec, top_k) for top_k in cutoffs], options, METRICS)
    with mock.patch.object(lists, "MUCH_LONGER", much_longer):
        together = values_of(entries, rank(**arguments, ties=ties, depth=data.draw(st.sampled_from((cutoffs[-1], None)))))
    known = with_items(batch) if layout == "indexes" else batch
    for top_k, value in zip(cutoffs, together, strict=True):
        expected = [
            reference.metric_value(spec.name, query["preds"], query["target"], top_k, ties=ties, **options)
            for query in known
        ]
        assert_close(value, expected)


@given(data=st.data())
def test_blocks_change_nothing(data):
    batch = data.draw(batches(max_queries=6, max_items=5, judged=st.booleans()))
    layout, depth = data.draw(st.sampled_from(LAYOUTS)), data.draw(st.sampled_from((None, 2)))
    arguments = lay_out(batch, layout, dtypes={"judged": torch.bool}, seed=data.draw(SEEDS))
    if layout == "padded" and data.draw(st.booleans()):
        arguments |= ideal_of([query["target"] + [2.0] for query in batch])
    elif layout == "offsets":
        arguments["indexes"] = torch.arange(len(batch)) + 7
    entries, _, _ = resolve([(spec, depth if spec.takes_top_k else None) for spec in METRICS.values()], {}, METRICS)
    entries = [entry for entry in entries if depth is None or entry.top_k]
    with mock.patch.object(lists, "MUCH_LONGER", 1):
        whole = rank(**arguments, depth=depth)
        blocks = list(rank_in_blocks(**arguments, depth=depth, max_items=data.draw(st.integers(1, 12))))
    expected = torch.stack(values_of(entries, whole))
    assert_close(torch.cat([torch.stack(values_of(entries, block)) for block in blocks], dim=1), expected)
    if whole.lists.ids is not None:
        assert torch.equal(torch.cat([block.lists.ids for block in blocks]), whole.lists.ids)


@every_metric
@given(data=st.data())
def test_equals_reference_with_ideal(spec, data):
    batch = data.draw(batches(max_queries=3, max_items=5))
    missed = [data.draw(st.lists(GRADES, max_size=4)) for _ in batch]
    judged = [query["target"] + grades for query, grades in zip(batch, missed, strict=True)]
    seed, top_k, options = data.draw(SEEDS), data.draw(cutoffs_of(spec)), data.draw(options_of(spec))
    value = values(spec, batch, seed=seed, top_k=top_k, **ideal_of(judged, seed=seed), **options)
    expected = [
        reference.metric_value(spec.name, query["preds"], query["target"], top_k, ideal=grades, **options)
        for query, grades in zip(batch, judged, strict=True)
    ]
    assert_close(value, expected)


@every_metric
@given(data=st.data())
def test_layouts_agree(spec, data):
    dtype = data.draw(st.sampled_from((torch.float64, torch.float32, torch.bfloat16, torch.int32)))
    scores = st.integers(-4, 4) if dtype == torch.int32 else SCORES
    batch = data.draw(batches(scores=scores, max_items=15, min_items=1))
    dtypes = {"preds": dtype, "target": torch.float32}
    conventions = {
        "top_k": data.draw(cutoffs_of(spec)),
        "ties": data.draw(st.sampled_from(TIES)),
        **data.draw(options_of(spec)),
    }
    padded, *others = (
        values(spec, batch, layout, dtypes=dtypes, seed=data.draw(SEEDS), **conventions) for layout in LAYOUTS
    )
    for other in others:
        assert_close(other, padded, rtol=RTOL.get(dtype, 1e-6))


@every_metric
@given(data=st.data())
def test_batch_companions_do_not_matter(spec, data):
    layout = data.draw(st.sampled_from(LAYOUTS))
    # A grade of 128 beside one of 1: 2^128 must not swallow a companion's gain.
    grades = st.sampled_from((0.0, 1.0, 2.0, 30.0, 128.0))
    batch = data.draw(batches(grades=grades, min_items=1))
    top_k, seed = data.draw(cutoffs_of(spec)), data.draw(SEEDS)
    options = {"max_grade": 128} if "max_grade" in spec.options else {}
    together = values(spec, batch, layout, top_k=top_k, seed=seed, **options)
    alone = [values(spec, [query], layout, top_k=top_k, seed=seed, **options) for query in batch]
    assert_close(together, torch.cat(alone))


@every_metric
@given(data=st.data())
def test_item_order_does_not_matter(spec, data):
    layout = data.draw(st.sampled_from(LAYOUTS))
    ties = data.draw(st.sampled_from(("average", "optimistic", "pessimistic")))
    query = data.draw(queries(max_items=12, min_items=1))
    order = data.draw(st.permutations(range(len(query["preds"]))))
    top_k, options = data.draw(cutoffs_of(spec)), data.draw(options_of(spec))
    value, other = (
        values(spec, [items], layout, top_k=top_k, ties=ties, **options) for items in (query, reordered(query, order))
    )
    assert_close(value, other)


@every_metric
@given(data=st.data())
def test_increasing_transform_of_scores_changes_nothing(spec, data):
    ties = data.draw(st.sampled_from(TIES))
    query = data.draw(queries(max_items=12))
    levels = sorted(set(query["preds"]))
    steps = data.draw(st.lists(st.floats(1e-3, 1e6), min_size=len(levels), max_size=len(levels)))
    start = data.draw(st.floats(-1e6, 1e6))
    moved = {level: start + sum(steps[: i + 1]) for i, level in enumerate(levels)}
    other = query | {"preds": [moved[score] for score in query["preds"]]}
    top_k = data.draw(cutoffs_of(spec))
    assert_close(values(spec, [other], top_k=top_k, ties=ties), values(spec, [query], top_k=top_k, ties=ties), rtol=0)


@pytest.mark.parametrize("spec", [s for s in METRICS.values() if s.grows_with_k], ids=lambda s: s.name)
@given(data=st.data())
def test_value_does_not_fall_as_cutoff_grows(spec, data):
    batch = data.draw(batches(max_items=8))
    ties = data.draw(st.sampled_from(TIES))
    rising = torch.stack([values(spec, batch, top_k=k, ties=ties) for k in (*range(1, 9), None)])
    assert (rising.diff(dim=0).nan_to_num() >= -1e-12).all()


@pytest.mark.parametrize("spec", [s for s in METRICS.values() if s.perfect_is_one], ids=lambda s: s.name)
@given(batch=batches(max_items=10), layout=st.sampled_from(LAYOUTS))
def test_perfect_order_is_one(spec, batch, layout):
    perfect = [{"preds": query["target"], "target": query["target"]} for query in with_items(batch)]
    assume(perfect)
    expected = [reference.metric_value(spec.name, query["preds"], query["target"], ties="stable") for query in perfect]
    assert_close(values(spec, perfect, layout), [NAN if math.isnan(value) else 1.0 for value in expected])


@pytest.mark.parametrize("spec", [s for s in METRICS.values() if s.bounded], ids=lambda s: s.name)
@given(data=st.data())
def test_bounded_values(spec, data):
    batch = data.draw(batches(max_items=12))
    value = values(
        spec, batch, top_k=data.draw(cutoffs_of(spec)), ties=data.draw(st.sampled_from(TIES)), **data.draw(options_of(spec))
    )
    assert ((value.isnan()) | ((value >= 0) & (value <= 1 + 1e-12))).all()


@every_metric
@given(data=st.data())
def test_constant_scorer_is_mean_over_permutations(spec, data):
    grades = data.draw(st.lists(GRADES, min_size=1, max_size=5))
    top_k, options = data.draw(cutoffs_of(spec)), data.draw(options_of(spec))
    all_orders = [{"preds": list(range(len(grades))), "target": list(p)} for p in permutations(grades)]
    constant = [{"preds": [0.25] * len(grades), "target": grades}]
    expected = values(spec, all_orders, top_k=top_k, **options).mean(0, keepdim=True)
    assert_close(values(spec, constant, top_k=top_k, **options), expected)


@every_metric
@given(data=st.data())
def test_equals_reference_with_items_that_nobody_judged(spec, data):
    layout = data.draw(st.sampled_from(LAYOUTS))
    batch = data.draw(batches(max_queries=3, max_items=5, judged=st.booleans()))
    top_k, options = data.draw(cutoffs_of(spec)), data.draw(options_of(spec))
    value = values(spec, batch, layout, dtypes={"judged": torch.bool}, top_k=top_k, seed=data.draw(SEEDS), **options)
    expected = [
        reference.metric_value(spec.name, query["preds"], query["target"], top_k, known=query["judged"], **options)
        for query in (with_items(batch) if layout == "indexes" else batch)
    ]
    assert_close(value, expected)


@given(scores=st.lists(SCORES, min_size=1, max_size=12), data=st.data())
def test_average_precision_is_reciprocal_rank_where_one_item_is_relevant(scores, data):
    target = [0] * len(scores)
    target[data.draw(st.integers(0, len(scores) - 1))] = 1
    preds, target = torch.tensor(scores, dtype=torch.float64), torch.tensor(target)
    ties = data.draw(st.sampled_from(TIES))
    assert_close(
        functional.average_precision(preds, target, ties=ties), functional.reciprocal_rank(preds, target, ties=ties)
    )


@every_metric
@pytest.mark.parametrize("shape", [(0, 5), (0, 0), (3, 0)])
def test_nothing_in_is_nothing_out(spec, shape):
    function, empty = function_of(spec), torch.empty(shape)
    expected = torch.full(shape[:1], NAN)
    assert_close(function(empty, empty), expected)
    assert_close(function(empty, empty, mask=empty.bool()), expected)
    items = torch.empty(0)
    assert_close(function(items, items, offsets=torch.zeros(shape[0] + 1, dtype=torch.long)), expected)
    assert_close(function(items, items, indexes=items.long()), torch.empty(0))


@every_metric
def test_fully_masked_row_is_empty_but_zero_where_relevant_items_were_missed(spec):
    preds, target = torch.tensor([[2.0, 1.0], [2.0, 1.0]]), torch.tensor([[1, 0], [1, 0]])
    mask = torch.tensor([[True, True], [False, False]])
    value = function_of(spec)(preds, target, mask=mask)
    assert value.isnan().tolist() == [False, True]
    value = function_of(spec)(preds, target, mask=mask, ideal=torch.tensor([[1, 0, 0], [1, 0, 0]]))
    # AUC compares items of the list, and there are none.
    assert value[1].isnan() if spec.name == "auc" else value[1] == 0


# Long tied lists, in exact arithmetic ---------------------------------------------------------------------------------


def exact_constant_scorer(name: str, n: int, r: int, k: int) -> Fraction:
    """n tied items of which r have grade 1, from the binomials, which exceed float64."""
    if name in ("precision", "recall"):
        return Fraction(r, n) if name == "precision" else Fraction(k, n)
    if name == "hit_rate":
        return 1 - Fraction(math.comb(n - r, k), math.comb(n, k))
    first = (Fraction(math.comb(n - j, r - 1), math.comb(n, r) * j) for j in range(1, min(n - r + 1, k) + 1))
    return sum(first, Fraction(0))


def exact_average_precision_by_hits(n: int, r: int, k: int) -> Fraction:
    total = Fraction(0)
    for hits in range(max(1, k - (n - r)), min(r, k) + 1):
        chance = Fraction(math.comb(r, hits) * math.comb(n - r, k - hits), math.comb(n, k))
        pairs = Fraction(hits - 1, k - 1) if k > 1 else Fraction(0)
        total += chance * sum(Fraction(hits, k) * (1 + (j - 1) * pairs) / j for j in range(1, k + 1)) / hits
    return total


def exact_bpref(n: int, r: int) -> Fraction:
    others = n - r
    return Fraction(1, others + 1) * sum(1 - Fraction(min(j, r), min(others, r)) for j in range(others + 1))


@pytest.mark.parametrize("layout", ["padded", "offsets"])
@pytest.mark.parametrize(("n", "r", "k"), [(1200, 600, 10), (1200, 1, 700), (1500, 1499, 40), (60, 7, 60)])
def test_long_tied_list(layout, n, r, k):
    tied = {"preds": [0.5] * n, "target": [1.0] * r + [0.0] * (n - r)}
    batch = [tied, {"preds": [2.0, 1.0, 1.0], "target": [0.0, 1.0, 0.0]}]
    for name in ("precision", "recall", "hit_rate", "mrr"):
        assert_close(values(METRICS[name], batch, layout, top_k=k)[0], float(exact_constant_scorer(name, n, r, k)))
    by_hits = values(METRICS["map"], batch, layout, top_k=k, denominator="hits")[0]
    assert_close(by_hits, float(exact_average_precision_by_hits(n, r, k)))
    assert_close(values(METRICS["bpref"], batch, layout)[0], float(exact_bpref(n, r)))
    assert_close(values(METRICS["auc"], batch, layout)[0], 0.5)


@pytest.mark.parametrize("layout", ["padded", "offsets"])
@pytest.mark.parametrize("top_k", [None, 20])
def test_long_tied_list_of_one_grade_under_err(layout, top_k):
    batch = [{"preds": [2.0, 1.0], "target": [1.0, 0.0]}, {"preds": [0.5] * 300, "target": [2.0] * 300}]
    stops = 3 / 16
    expected = sum((1 - stops) ** (rank - 1) * stops / rank for rank in range(1, (top_k or 300) + 1))
    assert_close(values(METRICS["err"], batch, layout, top_k=top_k)[1], expected)


# Precision of the numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["padded", "offsets"])
@pytest.mark.parametrize("distinct", [1, 7, 100_000], ids=["tied", "long ties", "untied"])
@every_metric
def test_float32_is_enough_for_long_lists(spec, distinct, layout):
    rng = random.Random(0)
    n = 500 if spec.name == "err" else 20_000  # ERR takes a step for each tied item
    scores = list(range(n)) if distinct > n else [rng.randrange(distinct) for _ in range(n)]
    rng.shuffle(scores)
    batch = [
        {"preds": [1.0, 0.0], "target": [0.0, 1.0]},
        {"preds": scores, "target": rng.choices([0, 1, 2, 4], weights=[90, 5, 4, 1], k=n)},
    ]
    every = [{"denominator": d} for d in DENOMINATORS] if "denominator" in spec.options else [{}]
    for options, top_k in product(every, (None, 3, 700) if spec.takes_top_k else (None,)):
        single = values(spec, batch, layout, dtypes={"preds": torch.float32}, top_k=top_k, **options)
        assert single.dtype == torch.float32
        assert_close(single, values(spec, batch, layout, top_k=top_k, **options), rtol=2e-6)


def test_half_precision_scores_are_not_lowered_further_and_float64_scores_not_at_all():
    preds = torch.tensor([[20.00000001, 20.0]], dtype=torch.float64)
    assert functional.reciprocal_rank(preds, torch.tensor([[0, 1]])).item() == 0.5
    assert functional.reciprocal_rank(preds.float(), torch.tensor([[0, 1]])).item() == 0.75


@pytest.mark.parametrize("layout", LAYOUTS)
def test_large_integer_scores_do_not_tie(layout):
    batch = [{"preds": [2**53, 2**53 + 1], "target": [0, 1]}]
    assert values(METRICS["mrr"], batch, layout, dtypes={"preds": torch.int64}).item() == 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_signed_zeros_tie(layout, dtype):
    value = values(METRICS["mrr"], [{"preds": [0.0, -0.0], "target": [0.0, 1.0]}], layout, dtypes={"preds": dtype})
    assert_close(value, [0.75])


@pytest.mark.parametrize("target_dtype", [torch.int8, torch.uint8, torch.int64, torch.float16, torch.float32])
def test_large_grades_do_not_overflow(target_dtype):
    preds, target = torch.tensor([[1.0, 2.0]]), torch.tensor([[100, 1]], dtype=target_dtype)
    expected = reference.metric_value("ndcg", [1.0, 2.0], [100, 1])
    assert_close(functional.ndcg(preds, target), [expected], rtol=1e-6)


def test_gain_table():
    preds, target = torch.tensor([[3.0, 2.0, 1.0]], dtype=torch.float64), torch.tensor([[1, 2, 0]])
    value = functional.ndcg(preds, target, gain=[0, 1, 10])
    assert_close(value, [(1 + 10 / math.log2(3)) / (10 + 1 / math.log2(3))])
    with pytest.raises(ValueError, match=r"table for the grades 0\.\.1.*got the grade 2"):
        functional.ndcg(preds, target, gain=[0, 1])
    with pytest.raises(ValueError, match="table"):
        functional.dcg(preds, target + 0.5, gain=[0, 1, 10, 20])


def test_short_list_is_divided_by_cutoff():
    assert functional.precision(torch.tensor([0.5]), torch.tensor([1]), 4).item() == 0.25


# Independent implementations ------------------------------------------------------------------------------------------


@given(seed=SEEDS, top_k=CUTOFFS, decimals=st.sampled_from((0, 6)))
def test_ndcg_agrees_with_sklearn(seed, top_k, decimals):
    generator = torch.Generator().manual_seed(seed)
    preds = torch.randn(4, 8, generator=generator, dtype=torch.float64).round(decimals=decimals)
    target = torch.randint(0, 5, (4, 8), generator=generator)
    target[:, 0] += 1
    expected = [
        sklearn.metrics.ndcg_score(t[None].numpy(), p[None].numpy(), k=top_k) for p, t in zip(preds, target, strict=True)
    ]
    assert_close(functional.ndcg(preds, target, top_k, gain="linear"), expected)


@given(seed=SEEDS)
def test_average_precision_agrees_with_sklearn_where_nothing_is_tied(seed):
    generator = torch.Generator().manual_seed(seed)
    preds = torch.randn(4, 9, generator=generator, dtype=torch.float64)
    target = torch.randint(0, 2, (4, 9), generator=generator)
    target[:, 3] = 1
    value = functional.average_precision(preds, target)
    one_by_one = [sklearn.metrics.average_precision_score(t.numpy(), p.numpy()) for p, t in zip(preds, target, strict=True)]
    assert_close(value, one_by_one)
    assert_close(value.mean(), sklearn.metrics.label_ranking_average_precision_score(target.numpy(), preds.numpy()))


# Transforms -----------------------------------------------------------------------------------------------------------


def padded_stack(num: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    preds = torch.randn(num, 3, 6, generator=generator, dtype=torch.float64).round(decimals=0)
    target = torch.randint(0, 4, (num, 3, 6), generator=generator)
    return preds, target, torch.rand(num, 3, 6, generator=generator) > 0.3


@every_metric
@pytest.mark.parametrize("ties", TIES)
def test_vmap(spec, ties):
    stack = padded_stack(4)
    for top_k in (None, 2) if spec.takes_top_k else (None,):

        def function(preds: Tensor, target: Tensor, mask: Tensor, top_k: int | None = top_k) -> Tensor:
            return function_of(spec)(preds, target, top_k, mask=mask, ties=ties)

        one_by_one = torch.stack([function(*batch) for batch in zip(*stack, strict=True)])
        assert_close(torch.func.vmap(function)(*stack), one_by_one, where=f"top_k={top_k}")


@every_metric
def test_compile_in_one_graph(spec):
    torch.compiler.reset()
    compiled = torch.compile(function_of(spec), fullgraph=True, backend="eager")
    preds, target, mask = (tensor[0] for tensor in padded_stack(1))
    top_k = 3 if spec.takes_top_k else None
    assert_close(compiled(preds, target, top_k, mask=mask), function_of(spec)(preds, target, top_k, mask=mask))


# Bad input ------------------------------------------------------------------------------------------------------------

P, T = torch.tensor([[2.0, 1.0], [0.5, 0.1]]), torch.tensor([[1, 0], [0, 1]])
FLAT_P, FLAT_T = P.flatten(), T.flatten()
SHAPES = [
    ({"target": T[:, :1]}, "`target` must have the shape of `preds`"),
    ({"mask": torch.ones(2, dtype=torch.bool)}, "`mask` must have the shape"),
    ({"judged": torch.ones(2, 1, dtype=torch.bool)}, "`judged` must have the shape"),
    ({"preds": P[None], "target": T[None]}, r"\[query, item\], or flat"),
    ({"preds": P[0, 0], "target": T[0, 0]}, r"\[query, item\], or flat"),
    ({"indexes": torch.arange(3)}, "`indexes` is the id of each query"),
    ({"offsets": torch.tensor([0, 2, 4])}, "`offsets` belongs to flat"),
    ({"ideal": T[:1]}, r"`ideal` must be a tensor \[2"),
    ({"ideal_mask": T > 0}, "`ideal_mask` was given without `ideal`"),
    ({"ideal": T, "ideal_mask": torch.ones(2, 1, dtype=torch.bool)}, "must have the shape"),
]
FLAT_SHAPES = [
    ({"mask": torch.ones(4, dtype=torch.bool)}, "`mask` belongs to"),
    ({"indexes": torch.arange(3)}, "query id of each item"),
    ({"offsets": torch.tensor([1, 4])}, "start at 0"),
    ({"offsets": torch.tensor([0, 3])}, "number of items, 4"),
    ({"offsets": torch.tensor([0, 3, 2, 4])}, "never fall"),
    ({"offsets": torch.tensor([[0, 4]])}, "number of queries"),
    ({"offsets": torch.empty(0, dtype=torch.long)}, "number of queries"),
    ({"offsets": torch.tensor([0, 2, 4]), "indexes": torch.arange(4)}, r"id of each query, \[2\]"),
    ({"offsets": torch.tensor([0, 2, 4]), "ideal": T}, "`ideal` needs padded input"),
    ({"indexes": torch.tensor([0, 0, 1, 1]), "ideal": T}, "`ideal` needs padded input"),
]
TYPES = [
    ({"preds": [0.1]}, "`preds` must be a tensor, got list"),
    ({"target": [0.1]}, "`target` must be a tensor, got list"),
    ({"preds": P.to(torch.complex64)}, "real numbers"),
    ({"mask": torch.ones(2, 2)}, "`mask` must be bool"),
    ({"mask": torch.ones(2, 2, dtype=torch.long)}, "`mask` must be bool"),
    ({"judged": torch.ones(2, 2)}, "`judged` must be bool"),
    ({"indexes": torch.tensor([0.0, 1.0])}, "`indexes` must be whole numbers"),
    ({"ideal": T, "ideal_mask": torch.ones(2, 2)}, "must be bool"),
    ({"strange": 1}, "no option strange"),
]
VALUES = [
    ({"preds": torch.tensor([[1.0, 0.0], [NAN, 0.5]])}, "`preds` must not be NaN.* query 1"),
    ({"target": torch.tensor([[1.0, 0.0], [0.5, NAN]])}, "`target` must not be NaN.* query 1"),
    ({"preds": torch.tensor([[1.0, 0.0], [NAN, 0.5]]), "indexes": torch.tensor([7, 99])}, "id 99"),
    ({"ideal": torch.tensor([[1.0], [NAN]])}, "must not be NaN.* query 1"),
    ({"top_k": 0}, "`top_k` must be a whole number >= 1.*got 0"),
    ({"top_k": -1}, "`top_k` .*got -1"),
    ({"top_k": 2.5}, r"`top_k` .*got 2\.5"),
    ({"top_k": True}, "`top_k` .*got True"),
    ({"ties": "random"}, "`ties` must be one of 'average'.*got 'random'"),
    ({"ties": None}, "`ties` must be one of"),
]


@pytest.mark.parametrize(
    ("error", "changed", "message"),
    [(ValueError, *row) for row in SHAPES + VALUES] + [(TypeError, *row) for row in TYPES],
    ids=lambda x: ",".join(x) if isinstance(x, dict) else "",
)
def test_bad_padded_input(error, changed, message):
    with pytest.raises(error, match=message):
        functional.ndcg(**{"preds": P, "target": T} | changed)


@pytest.mark.parametrize(("changed", "message"), FLAT_SHAPES, ids=lambda x: ",".join(x) if isinstance(x, dict) else "")
def test_bad_flat_input(changed, message):
    with pytest.raises(ValueError, match=message):
        functional.ndcg(**{"preds": FLAT_P, "target": FLAT_T} | changed)


@pytest.mark.parametrize("name", ["indexes", "offsets"])
def test_ids_and_offsets_must_be_whole_numbers(name):
    with pytest.raises(TypeError, match=f"`{name}` must be whole numbers"):
        functional.ndcg(FLAT_P, FLAT_T, **{name: torch.tensor([0.0, 0.0, 1.0, 1.0])})


@every_metric
def test_nan_score_names_the_query_in_flat_input(spec):
    preds = torch.tensor([1.0, NAN, 0.2, 0.1])
    with pytest.raises(ValueError, match=r"`preds` must not be NaN.* query 1 \(id 50\)"):
        function_of(spec)(preds, FLAT_T, indexes=torch.tensor([3, 50, 3, 3]))


@every_metric
def test_nan_in_padding_is_no_error(spec):
    preds, target = torch.tensor([[1.0, NAN, 0.5, 2.0]]), torch.tensor([[NAN, 1.0, 1.0, 0.0]])
    mask = torch.tensor([[False, False, True, True]])
    assert_close(function_of(spec)(preds, target, mask=mask), function_of(spec)(preds[:, 2:], target[:, 2:]))


def test_bad_options():
    with pytest.raises(ValueError, match="`gain` must be one of 'exp2', 'linear'"):
        functional.ndcg(P, T, gain="exp")
    with pytest.raises(ValueError, match=r"`gain` must be .*list of finite gains"):
        functional.dcg(P, T, gain=[0, NAN])
    with pytest.raises(ValueError, match="`denominator` must be one of 'relevant', 'cutoff', 'hits'"):
        functional.average_precision(P, T, denominator="all")
    with pytest.raises(ValueError, match="`min_relevance` must be a finite number"):
        functional.recall(P, T, min_relevance=NAN)
    with pytest.raises(TypeError, match="no option gain"):
        functional.recall(P, T, gain="linear")


@pytest.mark.parametrize("spec", [s for s in METRICS.values() if not s.takes_top_k], ids=lambda s: s.name)
def test_cutoff_is_refused_where_the_whole_list_counts(spec):
    with pytest.raises(ValueError, match=f"{spec.name} .*no cutoff"):
        function_of(spec)(P, T, 2)


@pytest.mark.parametrize("p", [0, 1, 1.5, NAN, True])
def test_impossible_persistence(p):
    with pytest.raises(ValueError, match="`p` must be a finite number above 0 and below 1"):
        functional.rank_biased_precision(P, T, p=p)


def test_grade_above_the_best_grade_there_is():
    with pytest.raises(ValueError, match="max_grade=4 got the grade 5"):
        functional.expected_reciprocal_rank(P, 5 * T)
    value = torch.func.vmap(functional.expected_reciprocal_rank)(P[:, None], torch.tensor([[[5, 0]], [[1, 0]]]))
    assert value.isnan().flatten().tolist() == [True, False]


def test_unknown_metric_names_the_nearest():
    with pytest.raises(ValueError, match=r"Unknown metric 'ndgc'.*Did you mean 'ndcg'"):
        find_metric("ndgc")


@pytest.mark.parametrize(
    ("name", "here"),
    [("ndcg_cut_10", "ndcg@10"), ("P_5", "precision@5"), ("recip_rank", "mrr"), ("map10", "map@10"), ("P@10", "precision")],
)
def test_names_of_other_tools_are_translated(name, here):
    with pytest.raises(ValueError, match=rf"Unknown metric '\w+'\. Did you mean '{here}'\?"):
        RankingMetrics([name])


@every_metric
def test_found_by_both_names(spec):
    assert find_metric(spec.name) is spec
    assert find_metric(spec.function.__name__) is spec


def test_infinite_scores_are_legal():
    preds = torch.tensor([[INF, 0.0, -INF, -INF]])
    assert functional.reciprocal_rank(preds, torch.tensor([[1, 0, 0, 0]])).item() == 1
    assert_close(functional.reciprocal_rank(preds, torch.tensor([[0, 0, 0, 1]])), [(1 / 3 + 1 / 4) / 2], rtol=1e-6)


def test_padding_stays_behind_an_item_of_score_minus_infinity():
    preds = torch.tensor([[0.0, -INF, 5.0]])
    value = functional.reciprocal_rank(preds, torch.tensor([[0, 1, 1]]), mask=torch.tensor([[True, True, False]]))
    assert value.item() == 0.5


@every_metric
def test_input_is_left_alone(spec):
    batch = lay_out([{"preds": [1.0, 2.0, 2.0], "target": [0.0, -1.0, 1.0]}] * 2, "padded", seed=3)
    before = {name: tensor.clone() for name, tensor in batch.items()}
    function_of(spec)(**batch)
    for name, tensor in batch.items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, equal_nan=True)


def test_order_of_ids_is_ascending():
    rng = random.Random(0)
    ids = [2**60, -4, 7, 2**53 + 1, 2**53]
    preds, target = torch.tensor([2.0, 1.0]).repeat(5), torch.tensor([0, 1] * 5)
    target[2 * ids.index(7)] = 1  # the query 7 has a hit at rank 1
    indexes = torch.tensor(ids).repeat_interleave(2)
    mixed = rng.sample(range(10), 10)
    value = functional.reciprocal_rank(preds[mixed], target[mixed], indexes=indexes[mixed])
    assert value.tolist() == [0.5, 1.0, 0.5, 0.5, 0.5]
