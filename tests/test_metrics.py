"""Metric classes: golden values, and that neither updates nor processes nor copies change a value."""

from __future__ import annotations

import copy
import math
import pickle
import random
import sys
import warnings
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics import MetricCollection

from lightning_rank import functional
from lightning_rank.functional.metrics import METRICS
from lightning_rank.metrics import (
    MAP,
    MRR,
    NAMED_CLASSES,
    NDCG,
    HitRate,
    Precision,
    RankingMetric,
    RankingMetrics,
    Recall,
    metric,
)
from tests import reference
from tests.conftest import (
    LAYOUTS,
    RTOL,
    SEEDS,
    TIES,
    assert_close,
    batches,
    cutoffs_of,
    golden,
    ideal_of,
    lay_out,
    options_of,
    with_items,
)

NAN, INF = math.nan, math.inf
Update = dict[str, Tensor]
every_metric = pytest.mark.parametrize("name", METRICS)
NAMES = ["ndcg@2", "ndcg@4", "dcg", "map", "mrr@3", "precision@2", "recall@2", "hit_rate@1"]

# Three queries with ties; the last has no relevant item.
BATCH = [
    {"preds": [0.5, 0.5, -1.0, 2.0], "target": [1.0, 0.0, 3.0, 0.0]},
    {"preds": [1.0, 2.0], "target": [2.0, 0.0]},
    {"preds": [0.1, 0.2, 0.3], "target": [0.0, 0.0, -1.0]},
]
OTHERS = [
    {"preds": [3.0, 2.0, 1.0], "target": [0.0, 1.0, 1.0]},
    {"preds": [0.0, 0.0, 0.0, 0.0, 7.0], "target": [1.0, 2.0, 0.0, 0.0, 0.0]},
]


def means(names: Sequence[str], batch: list, **options: Any) -> dict[str, float]:
    """What a mean over the queries must be, by the reference; queries without a relevant item count 0."""
    expected = {}
    for full_name in names:
        name, _, cutoff = full_name.partition("@")
        values = [
            reference.metric_value(name, query["preds"], query["target"], int(cutoff) if cutoff else None, **options)
            for query in batch
        ]
        expected[full_name] = sum(0.0 if math.isnan(value) else value for value in values) / len(values)
    return expected


def assert_means(actual: dict[str, Tensor], expected: dict[str, float], rtol: float = 1e-9) -> None:
    assert actual.keys() == expected.keys()
    assert_close(torch.stack(list(actual.values())), [expected[name] for name in actual], rtol=rtol)


def computed(metric: Any, *updates: Update) -> Any:
    for update in updates:
        metric.update(**update)
    return metric.compute()


def state_bytes(metric: Any) -> int:
    tensors: list[Tensor] = []
    for state in metric.metric_state.values():
        tensors.extend(state if isinstance(state, list) else [state])
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


# Golden values --------------------------------------------------------------------------------------------------------


def by_id(case: dict) -> str:
    return case["id"]


CASES = [case for case in golden("metrics")["cases"] if case["metric"] in NAMED_CLASSES]
IDEAL_CASES = [case for case in golden("metrics")["ideal_cases"] if case["metric"] in NAMED_CLASSES]
VALUES = [case for case in CASES if "raises" not in case]


def batch_of(case: dict) -> list:
    return [{name: [float(x) for x in query[name]] for name in ("preds", "target")} for query in case["queries"]]


def update_of(case: dict, batch: list, layout: str, dtype: str) -> Update:
    target = getattr(torch, case.get("target_dtype", "float64" if dtype == "float64" else "float32"))
    dtypes = {"preds": getattr(torch, dtype), "target": target}
    return lay_out(batch, layout, dtypes=dtypes, ids=case.get("ids"), seed=len(batch))


@pytest.mark.parametrize("case", VALUES, ids=by_id)
def test_golden_values(case):
    instance = NAMED_CLASSES[case["metric"]](**case["params"])
    for dtype, layout in product(case.get("dtypes", ["float32", "float64"]), LAYOUTS):
        instance.reset()
        value = computed(instance, update_of(case, batch_of(case), layout, dtype))
        assert value.dtype == (torch.float64 if dtype == "float64" else torch.float32)
        assert value.shape == ()
        assert_close(value, case["expected"], rtol=RTOL.get(getattr(torch, dtype), 1e-5), where=(layout, dtype))
        assert instance.num_queries == sum(value is not None for value in case["per_query"])


@pytest.mark.filterwarnings("ignore:No query has a value")
@pytest.mark.parametrize("case", [case for case in VALUES if len(case["queries"]) > 1], ids=by_id)
def test_golden_values_of_single_queries(case):
    for query, expected in zip(batch_of(case), case["per_query"], strict=True):
        dtype = case.get("dtypes", ["float64"])[0]
        value = computed(NAMED_CLASSES[case["metric"]](**case["params"]), update_of(case, [query], "padded", dtype))
        assert_close(value, NAN if expected is None else expected)


