"""RankingMonitor in real Trainers, and what loggers and other callbacks see of it."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from torch.utils.data import DataLoader, IterableDataset

from lightning_rank.metrics import NDCG, RankingMetrics
from lightning_rank.pytorch_lightning import RankingMonitor
from tests.lightning_cases import Ranker, lists, loader, trainer

NAMES = ["ndcg@10", "map", "mrr"]


def expected(module: Ranker, queries: int = 10, seed: int = 0, **options: object) -> dict[str, float]:
    """The metrics of a module over all queries at once."""
    features, target, mask = lists(queries, seed=seed).tensors
    metrics = RankingMetrics(NAMES, **options)
    with torch.no_grad():
        metrics.update(module(features), target, mask=mask)
    return {name: value.item() for name, value in metrics.compute().items()}


def logged(run: pl.Trainer) -> dict[str, float]:
    return {name: value.item() for name, value in run.callback_metrics.items()}


class Recorder(pl.Callback):
    """What is there in the hook in which EarlyStopping and ModelCheckpoint read."""

    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self.seen.append(logged(trainer))


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_values_equal_all_queries_at_once_though_the_last_batch_is_smaller(stage):
    module = Ranker()
    run = trainer(RankingMonitor())
    getattr(run, stage)(module, loader(batch_size=4), verbose=False)
    prefix = {"validate": "val/", "test": "test/"}[stage]
    assert logged(run) == pytest.approx({prefix + k: v for k, v in expected(module).items()})


def test_other_callbacks_see_the_values_of_the_same_epoch(tmp_path):
    module = Ranker()
    recorder = Recorder()
    best = ModelCheckpoint(tmp_path, monitor="val/ndcg@10", mode="max", filename="{epoch}-{val/ndcg@10:.3f}")
    # ModelCheckpoint goes last by itself; the others stand before and behind the monitor.
    run = trainer(
        recorder,
        EarlyStopping("val/map", mode="max", patience=1, min_delta=1.0),
        RankingMonitor(),
        best,
        max_epochs=9,
        enable_checkpointing=True,
    )
    run.fit(module, loader(), loader(seed=1))
    assert run.current_epoch == 2, "EarlyStopping saw no improvement in the second epoch"
    assert len(recorder.seen) == 2
    assert recorder.seen[-1] == pytest.approx({f"val/{k}": v for k, v in expected(module, seed=1).items()})
    assert best.best_model_score.item() == pytest.approx(max(seen["val/ndcg@10"] for seen in recorder.seen))


def test_validation_inside_an_epoch(tmp_path):
    recorder = Recorder()
    run = trainer(recorder, RankingMonitor(), val_check_interval=1)
    run.fit(Ranker(), loader(batch_size=5), loader())
    assert len(recorder.seen) == 2
    assert recorder.seen[0] != recorder.seen[1]


def test_loggers_have_what_was_computed(tmp_path):
    module = Ranker()
    loggers = [CSVLogger(tmp_path, name="csv"), TensorBoardLogger(tmp_path, name="tb")]
    recorder = Recorder()
    trainer(recorder, RankingMonitor(), max_epochs=3, logger=loggers).fit(module, loader(), loader())
    curve = [seen["val/ndcg@10"] for seen in recorder.seen]
    with Path(loggers[0].log_dir, "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["val/ndcg@10"]]
    assert [int(row["epoch"]) for row in rows] == [0, 1, 2]
    assert [float(row["val/ndcg@10"]) for row in rows] == pytest.approx(curve)

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(loggers[1].log_dir)
    events.Reload()
    assert [event.value for event in events.Scalars("val/ndcg@10")] == pytest.approx(curve)


@pytest.mark.parametrize("as_dict", [False, True])
def test_several_dataloaders_have_values_of_their_own(as_dict):
    module = Ranker()
    run = trainer(RankingMonitor())
    loaders = [loader(seed=1), loader(queries=7, seed=2)]
    names = ["fresh", "old"] if as_dict else ["dataloader_idx_0", "dataloader_idx_1"]
    run.validate(module, dict(zip(names, loaders, strict=True)) if as_dict else loaders, verbose=False)
    first, second = expected(module, seed=1), expected(module, queries=7, seed=2)
    wanted = {f"val/{k}/{names[0]}": v for k, v in first.items()} | {f"val/{k}/{names[1]}": v for k, v in second.items()}
    assert logged(run) == pytest.approx(wanted)


class Stream(IterableDataset):
    """Batches that nobody can count beforehand, so that dataloaders are logged at the end of the epoch."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        return iter(loader(seed=self.seed))


