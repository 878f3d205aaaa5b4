"""What users of torchmetrics and Lightning rely on: wrappers, collections, copies, dtypes, syncs, logging."""

from __future__ import annotations

import copy
import io
import math
import pickle
import random
from collections.abc import Iterable
from contextlib import contextmanager, nullcontext
from functools import cache
from statistics import fmean, median
from typing import Any

import pytest
import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection, MetricTracker
from torchmetrics.wrappers import BootStrapper, MinMaxMetric, MultioutputWrapper, MultitaskWrapper, Running
from torchmetrics.wrappers.bootstrapping import _bootstrap_sampler

from lightning_rank.functional.metrics import METRICS
from lightning_rank.metrics import MAP, MRR, NAMED_CLASSES, NDCG, RankingMetrics
from tests import reference
from tests.conftest import Query, lay_out

ALL = [f"{name}@2" if spec.takes_top_k else name for name, spec in METRICS.items()]
# Ways to feed a metric, each with a state of its own: sums, rows by id, items by id, rows without id.
every_way = pytest.mark.parametrize("way", ["padded", "offsets", "ids", "indexes", "median"])


def epoch(seed: int, queries: int = 4) -> list[Query]:
    """Queries with ties and grades 0 to 3; the last has no relevant item."""
    rng = random.Random(seed)
    sizes = [rng.randint(2, 6) for _ in range(queries)]
    batch = [
        {"preds": [rng.randint(0, 8) for _ in range(n)], "target": [rng.randint(0, 3) for _ in range(n)]} for n in sizes
    ]
    batch[-1]["target"] = [0] * sizes[-1]
    return batch


@cache
def value_of(full_name: str, preds: tuple, target: tuple) -> float:
    """By the reference; a query without a value counts 0."""
    name, _, top_k = full_name.partition("@")
    value = reference.metric_value(name, preds, target, int(top_k) if top_k else None)
    return 0.0 if math.isnan(value) else value


def mean(name: str, batch: list[Query], way: str = "padded") -> float:
    values = [value_of(name, tuple(query["preds"]), tuple(query["target"])) for query in batch]
    return median(values) if way == "median" else fmean(values)


def close(value: Any) -> Any:
    return pytest.approx(value, rel=1e-6)


def means(names: Iterable[str], batch: list[Query], way: str = "padded") -> dict[str, Any]:
    """What ``compute`` of several metrics must equal."""
    return {name: close(mean(name, batch, way)) for name in names}


def made(kind: Any, way: str, **options: Any) -> Any:
    """A metric for what is fed in a way: a class at cutoff 2, or names."""
    options |= {"aggregation": "median"} if way == "median" else {}
    return RankingMetrics(kind, **options) if isinstance(kind, list) else kind(2, **options)


def fed(batch: list[Query], way: str, start: int = 0, **dtypes: torch.dtype) -> dict[str, Tensor]:
    """Arguments of an update; ids count from ``start``."""
    ids = range(start, start + len(batch))
    layout = way if way in ("offsets", "indexes") else "padded"
    update = lay_out(batch, layout, dtypes={"preds": torch.float32, "target": torch.int64} | dtypes, ids=ids, seed=start)
    return update | {"indexes": torch.tensor(ids)} if way == "ids" else update


def states(metric: Metric) -> list[Tensor]:
    return [t for state in metric.metric_state.values() for t in (state if isinstance(state, list) else [state])]


def num_bytes(metric: Metric) -> int:
    return sum(t.numel() * t.element_size() for t in states(metric))


# Wrappers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_tracker_finds_the_best_epoch(name):
    short, _, top_k = name.partition("@")
    tracker = MetricTracker(NAMED_CLASSES[short](**{"top_k": 2} if top_k else {}), maximize=None)
    for seed in range(3):
        tracker.increment()
        tracker.update(**fed(epoch(seed), "padded"))
        tracker.update(**fed(epoch(seed + 10), "offsets"))
        assert tracker.compute() == close(mean(name, epoch(seed) + epoch(seed + 10)))
    values = [mean(name, epoch(seed) + epoch(seed + 10)) for seed in range(3)]
    assert tracker.compute_all().tolist() == close(values)
    best, step = tracker.best_metric(return_step=True)
    assert best == close(max(values) if METRICS[short].higher_is_better else min(values))
    assert best == close(values[step])