@pytest.mark.parametrize("case", IDEAL_CASES, ids=by_id)
def test_golden_values_with_ideal(case):
    ideal = ideal_of([query["ideal"] for query in case["queries"]], seed=3)
    instance = NAMED_CLASSES[case["metric"]](**case["params"])
    assert_close(computed(instance, lay_out(batch_of(case), "padded") | ideal), case["expected"])


@pytest.mark.parametrize("case", [case for case in CASES if "raises" in case], ids=by_id)
def test_golden_errors(case):
    metric_class, update = NAMED_CLASSES[case["metric"]], update_of(case, batch_of(case), "padded", "float64")
    if case.get("raises_at") == "init":
        with pytest.raises(ValueError, match="must be"):
            metric_class(**case["params"])
        computed(metric_class(**case["valid_params"]), update)
    else:
        with pytest.raises(ValueError, match=r"must not be NaN|no relevant item"):
            computed(metric_class(**case["params"]), update)


# Streaming ------------------------------------------------------------------------------------------------------------


@given(data=st.data())
def test_splitting_a_stream_into_updates_changes_nothing(data):
    batch = data.draw(batches(max_queries=8))
    cuts = sorted({0, len(batch), *data.draw(st.lists(st.integers(0, len(batch)), max_size=3))})
    updates = [
        lay_out(batch[start:stop], data.draw(st.sampled_from(("padded", "offsets"))), seed=data.draw(SEEDS))
        for start, stop in pairwise(cuts)
    ]
    # A query without items is none.
    if batch := with_items(batch):
        assert_means(computed(RankingMetrics(NAMES), *updates), means(NAMES, batch))


@given(data=st.data())
def test_items_of_a_query_may_come_in_any_update(data):
    batch = data.draw(batches(max_queries=5, min_items=1))
    flat = lay_out(batch, "indexes", seed=data.draw(SEEDS))
    num_items = len(flat["preds"])
    order = data.draw(st.permutations(range(num_items)))
    cuts = sorted({0, num_items, *data.draw(st.lists(st.integers(0, num_items), max_size=3))})
    updates = [{name: tensor[order[a:b]] for name, tensor in flat.items()} for a, b in pairwise(cuts)]
    assert_means(computed(RankingMetrics(NAMES), *updates), means(NAMES, batch))


@every_metric
@given(data=st.data())
def test_class_is_the_mean_of_the_function(name, data):
    spec, batch = METRICS[name], data.draw(batches(min_items=1))
    top_k, ties, options = data.draw(cutoffs_of(spec)), data.draw(st.sampled_from(TIES)), data.draw(options_of(spec))
    update = lay_out(batch, data.draw(st.sampled_from(LAYOUTS)), seed=data.draw(SEEDS))
    values = getattr(functional, spec.function.__name__)(**update, top_k=top_k, ties=ties, **options)
    value = computed(NAMED_CLASSES[name](top_k, ties=ties, **options), update)
    assert_close(value, values.nan_to_num(0.0).mean())


def test_stable_ties_keep_the_order_of_arrival_over_updates():
    stable = MRR(ties="stable")
    for score, grade, query in ((1.0, 0, 5), (1.0, 1, 5), (1.0, 1, 3), (1.0, 0, 3)):
        stable.update(torch.tensor([score]), torch.tensor([grade]), torch.tensor([query]))
    assert stable.compute() == (1 + 1 / 2) / 2


@pytest.mark.parametrize("layout", ["padded", "offsets", "whole_queries"])
@pytest.mark.parametrize("aggregation", ["mean", "min", "max"])
def test_state_of_whole_queries_is_constant(layout, aggregation):
    whole = layout == "whole_queries"
    stream = RankingMetrics(NAMES, aggregation=aggregation, whole_queries=whole)
    stream.update(**lay_out(BATCH, "indexes" if whole else layout))
    size = state_bytes(stream)
    for seed in range(20):
        stream.update(**lay_out(BATCH + OTHERS, "indexes" if whole else layout, seed=seed))
    assert state_bytes(stream) == size < 1000


def test_whole_queries_need_no_ids():
    # The same id again is another query, once that was promised.
    stream = NDCG(whole_queries=True)
    for query in BATCH:
        stream.update(**lay_out([query], "indexes", ids=[7]))
    assert stream.num_queries == 3
    assert_close(stream.compute(), means(["ndcg"], BATCH)["ndcg"])


@pytest.mark.parametrize("layout", ["padded", "offsets"])
def test_ids_count_once(layout):
    stream = RankingMetrics(NAMES)
    stream.update(**lay_out(BATCH[:2], layout), indexes=torch.tensor([2**60, 2**60 + 1]))
    stream.update(**lay_out(OTHERS, layout), indexes=torch.tensor([2**60 + 1, -3]))
    # OTHERS[0] came under an id that was taken.
    assert_means(stream.compute(), means(NAMES, [*BATCH[:2], OTHERS[1]]))
    assert stream.num_repeated == 1


def test_masked_row_does_not_take_the_id_of_a_query():
    stream, preds, ids = MRR(), torch.tensor([[2.0, 1.0]]), torch.tensor([7])
    for mask in ([[False, False]], [[True, True]]):
        stream.update(preds, torch.tensor([[0, 1]]), ids, mask=torch.tensor(mask))
    assert (stream.compute().item(), stream.num_queries) == (0.5, 1)