@pytest.mark.parametrize("counted", [True, False])
def test_one_of_several_dataloaders_is_monitored(tmp_path, counted):
    loaders = [loader(seed=seed) if counted else DataLoader(Stream(seed), batch_size=None) for seed in (1, 2)]
    recorder, key = Recorder(), "val/ndcg@10/dataloader_idx_1"
    best = ModelCheckpoint(tmp_path, monitor=key, mode="max")
    stop = EarlyStopping(key, mode="max", patience=2, min_delta=1.0)
    logger = CSVLogger(tmp_path)
    run = trainer(recorder, RankingMonitor(), best, stop, max_epochs=9, enable_checkpointing=True, logger=logger)
    run.fit(Ranker(), loader(), loaders)
    assert len(recorder.seen) == 3
    curve = [seen[key] for seen in recorder.seen]
    assert best.best_model_score.item() == pytest.approx(max(curve))
    with Path(logger.log_dir, "metrics.csv").open(newline="") as file:
        assert [float(row[key]) for row in csv.DictReader(file) if row[key]] == pytest.approx(curve)
    module = Ranker.load_from_checkpoint(best.best_model_path)
    run.validate(module, loaders, verbose=False)
    wanted = {f"val/{k}/dataloader_idx_{i}": v for i in (0, 1) for k, v in expected(module, seed=i + 1).items()}
    assert logged(run) == pytest.approx(wanted)
    assert {type(name) for name in run.callback_metrics} == {str}


def test_nothing_is_logged_in_a_barebones_trainer():
    run = pl.Trainer(accelerator="cpu", barebones=True, callbacks=[RankingMonitor()])
    run.validate(Ranker(), [loader(seed=1), loader(seed=2)], verbose=False)
    assert not run.callback_metrics


def test_sanity_check_neither_logs_nor_reaches_the_first_epoch():
    module = Ranker()
    recorder = Recorder()
    run = trainer(recorder, RankingMonitor(), num_sanity_val_steps=2)
    run.fit(module, loader(), loader(seed=1))
    assert len(recorder.seen) == 1
    assert logged(run) == pytest.approx({f"val/{k}": v for k, v in expected(module, seed=1).items()})


def test_sanity_check_says_what_is_wrong_and_the_epoch_raises():
    run = trainer(RankingMonitor(), num_sanity_val_steps=1)
    with (
        pytest.warns(UserWarning, match=r"Ranker\.validation_step"),
        pytest.raises(ValueError, match=r"Ranker\.validation_step"),
    ):
        run.fit(Ranker(lambda preds, target, mask: {"scores": preds}), loader(), loader())


def test_keys_rename_the_outputs():
    module = Ranker(lambda preds, target, mask: {"logits": preds, "labels": target, "is_item": mask, "loss": preds.sum()})
    run = trainer(RankingMonitor(keys={"preds": "logits", "target": "labels", "mask": "is_item"}))
    run.validate(module, loader(), verbose=False)
    assert logged(run) == pytest.approx({f"val/{k}": v for k, v in expected(module).items()})


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        (lambda p, t, m: None, r"Ranker\.test_step to return a dict with 'preds'.*it returned None"),
        (lambda p, t, m: p.mean(), r"it returned a Tensor"),
        (lambda p, t, m: {"preds": p, "loss": p.mean()}, r"the keys that came are 'preds', 'loss'.*keys="),
        (lambda p, t, m: {}, r"the keys that came are none"),
        (lambda p, t, m: {"preds": p, "target": t[:, :2]}, r"test_step, batch 0: `target` must have the shape of `preds`"),
        (lambda p, t, m: {"preds": p, "target": t, "mask": m.float()}, r"test_step, batch 0: `mask` must be bool"),
    ],
)  # fmt: skip
def test_a_step_that_returns_nothing_usable(outputs, words):
    with pytest.raises((ValueError, TypeError), match=words):
        trainer(RankingMonitor()).test(Ranker(outputs), loader(), verbose=False)


def test_nan_scores_of_a_diverged_model_name_step_batch_and_query():
    module = Ranker()
    run = trainer(RankingMonitor())

    def diverged(preds, target, mask):
        preds = preds.clone()
        preds[1, 0] = torch.nan
        return {"preds": preds, "target": target, "mask": mask}

    module.outputs = diverged
    with pytest.raises(ValueError, match=r"Ranker\.validation_step, batch 0: `preds` must not be NaN.*query 1"):
        run.validate(module, loader(), verbose=False)