@every_way
@pytest.mark.parametrize("kind", ["collection", "of several", "several"])
def test_tracker_of_many_metrics(kind, way):
    names = ["ndcg@2", "mrr@2"]
    several = made(names, way)
    separate = MetricCollection({"ndcg@2": made(NDCG, way), "mrr@2": made(MRR, way)})
    base = {"collection": separate, "of several": MetricCollection([several]), "several": several}[kind]
    tracker = MetricTracker(base, maximize=True)
    for seed in range(3):
        tracker.increment()
        tracker.update(**fed(epoch(seed), way))
    expected = {name: [mean(name, epoch(seed), way) for seed in range(3)] for name in names}
    found = {name: values.tolist() for name, values in tracker.compute_all().items()}
    assert found == {name: close(values) for name, values in expected.items()}
    if kind != "several":  # torchmetrics finds the best of a dictionary for collections alone
        assert tracker.best_metric() == {name: close(max(values)) for name, values in expected.items()}


def test_what_is_better_is_known_of_several():
    assert RankingMetrics(["ndcg", "mrr"]).higher_is_better is True
    assert RankingMetrics(["fall_out@2", "fall_out@5"]).higher_is_better is False
    mixed = RankingMetrics(["ndcg", "fall_out"])
    assert mixed.clone().higher_is_better is mixed.higher_is_better is None
    with pytest.raises(AttributeError, match="maximize"):
        MetricTracker(mixed, maximize=None)


def test_bootstrap_draws_queries():
    batch = epoch(0, 40)
    torch.manual_seed(5)
    boot = BootStrapper(NDCG(2), num_bootstraps=8, raw=True, sampling_strategy="multinomial")
    boot.update(**fed(batch, "padded"))
    torch.manual_seed(5)
    draws = [_bootstrap_sampler(40, "multinomial").tolist() for _ in range(8)]
    assert boot.compute()["raw"].tolist() == close([mean("ndcg@2", [batch[i] for i in draw]) for draw in draws])


@every_way
def test_least_and_greatest_so_far(way):
    metric, seen, values = MinMaxMetric(made(NDCG, way)), [], []
    for seed in range(4):
        metric.update(**fed(epoch(seed), way, len(seen)))
        seen += epoch(seed)
        values.append(mean("ndcg@2", seen, way))
        assert metric.compute() == {"raw": close(values[-1]), "max": close(max(values)), "min": close(min(values))}
    assert len(set(values)) > 1


@every_way
def test_running_window(way):
    metric = Running(made(ALL, way), window=2)
    for seed in range(4):
        update = fed(epoch(seed), way, 10 * seed)
        if seed % 2:
            assert metric(**update) == means(ALL, epoch(seed), way)
        else:
            metric.update(**update)
        assert metric.compute() == means(ALL, (epoch(seed - 1) if seed else []) + epoch(seed), way)


def test_a_metric_per_output_and_per_task():
    batches = [[{"preds": [3, 1, 2], "target": [0, 2, 1]}, {"preds": [0, 2, 0], "target": [1, 0, 0]}]]
    batches.append([{"preds": query["preds"][::-1], "target": [*query["target"][1:], 3]} for query in batches[0]])
    preds, target = (torch.tensor([[query[name] for query in b] for b in batches]) for name in ("preds", "target"))
    outputs = MultioutputWrapper(NDCG(2), num_outputs=2, remove_nans=False)
    mask = torch.tensor([True, True, True]).expand(2, 3)
    outputs.update(preds.movedim(0, -1).float(), target.movedim(0, -1), mask=torch.stack([mask, mask], -1))
    assert outputs.compute().tolist() == close([mean("ndcg@2", batch) for batch in batches])
    tasks = MultitaskWrapper({"click": NDCG(2), "buy": MRR(2)})
    tasks.update(*({"click": columns[0], "buy": columns[1]} for columns in (preds, target)))
    assert tasks.compute() == {"click": close(mean("ndcg@2", batches[0])), "buy": close(mean("mrr@2", batches[1]))}