def test_updates_of_all_layouts_add_up():
    stream = RankingMetrics(NAMES)
    stream.update(**lay_out(BATCH[:1], "padded"))
    stream.update(**lay_out(BATCH[1:2], "offsets"))
    stream.update(**lay_out(BATCH[2:], "padded"), indexes=torch.tensor([4]))
    stream.update(**lay_out(OTHERS, "indexes", ids=[5, 6]))
    assert_means(stream.compute(), means(NAMES, BATCH + OTHERS))
    assert stream.num_queries == dict.fromkeys(NAMES, 5)
    assert stream.num_empty == dict.fromkeys(NAMES, 1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_empty_batches_add_nothing(layout):
    stream, empty = RankingMetrics(NAMES), torch.empty(0, dtype=torch.float64)
    nothing = {
        "padded": [{"preds": empty.reshape(0, 4)}, {"preds": empty.reshape(3, 0)}],
        "offsets": [{"preds": empty, "offsets": torch.tensor(offsets)} for offsets in ([0], [0, 0, 0])],
        "indexes": [{"preds": empty, "indexes": empty.long()}],
    }[layout]
    for update in nothing:
        stream.update(**update, target=update["preds"])
    stream.update(**lay_out(BATCH, layout))
    for update in nothing:
        stream.update(**update, target=update["preds"])
    assert_means(stream.compute(), means(NAMES, BATCH))


def test_fully_masked_row_is_no_query_but_counts_where_relevant_items_were_missed():
    preds, mask = torch.tensor([[2.0, 1.0], [2.0, 1.0]]), torch.tensor([[True, True], [False, False]])
    stream = MRR()
    stream.update(preds, torch.ones(2, 2), mask=mask)
    assert (stream.num_queries, stream.compute().item()) == (1, 1.0)
    stream.reset()
    stream.update(preds, torch.ones(2, 2), mask=mask, ideal=torch.ones(2, 2))
    assert (stream.num_queries, stream.compute().item()) == (2, 0.5)


@pytest.mark.parametrize("layout", [*LAYOUTS, "padded with ids", "offsets with ids"])
def test_state_is_a_detached_copy(layout):
    layout, _, with_ids = layout.partition(" ")
    update = lay_out(BATCH, layout) | ({"indexes": torch.arange(3)} if with_ids else {})
    update["preds"].requires_grad_()
    stream = NDCG()
    stream.update(**update)
    with torch.no_grad():
        for tensor in update.values():
            tensor.zero_()
    value = stream.compute()
    assert not value.requires_grad
    assert_close(value, means(["ndcg"], BATCH)["ndcg"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_forward_gives_the_value_of_the_batch_and_accumulates(layout):
    stream = RankingMetrics(NAMES)
    for number, batch in enumerate((BATCH, OTHERS)):
        ids = range(10 * number, 10 * number + len(batch))
        assert_means(stream(**lay_out(batch, layout, ids=ids)), means(NAMES, batch))
    assert_means(stream.compute(), means(NAMES, BATCH + OTHERS))
    assert stream.num_queries == dict.fromkeys(NAMES, 5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reset(layout):
    stream = RankingMetrics(NAMES)
    computed(stream, lay_out(OTHERS, layout))
    stream.reset()
    assert_means(computed(stream, lay_out(BATCH, layout)), means(NAMES, BATCH))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inference_mode_then_normal_mode(layout):
    stream = RankingMetrics(NAMES)
    with torch.inference_mode():
        stream.update(**lay_out(BATCH, layout, ids=[1, 2, 3]))
        stream.compute()
    stream.update(**lay_out(OTHERS, layout, ids=[4, 5]))
    assert_means(stream.compute(), means(NAMES, BATCH + OTHERS))
    stream(**lay_out(OTHERS, layout, ids=[6, 7]))
    with torch.inference_mode():
        assert_means(stream.compute(), means(NAMES, BATCH + OTHERS + OTHERS))


# Copies and merging ---------------------------------------------------------------------------------------------------


def through_state_dict(stream: RankingMetrics) -> RankingMetrics:
    stream.persistent(True)
    other = RankingMetrics(NAMES)
    other.persistent(True)
    other.load_state_dict(stream.state_dict())
    return other


@pytest.mark.parametrize(
    "duplicate",
    [RankingMetrics.clone, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), through_state_dict],
    ids=["clone", "deepcopy", "pickle", "state_dict"],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_copy_in_mid_epoch_goes_on_alone(duplicate, layout):
    stream = RankingMetrics(NAMES)
    stream.update(**lay_out(BATCH, layout, ids=[1, 2, 3]))
    other = duplicate(stream)
    other.update(**lay_out(OTHERS, layout, ids=[4, 5]))
    assert_means(other.compute(), means(NAMES, BATCH + OTHERS))
    assert_means(stream.compute(), means(NAMES, BATCH))


def test_state_is_not_in_checkpoints_unless_asked_for():
    assert not RankingMetrics(NAMES).state_dict()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", [{}, {"aggregation": "median"}, {"aggregation": "max"}], ids=str)
def test_merge_state(layout, options):
    merged, other, whole = (NDCG(3, **options) for _ in range(3))
    parts = [lay_out(BATCH, layout, ids=[1, 2, 3]), lay_out(OTHERS, layout, ids=[4, 5])]
    merged.update(**parts[0])
    other.update(**parts[1])
    merged.merge_state(other)
    assert_close(merged.compute(), computed(whole, *parts))
    assert merged.num_queries == 5


def test_merge_state_joins_the_items_of_a_query():
    first, second = MAP(), MAP()
    flat = lay_out(BATCH[:2], "indexes", ids=[1, 2])
    first.update(**{name: tensor[::2] for name, tensor in flat.items()})
    second.update(**{name: tensor[1::2] for name, tensor in flat.items()})
    first.merge_state(second)
    assert_close(first.compute(), means(["map"], BATCH[:2])["map"])


def test_metric_collection_keeps_metrics_apart_whose_first_states_agree():
    def all_different() -> dict[str, RankingMetric]:
        return {
            "ndcg@5": NDCG(5),
            "ndcg@10": NDCG(10),
            "ndcg": NDCG(),
            "linear": NDCG(5, gain="linear"),
            "stable": NDCG(5, ties="stable"),
            "mrr@5": MRR(5),
            "map@5": MAP(5),
            "hits": MAP(5, denominator="hits"),
            "recall@5": Recall(5),
            "hit_rate@5": HitRate(5),
        }

    rng = random.Random(1)
    perfect = [{"preds": [2.0, 1.0], "target": [1.0, 0.0]}]  # on which they all are 1
    long = [
        {"preds": [float(rng.randint(0, 9)) for _ in range(12)], "target": [0.0] * 4 + [2.0, 1.0] * 4} for _ in range(3)
    ]
    updates = [lay_out(perfect, "padded"), lay_out(long, "padded")]
    expected = {name: computed(alone, *updates).item() for name, alone in all_different().items()}
    assert len({round(value, 9) for value in expected.values()}) == len(expected)
    assert_means(computed(MetricCollection(all_different()), *updates), expected)


# Dtypes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.float32])
@pytest.mark.parametrize("target", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float64])
def test_dtypes(layout, dtype, target):
    batch = [{"preds": [5.0, 5.0, 2.0, 9.0], "target": [1.0, 0.0, 1.0, 0.0]}, {"preds": [1.0, 2.0], "target": [1.0, 0.0]}]
    value = computed(RankingMetrics(NAMES), lay_out(batch, layout, dtypes={"preds": dtype, "target": target}))
    assert {v.dtype for v in value.values()} == {torch.float32}
    assert_means(value, means(NAMES, batch), rtol=1e-6)


def test_half_keeps_the_accuracy_of_the_state():
    stream = NDCG().half()
    for _ in range(200):
        stream.update(torch.tensor([[1.0, 0.0]], dtype=torch.float16), torch.tensor([[0, 1]]))
    assert_close(stream.compute(), 1 / math.log2(3), rtol=1e-6)


# Queries without a relevant item --------------------------------------------------------------------------------------

EMPTY = [BATCH[2], {"preds": [1.0], "target": [0.0]}]


def empty_for(name: str) -> list:
    """Two queries without a value."""
    return [query | {"target": [1.0] * len(query["preds"])} for query in EMPTY] if name == "fall_out" else EMPTY


@every_metric
@pytest.mark.parametrize("layout", LAYOUTS)
def test_batch_of_empty_queries(name, layout):
    make, update = NAMED_CLASSES[name], lay_out(empty_for(name), layout)
    assert computed(make(), update) == 0
    skipping = make(empty_target_action="skip")
    with pytest.warns(UserWarning, match="No query has a value.*2 queries without a relevant item were skipped"):
        assert computed(skipping, update).isnan()
    assert (skipping.num_queries, skipping.num_empty) == (0, 2)
    with pytest.raises(ValueError, match=r"2 of 2 queries have no relevant item.*empty_target_action='error'"):
        computed(make(empty_target_action="error"), update)


@pytest.mark.parametrize("name", [name for name, spec in METRICS.items() if spec.bounded])
def test_empty_queries_may_count_as_perfect(name):
    instance = NAMED_CLASSES[name](empty_target_action="pos")
    assert computed(instance, lay_out(empty_for(name), "padded")) == 1
    assert (instance.num_queries, instance.num_empty) == (2, 2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_skipped_queries_are_left_out_of_the_mean(layout):
    skipping = NDCG(empty_target_action="skip")
    value = computed(skipping, lay_out(BATCH, layout))
    assert_close(value, means(["ndcg"], BATCH[:2])["ndcg"])
    assert (skipping.num_queries, skipping.num_empty) == (2, 1)


def test_nothing_at_all_is_nan_with_a_warning():
    with pytest.warns(UserWarning, match="No query has a value, so the metric is NaN: there was none"):
        assert computed(NDCG(), lay_out([{"preds": [], "target": []}], "padded")).isnan()


# Options --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [*LAYOUTS, "padded with ids", "offsets with ids"])
@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("mean", 1.75 / 4),
        ("median", 0.375),
        ("min", 0.0),
        ("max", 1.0),
        (torch.sum, 1.75),
        (lambda v: v.max() - v.min(), 1.0),
    ],
    ids=["mean", "median", "min", "max", "callable", "lambda"],
)
def test_aggregations(aggregation, expected, layout):
    scores = [3.0, 2.0, 1.0, 0.0]
    ranks = [1, 2, 4, None]
    batch = [{"preds": scores, "target": [float(i + 1 == rank) for i in range(4)]} for rank in ranks]
    layout, _, with_ids = layout.partition(" ")
    updates = [lay_out(batch[:3], layout, ids=[1, 2, 3]), lay_out(batch[3:], layout, ids=[4])]
    if with_ids:
        updates = [updates[0] | {"indexes": torch.arange(3)}, updates[1] | {"indexes": torch.tensor([9])}]
    value = computed(MRR(aggregation=aggregation), *updates)
    assert value.shape == ()
    assert_close(value, expected)


@pytest.mark.filterwarnings("ignore:No query has a value")
@pytest.mark.parametrize("aggregation", ["median", "min", "max", torch.sum])
def test_aggregation_of_nothing_is_nan(aggregation):
    value = computed(MRR(aggregation=aggregation, empty_target_action="skip"), lay_out(EMPTY, "padded"))
    assert value.isnan()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ignore_index_leaves_items_out(layout):
    batch = [query | {"target": [*query["target"], -100.0], "preds": [*query["preds"], 1.5]} for query in BATCH]
    value = computed(RankingMetrics(NAMES, ignore_index=-100), lay_out(batch, layout))
    assert_means(value, means(NAMES, BATCH))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_of_queries(layout):
    stream = RankingMetrics(["ndcg", "mrr"], per_query=True)
    ids = [50, -7, 8]
    update = lay_out(BATCH, layout, ids=sorted(ids))
    stream.update(**update if layout == "indexes" else update | {"indexes": torch.tensor(sorted(ids))})
    found, values = stream.query_values()
    assert found.tolist() == sorted(ids)
    expected = [[reference.metric_value(name, q["preds"], q["target"]) for name in ("ndcg", "mrr")] for q in BATCH]
    assert_close(values, expected)


def test_values_of_a_single_metric_are_one_per_query():
    mrr = MRR(per_query=True)
    mrr.update(**lay_out(BATCH, "padded"))
    ids, values = mrr.query_values()
    assert ids.tolist() == [0, 1, 2]
    assert_close(values, [reference.metric_value("mrr", q["preds"], q["target"]) for q in BATCH])
    with pytest.raises(ValueError, match="per_query=True"):
        MRR().query_values()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_unjudged_items_are_not_relevant(layout):
    batch = [query | {"judged": [i != 0 for i in range(len(query["preds"]))]} for query in BATCH]
    zeroed = [query | {"target": [0.0, *query["target"][1:]]} for query in BATCH]
    value = computed(RankingMetrics(NAMES), lay_out(batch, layout, dtypes={"judged": torch.bool}))
    assert_means(value, means(NAMES, zeroed))


# Names ----------------------------------------------------------------------------------------------------------------


@every_metric
def test_name_gives_the_metric_and_the_metric_its_name(name):
    for full, top_k in [(name, None), (f"{name}@10", 10)][: 1 + METRICS[name].takes_top_k]:
        instance = metric(full)
        assert type(instance) is NAMED_CLASSES[name]
        assert (str(instance), instance.top_k) == (full, top_k)


def test_repr_states_every_convention_in_force():
    assert repr(NDCG(10)) == "NDCG(top_k=10, gain='exp2', empty_target_action='neg', ties='average')"
    assert repr(MAP(denominator="hits", ties="stable")) == (
        "MAP(top_k=None, min_relevance=1, denominator='hits', empty_target_action='neg', ties='stable')"
    )
    text = repr(Precision(5, aggregation="median", ignore_index=-1, whole_queries=True, per_query=True))
    for option in ("aggregation='median'", "ignore_index=-1", "whole_queries=True", "per_query=True"):
        assert option in text
    lines = repr(RankingMetrics(["ndcg@5", "map"], prefix="val/", gain="linear")).splitlines()
    assert "val/ndcg@5: gain='linear'" in lines[1]
    assert "val/map: min_relevance=1, denominator='relevant'" in lines[2]


def test_metric_takes_options():
    assert (
        metric("MAP@3", min_relevance=2, denominator="hits").entries == MAP(3, min_relevance=2, denominator="hits").entries
    )


def test_names_of_several_metrics():
    several = RankingMetrics(["ndcg@5", "map"], prefix="val/")
    assert several.names == ["val/ndcg@5", "val/map"]
    assert str(several) == "val/ndcg@5, val/map"
    assert list(computed(several, lay_out(BATCH, "padded"))) == ["val/ndcg@5", "val/map"]
    assert RankingMetrics("mrr@3").names == ["mrr@3"]
    assert RankingMetrics(["average_precision", "reciprocal_rank@2"]).names == ["map", "mrr@2"]


def test_options_reach_the_metrics_that_know_them():
    several = RankingMetrics(["ndcg", "map", "mrr"], gain="linear", min_relevance=2)
    value = computed(several, lay_out(BATCH, "padded"))
    expected = means(["ndcg"], BATCH, gain="linear") | means(["map", "mrr"], BATCH, min_relevance=2)
    assert_means(value, expected)


# Errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: metric("ndgc@10"), ValueError, "Unknown metric 'ndgc'.*Did you mean 'ndcg'"),
        (lambda: metric("ndcg@10", top_k=5), ValueError, "'ndcg@10' has a cutoff, and top_k=5 gives another"),
        (lambda: metric("ndcg@10", gian="linear"), ValueError, "`gian` is no option. Did you mean `gain`"),
        (lambda: NDCG(k=10), ValueError, "`k` is no option: a cutoff is `top_k`"),
        (lambda: RankingMetrics(["ndcg"], top_k=10), ValueError, "stands in its name, as in 'ndcg@10'"),
        (lambda: metric("ndcg@0"), ValueError, "cutoff in 'ndcg@0' must be a whole number >= 1"),
        (lambda: metric("ndcg@ten"), ValueError, "cutoff in 'ndcg@ten'"),
        (lambda: metric("ndcg@"), ValueError, "cutoff in 'ndcg@'"),
        (lambda: metric("ndcg@2.5"), ValueError, "cutoff in 'ndcg@2.5'"),
        (lambda: metric("auc@10"), ValueError, "auc .*no cutoff"),
        (lambda: RankingMetrics(["ndcg@10", "bpref@10"]), ValueError, "bpref .*no cutoff"),
        (lambda: metric(10), TypeError, "named by text such as 'ndcg@10', got 10"),
        (lambda: RankingMetrics(["ndcg", "mpa"]), ValueError, "Unknown metric 'mpa'.*Did you mean 'map'"),
        (lambda: RankingMetrics([]), ValueError, "must name at least one metric"),
        (
            lambda: RankingMetrics(["ndcg@5", "map", "ndcg@5"]),
            ValueError,
            "must not name one twice, got ndcg@5, map, ndcg@5",
        ),
        (lambda: RankingMetrics(["mrr", "reciprocal_rank"]), ValueError, "must not name one twice"),
        (lambda: RankingMetrics(["map"], prefix=3), TypeError, "`prefix` must be text"),
        (lambda: RankingMetrics(["map", "mrr"], gain="linear"), ValueError, "`gain` means nothing for map, mrr"),
        (lambda: RankingMetric(), TypeError, "use a named class such as NDCG"),
        (lambda: MAP(gain="linear"), ValueError, "`gain` means nothing for map"),
        (lambda: NDCG(min_relevance=2), ValueError, "`min_relevance` means nothing for ndcg"),
        (lambda: MRR(denominator="hits"), ValueError, "`denominator` means nothing for mrr"),
        (lambda: NDCG(0), ValueError, "`top_k` must be a whole number >= 1"),
        (lambda: NDCG(-1), ValueError, "`top_k` must be"),
        (lambda: NDCG(2.5), ValueError, "`top_k` must be"),
        (lambda: NDCG(True), ValueError, "`top_k` must be"),
        (lambda: NDCG(gain="exp"), ValueError, "`gain` must be one of 'exp2', 'linear'"),
        (lambda: NDCG(ties="random"), ValueError, "`ties` must be one of 'average'"),
        (lambda: MAP(denominator="all"), ValueError, "`denominator` must be one of 'relevant'"),
        (lambda: MAP(min_relevance="1"), ValueError, "`min_relevance` must be a finite number"),
        (lambda: MAP(min_relevance=0), ValueError, "`min_relevance` must be a finite number above 0"),
        (lambda: NDCG(empty_target_action="zero"), ValueError, "`empty_target_action` must be one of 'neg'"),
        (lambda: NAMED_CLASSES["dcg"](empty_target_action="pos"), ValueError, "'pos'` means nothing for dcg"),
        (lambda: NDCG(aggregation="average"), ValueError, "`aggregation` must be one of 'mean'"),
        (lambda: NDCG(ignore_index="-1"), TypeError, "`ignore_index` must be a whole number"),
        (lambda: NDCG(whole_queries=1), TypeError, "`whole_queries` must be True or False"),
        (lambda: NDCG(per_query="yes"), TypeError, "`per_query` must be True or False"),
        (lambda: NDCG(strange=1), ValueError, "strange"),
    ],
)
def test_refused_when_built(make, error, message):
    with pytest.raises(error, match=message):
        make()