def test_two_monitors_must_not_log_one_key():
    with pytest.raises(ValueError, match=r"Two RankingMonitors would log val/map.*prefix"):
        trainer(RankingMonitor(["map", "mrr"]), RankingMonitor(["ndcg", "map"])).validate(Ranker(), loader(), verbose=False)


def test_two_monitors_with_prefixes():
    module = Ranker()
    run = trainer(RankingMonitor(), RankingMonitor(prefix="linear/", gain="linear"))
    run.validate(module, loader(), verbose=False)
    wanted = {f"val/{k}": v for k, v in expected(module).items()}
    wanted |= {f"linear/{k}": v for k, v in expected(module, gain="linear").items()}
    assert logged(run) == pytest.approx(wanted)


def test_counts_are_logged_on_request():
    run = trainer(RankingMonitor(num_queries=True, empty_queries=True, empty_target_action="skip"))
    run.validate(Ranker(), loader(), verbose=False)
    assert run.callback_metrics["val/num_queries"] == 9
    assert run.callback_metrics["val/empty_queries"] == 1


def test_a_batch_in_which_every_query_is_empty_counts_as_the_action_says():
    module = Ranker(lambda p, t, m: {"preds": p, "target": torch.zeros_like(t), "mask": m})
    run = trainer(RankingMonitor(empty_target_action="pos"))
    run.validate(module, loader(), verbose=False)
    assert logged(run) == {f"val/{name}": 1.0 for name in NAMES}


def test_conventions_reach_the_metrics():
    module = Ranker()
    run = trainer(RankingMonitor(convention="lightgbm"))
    run.validate(module, loader(), verbose=False)
    assert logged(run) == pytest.approx({f"val/{k}": v for k, v in expected(module, convention="lightgbm").items()})


def test_metrics_follow_the_device_of_the_data():
    # The meta device stands in for one that is not there: no value, but every operation checks devices.
    module = Ranker()
    monitor = RankingMonitor(advice=False)
    monitor._start([1], module)
    monitor._update(
        {"preds": torch.rand(2, 3, device="meta"), "target": torch.ones(2, 3, device="meta")},
        module,
        "validation_step",
        0,
        0,
    )
    assert monitor._metrics[0].device.type == "meta"


def test_validate_before_fit_leaves_no_inference_tensors():
    module = Ranker()
    run = trainer(RankingMonitor())
    run.validate(module, loader(), verbose=False)
    run.fit(module, loader(), loader())
    assert logged(run) == pytest.approx({f"val/{k}": v for k, v in expected(module).items()})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"metrics": ["ndgc@10"]}, r"Unknown metric 'ndgc'.*'ndcg'"),
        ({"metrics": ["ndcg@0"]}, r"cutoff"),
        ({"metrics": []}, r"at least one"),
        ({"keys": {"scores": "logits"}}, r"'scores' is none of them"),
        ({"gain": "cubic"}, r"`gain` must be one of"),
        ({"metrics": ["map"], "gain": "linear"}, r"`gain` means nothing for map"),
        ({"convention": "trec"}, r"Unknown convention 'trec'.*'trec_eval'"),
    ],
)
def test_bad_options_are_refused_when_built(options, words):
    with pytest.raises(ValueError, match=words):
        RankingMonitor(**options)


def test_both_namespaces_have_classes_of_their_own():
    lightning = pytest.importorskip("lightning.pytorch", reason="the package `lightning` is not installed")
    import lightning_rank.lightning
    import lightning_rank.pytorch_lightning

    for name in lightning_rank.lightning.__all__:
        theirs, ours = getattr(lightning_rank.lightning, name), getattr(lightning_rank.pytorch_lightning, name)
        assert theirs is not ours
        assert theirs.__doc__ == ours.__doc__
        io = lightning.plugins.CheckpointIO
        kinds = (lightning.Callback, lightning.LightningModule, lightning.LightningDataModule, io)
        assert issubclass(theirs, kinds)
        assert not issubclass(ours, kinds)


def test_intervals_are_logged_on_request():
    module = Ranker()
    run = trainer(RankingMonitor(["ndcg@10"], interval=0.9))
    run.validate(module, loader(), verbose=False)
    features, target, mask = lists().tensors
    metric = NDCG(10)
    with torch.no_grad():
        metric.update(module(features), target, mask=mask)
    _, low, high, *_ = metric.interval(0.9)
    value = metric.compute().item()
    wanted = {"val/ndcg@10": value, "val/ndcg@10/low": low, "val/ndcg@10/high": high}
    assert logged(run) == pytest.approx(wanted)
    assert low < value < high