# Collections and compositions -----------------------------------------------------------------------------------------


@every_way
def test_collection_keeps_metrics_apart(way):
    collection = MetricCollection({"a": made(NDCG, way), "b": made(NDCG, way), "c": made(MRR, way), "d": made(MAP, way)})
    names, first = {"a": "ndcg@2", "b": "ndcg@2", "c": "mrr@2", "d": "map@2"}, epoch(0)[:3]

    def expected(batch: list[Query], key: str = "{}") -> dict[str, Any]:
        return {key.format(k): close(mean(name, batch, way)) for k, name in names.items()}

    collection.update(**fed(first, way))
    assert collection.compute_groups == {0: ["a"], 1: ["b"], 2: ["c"], 3: ["d"]}
    copies = {"val/{}/x": collection.clone(prefix="val/", postfix="/x"), "{}": copy.deepcopy(collection)}
    assert collection(**fed(epoch(1), way, 10)) == expected(epoch(1))
    assert collection.compute() == expected(first + epoch(1))
    for key, other in copies.items():
        other.update(**fed(epoch(2), way, 10))
        assert other.compute() == expected(first + epoch(2), key)
    collection.update(**fed(epoch(3), way, 20))
    assert collection.compute() == expected(first + epoch(1) + epoch(3))
    collection.reset()
    collection.update(**fed(epoch(4), way))
    assert collection.compute() == expected(epoch(4))


@every_way
def test_collection_of_equal_metrics_with_different_pasts(way):
    collection = MetricCollection({"old": made(NDCG, way), "new": made(NDCG, way)})
    collection["old"].update(**fed(epoch(0), way))
    collection.update(**fed(epoch(1), way, 10))
    collection.update(**fed(epoch(2), way, 20))
    expected = {"old": epoch(0) + epoch(1) + epoch(2), "new": epoch(1) + epoch(2)}
    assert collection.compute() == {name: close(mean("ndcg@2", batch, way)) for name, batch in expected.items()}


@every_way
def test_arithmetic_of_metrics(way):
    ndcg = made(NDCG, way)
    composed = (ndcg + made(MRR, way)) / 2 - 0.5 * made(["mrr@2", "map@2"], way)["map@2"]

    def expected(batch: list[Query]) -> Any:
        a, b, c = (mean(name, batch, way) for name in ("ndcg@2", "mrr@2", "map@2"))
        return close((a + b - c) / 2)

    composed.update(**fed(epoch(0), way))
    assert composed(**fed(epoch(1), way, 10)) == expected(epoch(1))
    assert composed.compute() == expected(epoch(0) + epoch(1))
    assert ndcg.num_queries == 8
    composed.reset()
    composed.update(**fed(epoch(2), way))
    assert composed.compute() == expected(epoch(2))


# Copies, checkpoints and merges in the middle of an epoch -------------------------------------------------------------


class Holder(torch.nn.Module):
    """A module with a metric, as a LightningModule has."""

    def __init__(self, metric: Metric) -> None:
        super().__init__()
        self.layer, self.metric = torch.nn.Linear(2, 1), metric