P, T = torch.tensor([[2.0, 1.0], [0.5, 0.1]]), torch.tensor([[1, 0], [0, 1]])


@pytest.mark.parametrize("options", [{}, {"whole_queries": True}, {"per_query": True}, {"ignore_index": -1}], ids=str)
@pytest.mark.parametrize(
    ("update", "error", "message"),
    [
        ({"target": T[:, :1]}, ValueError, "`target` must have the shape of `preds`"),
        ({"preds": [0.5], "target": [1]}, TypeError, "`preds` must be a tensor, got list"),
        ({"preds": [0.5], "target": T[0, :1], "indexes": T[0, :1]}, TypeError, "`preds` must be a tensor, got list"),
        ({"mask": torch.ones(2, 2)}, TypeError, "`mask` must be bool"),
        ({"indexes": torch.arange(3)}, ValueError, "`indexes` is the id of each query"),
        ({"offsets": torch.tensor([0, 2])}, ValueError, "`offsets` belongs to flat"),
        ({"judged": torch.ones(2, 2)}, TypeError, "`judged` must be bool"),
        ({"preds": P[0], "target": T[0], "indexes": torch.zeros(2)}, TypeError, "`indexes` must be whole numbers"),
        ({"preds": P[0], "target": T[0], "indexes": torch.zeros(3).long()}, ValueError, "query id of each item"),
        ({"preds": P[0], "target": T[0], "indexes": T[0], "mask": T[0] > 0}, ValueError, "`mask` belongs to"),
        ({"preds": P[0], "target": T[0], "indexes": T[0], "judged": torch.ones(2)}, TypeError, "`judged` must be bool"),
        ({"preds": P[0], "target": T[0], "indexes": T[0], "ideal": T}, ValueError, "`ideal` needs padded input"),
        ({"preds": P[0], "target": T[0], "indexes": T[0], "ideal_mask": T > 0}, ValueError, "`ideal_mask`"),
        ({"preds": P[0], "target": T[0], "offsets": torch.tensor([0, 1])}, ValueError, "number of items, 2"),
        ({"preds": torch.tensor([[1.0, 0.0], [NAN, 0.5]])}, ValueError, "`preds` must not be NaN.* query 1"),
        ({"target": torch.tensor([[1.0, 0.0], [NAN, 0.5]])}, ValueError, "`target` must not be NaN.* query 1"),
        (
            {"preds": torch.tensor([1.0, NAN]), "target": T[0], "indexes": torch.tensor([3, 4])},
            ValueError,
            r"`preds` must not be NaN.* query 1 \(id 4\)",
        ),
    ],
)
def test_bad_update_is_refused_and_leaves_the_state_alone(options, update, error, message):
    stream = NDCG(**options)
    stream.update(P, T)
    with pytest.raises(error, match=message):
        stream.update(**{"preds": P, "target": T} | update)
    assert stream.num_queries == 2