def test_advice_is_given_once():
    module = Ranker(lambda p, t, m: {"preds": p, "target": (t > 2).long(), "mask": m})
    run = trainer(RankingMonitor(["ndcg@50"]), max_epochs=2)
    with pytest.warns(UserWarning, match="RankingMonitor") as caught:
        run.fit(module, loader(), loader())
    said = [str(warning.message) for warning in caught if "RankingMonitor" in str(warning.message)]
    assert len(said) == len(set(said))
    assert any("Grades are binary" in text for text in said)
    assert any("No list has more than 6 items, so a cutoff of 50 cuts nothing" in text for text in said)


@pytest.mark.parametrize("layout", ["padded", "indexes", "parts"])
def test_advice_on_queries_without_a_relevant_item_in_each_layout(layout, recwarn):
    batch = {"preds": torch.randn(4, 6), "target": torch.zeros(4, 6, dtype=torch.long)}
    if layout != "padded":
        batch = {name: value.flatten() for name, value in batch.items()} | {"indexes": torch.arange(4).repeat_interleave(6)}
    batches = [dict(batch) for _ in range(2)]
    if layout == "indexes":
        batches[1]["indexes"] = batches[1]["indexes"] + 4
    module = Ranker()
    module.validation_step = lambda batch, batch_idx: batch
    trainer(RankingMonitor(["ndcg@3"])).validate(module, DataLoader(batches, batch_size=None), verbose=False)
    said = [str(w.message) for w in recwarn if "RankingMonitor: " in str(w.message)]
    # Where the second batch has more items of the same queries, a batch tells nothing of a query.
    assert ["8 of 8 queries have no relevant item" in text for text in said] == ([] if layout == "parts" else [True])


def test_advice_can_be_silenced(recwarn):
    module = Ranker(lambda p, t, m: {"preds": p, "target": (t > 2).long(), "mask": m})
    trainer(RankingMonitor(["ndcg@50"], advice=False)).validate(module, loader(), verbose=False)
    assert not [w for w in recwarn if "RankingMonitor" in str(w.message)]


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_each_dataloader_has_its_own_column_in_lightnings_results(stage, capsys):
    module = Ranker()
    run = trainer(RankingMonitor())
    results = getattr(run, stage)(module, [loader(seed=1), loader(queries=7, seed=2)])
    prefix = {"validate": "val", "test": "test"}[stage]
    for i, (result, wanted) in enumerate(
        zip(results, (expected(module, seed=1), expected(module, 7, seed=2)), strict=True)
    ):
        assert result == pytest.approx({f"{prefix}/{name}/dataloader_idx_{i}": value for name, value in wanted.items()})


@pytest.mark.parametrize("name", ["masks", "index", "indices", "offset"])
def test_an_output_that_is_nearly_a_layout_is_not_left_out_silently(name):
    module = Ranker(lambda p, t, m: {"preds": p, "target": t, name: m})
    with pytest.warns(UserWarning, match=f"RankingMonitor does not read '{name}', which Ranker.validation_step returned"):
        trainer(RankingMonitor()).validate(module, loader(), verbose=False)


def test_outputs_that_are_no_layout_are_nobodys_business(recwarn):
    module = Ranker(lambda p, t, m: {"preds": p, "target": t, "mask": m, "loss": p.mean(), "embeddings": p, "masks": m})
    trainer(RankingMonitor(advice=False)).validate(module, loader(), verbose=False)
    assert not [w for w in recwarn if "RankingMonitor" in str(w.message)]


def test_ids_that_start_anew_in_each_batch_are_said():
    module = Ranker(lambda p, t, m: {"preds": p, "target": t, "mask": m, "indexes": torch.arange(len(p))})
    with pytest.warns(UserWarning, match="6 queries had an id that had come before, and were left out"):
        trainer(RankingMonitor()).validate(module, loader(), verbose=False)


@pytest.mark.parametrize(
    ("outputs", "error", "words"),
    [
        (lambda p, t, m: {"preds": p, "target": None}, ValueError, "'target' is None"),
        (lambda p, t, m: {"preds": p.numpy(), "target": t}, TypeError, "`preds` must be a tensor, got ndarray"),
    ],
)
def test_outputs_of_a_wrong_kind(outputs, error, words):
    with pytest.raises(error, match=words):
        trainer(RankingMonitor()).validate(Ranker(outputs), loader(), verbose=False)