def through_file(value: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    return torch.load(io.BytesIO(file.getvalue()), **options)


def through_checkpoint(metric: Metric) -> Metric:
    """The state dictionary of a module around it, read by a metric that holds other data and has computed."""
    metric.persistent(True)
    other = NDCG(2, aggregation=metric.aggregation, per_query=metric.per_query)
    other.persistent(True)
    other.update(**fed(epoch(9), "ids"))
    other.compute()
    Holder(other).load_state_dict(through_file(Holder(metric).state_dict(), weights_only=True))
    return other


COPIES = {
    "deepcopy": copy.deepcopy,
    "clone": Metric.clone,
    "pickle": lambda metric: pickle.loads(pickle.dumps(metric)),
    "save": lambda metric: through_file(metric, weights_only=False),
    "checkpoint": through_checkpoint,
}


@pytest.mark.parametrize("duplicate", COPIES)
@pytest.mark.parametrize("options", [{}, {"per_query": True}, {"aggregation": "max"}], ids=str)
@every_way
def test_copy_goes_on_to_the_same_value(duplicate, options, way):
    if way == "median":
        options = {"aggregation": "median"} | options
    metric, alone = (NDCG(2, **options) for _ in range(2))
    metric.update(**fed(epoch(0), way))
    before = metric.compute()  # which a copy must not keep
    other = COPIES[duplicate](metric)
    assert other.compute() == before
    for seed, each in ((0, alone), (1, alone), (1, metric), (1, other)):
        each.update(**fed(epoch(seed), way, 10 * seed))
    assert metric.compute() == other.compute() == alone.compute()
    assert other.num_queries == 8
    if options.get("per_query"):
        torch.testing.assert_close(other.query_values(), alone.query_values(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("by", ["metric", "states"])
@every_way
def test_merged_shards_are_one(by, way):
    shards = [made(ALL, way) for _ in range(3)]
    for number, shard in enumerate(shards):
        shard.update(**fed(epoch(number), way, 10 * number))
        shard.compute()  # whose value must not stay
    for shard in shards[1:]:
        shards[0].merge_state(shard if by == "metric" else shard.metric_state)
    assert shards[0].compute() == means(ALL, epoch(0) + epoch(1) + epoch(2), way)
    assert shards[0].num_queries == dict.fromkeys(ALL, 12)
    assert shards[1].compute() == means(ALL, epoch(1), way)


def test_only_the_same_metric_can_be_merged():
    metric, others = (
        RankingMetrics(["ndcg@5"]),
        (RankingMetrics(["ndcg@1"]), RankingMetrics(["ndcg@5"], gain="linear"), MRR()),
    )
    for other in others:
        with pytest.raises(ValueError, match="same names and options"):
            metric.merge_state(other)
    metric.merge_state(RankingMetrics(["ndcg@5"], prefix="val/"))


# Dtypes, devices and modes --------------------------------------------------------------------------------------------

MOVES = {
    "half": lambda metric: Holder(metric).half(),
    "double": lambda metric: Holder(metric).double(),
    "to bfloat16": lambda metric: Holder(metric).to("cpu", torch.bfloat16),
    "type": lambda metric: Holder(metric).type(torch.float16),
    "to half, alone": lambda metric: metric.to(torch.float16),
    "set_dtype": lambda metric: metric.set_dtype(torch.bfloat16),
    "cpu": lambda metric: metric.cpu(),
}


@pytest.mark.parametrize("move", MOVES)
@every_way
def test_no_move_rounds_the_state(move, way):
    # Scores that half precision would tie.
    batch = [{"preds": [1000.0, 1000.001, 999.999], "target": [0, 0, 1]}, {"preds": [0.1, 0.1001], "target": [2, 0]}]
    metric = made(MRR, way)
    for number in range(6):
        metric.update(**fed(batch * 3, way, 10 * number))
        if number in (0, 4):
            MOVES[move](metric)
    assert metric.compute() == close(mean("mrr@2", batch, way))
    metric.reset()
    assert {t.dtype for t in [*states(metric), metric._fill]} == {torch.float64, torch.int64}


def test_a_device_without_float64_gets_float32(monkeypatch):
    monkeypatch.setattr("lightning_rank.metrics.sum_dtype", lambda device: torch.float32)
    metric = Holder(NDCG()).to("meta").metric
    assert {t.dtype for t in [*states(metric), metric._fill]} == {torch.float32, torch.int64}


@contextmanager
def deterministic():
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


MODES = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "grad": nullcontext,
    "deterministic": deterministic,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("mode", MODES)
@every_way
def test_scores_of_a_layer_in_every_mode(mode, way):
    torch.manual_seed(0)
    layer, metric, seen = torch.nn.Linear(3, 1), made(ALL, way), []
    target = [[3, 0, 0, 1], [0, 0, 2, 0], [1, 1, 0, 0]]
    for number in range(2):
        with MODES[mode]():
            scores = layer(torch.randn(3, 4, 3)).squeeze(-1)
            batch = [{"preds": a, "target": b} for a, b in zip(scores.tolist(), target, strict=True)]
            update = fed(batch, way, 10 * number, preds=scores.dtype)
            update["preds"].requires_grad_()
            assert metric(**update) == means(ALL, batch, way)
            seen += batch
    assert scores.dtype == (torch.bfloat16 if mode == "autocast" else torch.float32)
    value = copy.deepcopy(metric).compute()
    assert value == means(ALL, seen, way)
    assert not any(t.requires_grad for t in [*value.values(), *states(metric)])


@pytest.mark.parametrize(
    ("preds", "target"),
    [("int8", "int8"), ("int16", "int16"), ("bfloat16", "int32"), ("float64", "bfloat16"), ("float16", "float32")],
)
@every_way
def test_further_dtypes(way, preds, target):
    metric = made(ALL, way)
    metric.update(**fed(epoch(1), way, preds=getattr(torch, preds), target=getattr(torch, target)))
    assert metric.compute() == means(ALL, epoch(1), way)
    dtype = torch.float64 if preds == "float64" else torch.float32
    assert {value.dtype for value in metric.compute().values()} == {dtype}


# Streams --------------------------------------------------------------------------------------------------------------


def test_forward_costs_no_memory_however_often():
    metric, update = NDCG(2), fed(epoch(0), "padded")
    metric(**update)
    held, pickled = num_bytes(metric), len(pickle.dumps(metric))
    for _ in range(1000):
        metric(**update)
    assert num_bytes(metric) == held < 1024
    assert len(pickle.dumps(metric)) < pickled + 100
    assert metric.compute() == close(mean("ndcg@2", epoch(0)))
    assert metric.num_queries == 4004


@pytest.mark.parametrize("layout", ["padded", "offsets", "whole_queries"])
def test_a_million_queries_in_a_kibibyte(layout):
    metric, size = MRR(whole_queries=layout == "whole_queries"), 250_000
    # Relevant is the item of rank 1, 2, 3, 1, ...; 250,000 is 3 * 83,333 + 1.
    target = torch.nn.functional.one_hot(torch.arange(size) % 3, 3)
    update = {"preds": torch.tensor([3.0, 2.0, 1.0]).expand(size, 3), "target": target}
    if layout != "padded":
        update = {name: tensor.flatten() for name, tensor in update.items()}
        ids = {"indexes": torch.arange(3 * size) // 3}
        update |= ids if layout == "whole_queries" else {"offsets": 3 * torch.arange(size + 1)}
    for _ in range(4):
        metric.update(**update)
    assert metric.num_queries == 1_000_000
    assert num_bytes(metric) < 1024
    assert metric.compute() == pytest.approx((83_334 + 83_333 / 2 + 83_333 / 3) / size, rel=1e-7)


# What forward and compute gather from two processes that hold the same queries, of which ids count once.
@pytest.mark.parametrize(
    ("options", "in_forward", "in_compute"),
    [({}, False, True), ({"dist_sync_on_step": True}, True, True), ({"sync_on_compute": False}, False, False)],
    ids=str,
)
@pytest.mark.parametrize("way", ["padded", "offsets", "ids", "median"])
def test_processes_gather_when_they_are_told_to(way, options, in_forward, in_compute):
    gathered = []

    def gather(state: Tensor, group: Any) -> list[Tensor]:
        gathered.append(state)
        return [state, state.clone()]

    metric = made(NDCG, way, dist_sync_fn=gather, distributed_available_fn=lambda: True, **options)
    for seed in (0, 1):
        gathered.clear()
        assert metric(**fed(epoch(seed), way, 10 * seed)) == close(mean("ndcg@2", epoch(seed), way))
        assert bool(gathered) == in_forward
    for _ in range(2):  # twice, since the state must be the process's own again after the first
        gathered.clear()
        metric._computed = None
        assert metric.compute() == close(mean("ndcg@2", epoch(0) + epoch(1), way))
        assert bool(gathered) == in_compute
        assert metric.num_queries == (16 if in_compute and way != "ids" else 8)


@pytest.mark.filterwarnings("ignore:No query has a value", "ignore:The ``compute`` method")
@pytest.mark.parametrize("options", [{}, {"compute_on_cpu": True}], ids=str)
@every_way
def test_updates_are_counted_and_reset(options, way):
    metric = made(NDCG, way, **options)
    for number in (0, 1, 2):
        seen = []
        for seed in range(number):
            metric.update(**fed(epoch(seed), way, 20 * seed))
            metric(**fed(epoch(seed + 5), way, 20 * seed + 10))
            seen += epoch(seed) + epoch(seed + 5)
            assert (metric.update_called, metric._update_count) == (True, 2 * seed + 2)
        assert metric.compute() == close(mean("ndcg@2", seen, way)) if seen else metric.compute().isnan()
        metric.reset()
        assert (metric.update_called, metric._update_count) == (False, 0)
        assert num_bytes(metric) == num_bytes(NDCG(2))


@every_way
def test_updates_without_items_count_as_updates_alone(way):
    ignored = [query | {"target": [-100] * len(query["target"])} for query in epoch(3)]
    metric = made(NDCG, way, ignore_index=-100)
    empty = {name: tensor[:0] for name, tensor in fed(epoch(0), way).items() if name != "offsets"}
    metric.update(**empty, **{"offsets": torch.zeros(1).long()} if way == "offsets" else {})
    metric.update(**fed(ignored, way, 20))
    assert metric.update_called
    with pytest.warns(UserWarning, match="No query has a value, so the metric is NaN: there was none"):
        assert metric.compute().isnan()
    metric.update(**fed(epoch(0), way))
    metric.update(**fed(ignored, way, 30))
    assert metric.compute() == close(mean("ndcg@2", epoch(0), way))
    assert metric.num_queries == 4


# Errors ---------------------------------------------------------------------------------------------------------------

P, T, IDS = torch.tensor([3.0, 1.0, 2.0, 0.0]), torch.tensor([1, 0, 0, 1]), torch.tensor([7, 7, 9, 9])


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({"indexes": IDS > 7}, "`indexes` must be whole numbers .*got torch.bool"),
        ({"indexes": IDS.tolist()}, "`indexes` must be a tensor, got list"),
        ({"indexes": IDS.view(2, 2)}, r"flat `preds` \[4\], `indexes` is .*got \[2, 2\]"),
        ({"indexes": IDS.to("meta")}, "on one device, got `preds` on cpu, `indexes` on meta"),
        ({"offsets": torch.tensor([0, 3, 2, 4])}, r"`offsets` must .*never fall.*got \[0, 3, 2, 4\]"),
        ({"offsets": torch.tensor([1, 4])}, r"`offsets` must start at 0.*got \[1, 4\]"),
        ({"offsets": torch.tensor([0.0, 4.0])}, "`offsets` must be whole numbers .*got torch.float32"),
        ({"offsets": torch.tensor([0, 4]), "indexes": IDS}, r"`indexes` is the id of each query, \[1\], got \[4\]"),
        ({"preds": P.view(2, 2), "target": T.view(2, 2), "mask": T > 0}, r"`mask` must have .*\[2, 2\], got \[4\]"),
        ({"preds": P.where(P != 2, math.nan), "indexes": IDS}, r"1 NaN in query 1 \(id 9\); 1 of 2"),
        ({"preds": None}, "`preds` must be a tensor, got NoneType"),
        ({"preds": P[0], "target": T[0]}, r"`preds` must be \[query, item\], or flat \[item\], got the shape \[\]"),
    ],
)
@pytest.mark.parametrize("kind", [MRR, ["mrr", "ndcg"]], ids=["one", "several"])
def test_errors_say_what_must_hold_and_what_came(kind, update, message):
    with pytest.raises((TypeError, ValueError), match=message):
        made(kind, "padded").update(**{"preds": P, "target": T} | update)