@pytest.fixture
def values_are_never_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device, where looking at a value would wait."""
    for name, module in sys.modules.items():
        if name.startswith("lightning_rank") and hasattr(module, "values_are_free"):
            monkeypatch.setattr(module, "values_are_free", lambda tensor: False)


@pytest.mark.usefixtures("values_are_never_free")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_on_a_device_nan_is_an_error_when_computed(layout):
    bad = {"preds": [1.0, NAN, 0.0], "target": [1.0, 0.0, 0.0]}
    stream = NDCG()
    stream.update(**lay_out([*BATCH, bad], layout, ids=[1, 2, 3, 4]))
    stream.update(**lay_out(OTHERS, layout, ids=[5, 6]))
    with pytest.raises(ValueError, match="`preds` must not be NaN: 1 queries had a NaN"):
        stream.compute()


@pytest.mark.usefixtures("values_are_never_free")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("column", ["preds", "target"])
@every_metric
def test_on_a_device_nan_is_nan_for_its_query_alone(name, column, layout):
    bad = {"preds": [1.0, 1.0, 0.0], "target": [1.0, 0.0, 1.0]} | {column: [1.0, NAN, 0.0]}
    function = getattr(functional, METRICS[name].function.__name__)
    value = function(**lay_out([BATCH[0], bad, *OTHERS], layout))
    good = function(**lay_out([BATCH[0], *OTHERS], layout))
    assert_close(value, [good[0], NAN, *good[1:]])


@pytest.mark.usefixtures("values_are_never_free")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("make", [lambda: metric("err", max_grade=2), lambda: NDCG(gain=[0, 1, 3])], ids=["err", "gain"])
def test_on_a_device_a_grade_beyond_the_scale_is_an_error_when_computed(make, layout):
    stream = make()
    stream.update(**lay_out([BATCH[0]], layout, ids=[1]))  # has a grade of 3
    with pytest.raises(ValueError, match="grade"):
        stream.compute()


@pytest.mark.usefixtures("values_are_never_free")
def test_on_a_device_values_are_the_same():
    for layout in LAYOUTS:
        assert_means(computed(RankingMetrics(NAMES), lay_out(BATCH + OTHERS, layout)), means(NAMES, BATCH + OTHERS))


# Processes ------------------------------------------------------------------------------------------------------------

STREAM = BATCH + OTHERS
SCENARIOS = ("padded", "offsets", "ids", "indexes", "whole_queries", "median", "min", "per_query")


def distributed_metric(scenario: str) -> RankingMetrics:
    options: dict[str, Any] = {
        "whole_queries": {"whole_queries": True},
        "median": {"aggregation": "median"},
        "min": {"aggregation": "min"},
        "per_query": {"per_query": True},
    }.get(scenario, {})
    return RankingMetrics(NAMES, compute_with_cache=False, **options)


def distributed_updates(scenario: str, process: int | None, *, one_is_empty: bool) -> Iterator[Update]:
    """What a process gets, four updates and one or none; for None all of it, as one process would."""
    if scenario == "indexes":
        flat = lay_out(STREAM, "indexes", ids=range(10, 15), seed=3)
        parts = [{name: tensor[i::5] for name, tensor in flat.items()} for i in range(5)]
    elif scenario in ("ids", "per_query"):
        # As a sampler that repeats samples to even out the processes: the id 11 comes twice.
        chosen = [[0], [1, 2], [3], [1], [4, 1]]
        parts = [
            lay_out([STREAM[i] for i in numbers], "padded") | {"indexes": torch.tensor([10 + i for i in numbers])}
            for numbers in chosen
        ]
    elif scenario == "whole_queries":
        parts = [lay_out([query], "indexes", ids=[number]) for number, query in enumerate(STREAM)]
    else:
        parts = [lay_out([query], scenario if scenario in LAYOUTS else "padded") for query in STREAM]
    for number, part in enumerate(parts):
        if process is None or process == int(number == 4 and not one_is_empty):
            yield part


def process_of_a_group(process: int, init_file: str, folder: str) -> None:
    """Compute every scenario and write what came out."""
    warnings.simplefilter("ignore")  # a process without data says so
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{init_file}", rank=process, world_size=2, timeout=timedelta(seconds=60)
    )
    results = {}
    for scenario in SCENARIOS:
        for one_is_empty in (False, True):
            stream = distributed_metric(scenario)
            for update in distributed_updates(scenario, process, one_is_empty=one_is_empty):
                stream.update(**update)
            # Twice, since the state must be the process's own again after the first.
            results[scenario, one_is_empty] = stream.compute(), stream.compute(), stream.num_queries, stream.num_repeated
            if scenario == "per_query":
                results[scenario, one_is_empty] += (stream.query_values(),)
    torch.save(results, Path(folder) / f"{process}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def results_of_processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("processes")
    torch.multiprocessing.spawn(process_of_a_group, (str(folder / "init"), str(folder)), nprocs=2)
    return [torch.load(folder / f"{process}.pt", weights_only=False) for process in (0, 1)]


@pytest.mark.parametrize("one_is_empty", [False, True])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_two_processes_compute_what_one_does(results_of_processes, scenario, one_is_empty):
    alone = distributed_metric(scenario)
    expected = computed(alone, *distributed_updates(scenario, None, one_is_empty=False))
    if scenario not in ("median", "min"):
        assert_means(expected, means(NAMES, STREAM))
    for results in results_of_processes:
        first, again, num_queries, num_repeated, *values = results[scenario, one_is_empty]
        for value in (first, again):
            assert_means(value, {name: x.item() for name, x in expected.items()})
        assert num_queries == alone.num_queries == dict.fromkeys(NAMES, 5)
        assert num_repeated == alone.num_repeated == (2 if scenario in ("ids", "per_query") else 0)
        for ids, rows in values:
            assert ids.tolist() == [10, 11, 12, 13, 14]
            assert_close(rows, alone.query_values()[1])


def test_grades_between_0_and_1_are_said_where_none_is_relevant():
    preds, target = torch.rand(1, 3), torch.tensor([[0.2, 0.9, 5.0]])
    mask = torch.tensor([[True, True, False]])
    with pytest.warns(
        UserWarning, match=r"No grade is above 0\.9, so nothing is relevant to map, for which .*min_relevance"
    ):
        RankingMetrics(["ndcg", "map"]).update(preds, target, mask=mask)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NAMED_CLASSES["ndcg"](gain="linear").update(preds, target, mask=mask)
        NAMED_CLASSES["map"](min_relevance=0.5).update(preds, target, mask=mask)
        NAMED_CLASSES["map"]().update(preds, target)


def test_negative_grades_are_counted_and_said_once():
    metric = NAMED_CLASSES["map"]()
    target = torch.tensor([[1, -1, -2], [0, -1, 1]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    with pytest.warns(UserWarning, match="2 items have a grade below 0, which counts as 0"):
        metric.update(torch.rand(2, 3), target, mask=mask)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metric.update(torch.rand(2, 3), target, mask=mask)
        NAMED_CLASSES["map"]().update(torch.rand(2, 3), target.clamp(min=0), mask=mask)


def test_ideal_must_hold_what_was_retrieved():
    metric = NAMED_CLASSES["ndcg"]()
    preds, target = torch.rand(2, 3), torch.tensor([[1, 0, 2], [2, 2, 0]])
    metric.update(preds, target, ideal=torch.tensor([[2, 1, 0, 3], [2, 2, 0, 0]]))
    with pytest.raises(ValueError, match=r"`ideal` must hold .* in query 1 the grade 2 was retrieved more often"):
        metric.update(preds, target, ideal=torch.tensor([[2, 1, 0, 3], [2, 0, 1, 3]]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_set_dtype_keeps_sums_exact(dtype):
    metric = NAMED_CLASSES["ndcg"]().set_dtype(dtype)
    preds, target = torch.rand(50, 5), torch.randint(0, 3, (50, 5))
    metric.update(preds, target)
    again = NAMED_CLASSES["ndcg"]()
    again.update(preds, target)
    assert metric.set_dtype(dtype).compute() == again.compute()
    assert metric.value.dtype == torch.float64
