"""RankingMonitor with a baseline, and RankingReport: in real Trainers, by the functions on the same values."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import polars as pl
import pytest
import torch
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from torch.utils.data import DataLoader, TensorDataset

from lightning_rank import LinearScorer, RankingModule, SyntheticDataModule
from lightning_rank.functional import average_precision, ndcg
from lightning_rank.offline.evaluate import evaluate
from lightning_rank.offline.per_query import read_per_query, write_per_query
from lightning_rank.pytorch_lightning import RankingMonitor, RankingReport
from lightning_rank.stats import paired
from tests.lightning_cases import Ranker, lists, trainer

QUERIES = 30


class WithIds(Ranker):
    """A ranker whose batches carry the id of each query."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch[:3], batch_idx)

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        return super().validation_step(batch[:3], batch_idx) | {"indexes": batch[3]}

    test_step = validation_step


def data(queries=QUERIES, first=100):
    """The last query has no relevant item."""
    tensors = lists(queries).tensors
    return DataLoader(TensorDataset(*tensors, torch.arange(first, first + queries)), batch_size=7)


def ranker(*weight):
    model = WithIds()
    with torch.no_grad():
        model.scorer.weight.copy_(torch.tensor([weight]))
        model.scorer.bias.zero_()
    return model


def values(model, metric=ndcg, top_k=3):
    """The value of each query by its id, 0 where nothing is relevant."""
    features, target, mask = lists(QUERIES).tensors
    with torch.no_grad():
        found = metric(model(features), target, top_k, mask=mask).double()
    return {str(i): v for i, v in enumerate(found.nan_to_num(0).tolist(), 100)}


OLD, NEW = ranker(1.0, 0.0, 0.0), ranker(0.5, 1.0, -0.5)


@pytest.fixture
def baseline(tmp_path):
    path = str(tmp_path / "baseline.parquet")
    trainer(RankingMonitor(["ndcg@3", "map"]), RankingReport(path, "val/ndcg@3")).validate(OLD, data(), verbose=False)
    return path


def validated(monitor, model=NEW, loaders=None, **options):
    run = trainer(monitor, **options)
    run.validate(model, loaders or data(), verbose=False)
    return {name: float(value) for name, value in run.callback_metrics.items()}


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet", "jsonl", "csv.gz"])
def test_a_report_holds_the_value_of_each_query(suffix, tmp_path):
    path = str(tmp_path / f"values.{suffix}")
    report = RankingReport(path, "val/ndcg@3", name="old")
    trainer(report, RankingMonitor(["ndcg@3", "map"])).validate(OLD, data(), verbose=False)
    found = read_per_query(path, ["ndcg@3", "map"])
    assert found == {
        "ndcg@3": pytest.approx(values(OLD)),
        "map": pytest.approx(values(OLD, average_precision, None)),
    }
    assert report.best == pytest.approx(math.fsum(values(OLD).values()) / QUERIES)
    if suffix == "csv":
        assert pl.read_csv(path).columns == ["run", "query", "ndcg@3", "map"]
        assert set(pl.read_csv(path)["run"]) == {"old"}


@pytest.mark.parametrize("level", [None, 0.8])
def test_differences_from_the_baseline_are_those_of_the_paired_test(level, baseline, recwarn):
    logged = validated(RankingMonitor(["ndcg@3", "map"], baseline=baseline, interval=level, advice=False))
    for name, metric, top_k in (("ndcg@3", ndcg, 3), ("map", average_precision, None)):
        wanted = paired(values(OLD, metric, top_k), values(NEW, metric, top_k), alpha=1 - (level or 0.95))
        ends = {"": wanted.difference, "/low": wanted.low, "/high": wanted.high}
        assert {end: logged[f"val/{name}/difference{end}"] for end in ends} == pytest.approx(ends, abs=1e-6)
    assert "val/map/low" in logged or level is None
    assert not [w for w in recwarn if "baseline" in str(w.message)], "every query is in both"


def test_the_same_model_differs_by_nothing(baseline):
    logged = validated(RankingMonitor(["map"], baseline=baseline), OLD)
    assert [logged[f"val/map/difference{end}"] for end in ("", "/low", "/high")] == [0, 0, 0]


def test_a_file_of_evaluate_is_a_baseline(tmp_path):
    from lightning_rank.data.runs import Judgements, Run
    from lightning_rank.data.tables import write_table

    features, target, mask = lists(QUERIES).tensors
    with torch.no_grad():
        scores = OLD(features)
    judged, run = ({}, {})
    for q in range(QUERIES):
        items = mask[q].nonzero().flatten().tolist()
        judged[str(100 + q)] = {f"d{i}": float(target[q, i]) for i in items}
        run[str(100 + q)] = {f"d{i}": float(scores[q, i]) for i in items}
    result = evaluate(Judgements.from_dict(judged), Run.from_dict(run, name="old"), "ndcg@3 map")
    write_table(tmp_path / "old.csv", result.to_polars())
    logged = validated(RankingMonitor(["ndcg@3"], baseline=str(tmp_path / "old.csv")))
    assert logged["val/ndcg@3/difference"] == pytest.approx(paired(values(OLD), values(NEW)).difference, abs=1e-6)


def test_training_compares_each_epoch_and_the_test_none(baseline, tmp_path):
    seen = []

    class Recorder(RankingMonitor):
        def on_validation_end(self, trainer, pl_module):
            if not trainer.sanity_checking:
                seen.append([float(trainer.callback_metrics[f"val/map{end}"]) for end in ("", "/difference")])

    run = trainer(Recorder(["map"], baseline=baseline), max_epochs=3, num_sanity_val_steps=2)
    run.fit(ranker(-1.0, 0.0, 0.0), data(), data())
    assert len(seen) == 3
    assert seen[0] != seen[1]
    old = math.fsum(values(OLD, average_precision, None).values()) / QUERIES
    assert [difference for _, difference in seen] == pytest.approx([value - old for value, _ in seen], abs=1e-6)
    run.test(NEW, data(), verbose=False)
    assert set(run.callback_metrics) == {"test/map"}


def test_queries_of_one_side_are_left_out_and_said_once(baseline):
    monitor = RankingMonitor(["ndcg@3", "map"], baseline=baseline, advice=False)
    run = trainer(monitor, max_epochs=2)
    with pytest.warns(UserWarning, match="baseline") as caught:
        run.fit(ranker(0.0, 1.0, 0.0), data(), data(first=110))
    said = [str(w.message) for w in caught if "baseline" in str(w.message)]
    assert len(said) == 1
    assert "20 queries have a value of ndcg@3 here and in the baseline" in said[0]
    assert "10 only there and 10 only here are left out" in said[0]


def test_a_skipped_query_has_no_value(tmp_path):
    path = str(tmp_path / "v.csv")
    trainer(RankingMonitor(["map"], empty_target_action="skip"), RankingReport(path, "val/map")).validate(
        OLD, data(), verbose=False
    )
    assert len(read_per_query(path, ["map"])["map"]) == QUERIES - 1
    write_per_query(tmp_path / "all.csv", {"map": values(OLD, average_precision, None)}, run="old")
    with pytest.warns(UserWarning, match="1 only there and 0 only here"):
        logged = validated(RankingMonitor(["map"], empty_target_action="skip", baseline=str(tmp_path / "all.csv")))
    assert math.isfinite(logged["val/map/difference"])


def test_queries_of_a_data_module_have_their_ids(tmp_path):
    module = RankingModule(LinearScorer(16), "softmax")
    data_module = SyntheticDataModule(num_train=8, num_val=9, num_test=8)
    data_module.setup("validate")
    names = [f"question {i}" for i in range(9)]
    object.__setattr__(data_module.splits["val"], "query_ids", names)
    path = str(tmp_path / "v.jsonl")
    trainer(RankingMonitor(["map"]), RankingReport(path, "val/map")).validate(module, data_module, verbose=False)
    assert sorted(read_per_query(path, ["map"])["map"]) == names
    logged = validated(RankingMonitor(["map"], baseline=path), module, data_module)
    assert logged["val/map/difference"] == 0


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda path: path.unlink(), FileNotFoundError, r"no file at"),
        (lambda path: write_per_query(path, {"mrr": {"100": 1.0}}, run="x"), ValueError,
         r"baseline\.parquet: there are no values of map; there are those of mrr"),
        (lambda path: write_per_query(path, {"map": {"a": 1.0, "b": 0.0}}, run="x"), ValueError,
         r"must have two queries or more with a value of map in common with the validation, got 0: 'a', 'b' against '100'"),
        (lambda path: pl.DataFrame({"map": [1.0]}).write_parquet(path), ValueError, r"no column is the query by its name"),
        (lambda path: pl.DataFrame({"query": ["a", "a"], "map": [1.0, 0.0]}).write_parquet(path), ValueError,
         r"each query must come once, 'a' comes several times"),
        (lambda path: pl.DataFrame({"query": ["a", "b"], "map": ["1", "high"]}).write_parquet(path), ValueError,
         r"map of the query 'b' must be a number, got 'high'"),
        (lambda path: pl.DataFrame({"run": ["x", "y"], "query": ["a", "a"], "map": [1.0, 0.0]}).write_parquet(path), ValueError,
         r"those of one run, got x, y"),
        (lambda path: path.write_bytes(b"no parquet"), ValueError, r"cannot be read as parquet"),
    ],
)  # fmt: skip
def test_a_baseline_that_does_not_fit(change, error, words, baseline, tmp_path):
    change(tmp_path / "baseline.parquet")
    with pytest.raises(error, match=words):
        validated(RankingMonitor(["map"], baseline=baseline))


@pytest.mark.parametrize("of", ["baseline", "report"])
def test_a_step_must_give_ids(of, baseline, tmp_path):
    callbacks = {
        "baseline": [RankingMonitor(["map"], baseline=baseline)],
        "report": [RankingMonitor(["map"]), RankingReport(str(tmp_path / "v.csv"), "val/map")],
    }[of]
    with pytest.raises(ValueError, match=r"Ranker\.validation_step must return their ids as 'indexes'"):
        trainer(*callbacks).validate(Ranker(), DataLoader(lists(), batch_size=4), verbose=False)


def test_a_baseline_is_that_of_one_dataloader(baseline):
    with pytest.raises(ValueError, match="one validation dataloader, got 2"):
        validated(RankingMonitor(["map"], baseline=baseline), loaders=[data(), data()])


def test_two_monitors_with_one_baseline_need_prefixes(baseline):
    with pytest.raises(ValueError, match=r"val/map/difference/high"):
        trainer(RankingMonitor(["map"], baseline=baseline), RankingMonitor(["map"], baseline=baseline, gain=None)).validate(
            NEW, data(), verbose=False
        )


class Worsens(WithIds):
    """A ranker whose scores turn around after the second epoch."""

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        found = super().validation_step(batch, batch_idx)
        sign = (0.0, 1.0, -1.0, -1.0)[min(self.trainer.current_epoch, 3)]
        return found | {"preds": found["target"].float() * sign}

    test_step = validation_step


def test_the_file_is_that_of_the_best_epoch_also_after_resuming(tmp_path):
    path, checkpoint = str(tmp_path / "best.csv"), str(tmp_path / "last.ckpt")
    report = RankingReport(path, "val/map")
    run = trainer(report, RankingMonitor(["map"]), max_epochs=3)
    run.fit(Worsens(), data(), data())
    assert (report.best_epoch, report.best) == (1, pytest.approx((QUERIES - 1) / QUERIES))
    of_best = read_per_query(path, ["map"])["map"]
    assert of_best == {str(i): float(i < 100 + QUERIES - 1) for i in range(100, 100 + QUERIES)}
    run.save_checkpoint(checkpoint)

    again = RankingReport(path, "val/map")
    trainer(again, RankingMonitor(["map"]), max_epochs=4).fit(Worsens(), data(), data(), ckpt_path=checkpoint)
    assert (again.best_epoch, read_per_query(path, ["map"])["map"]) == (1, of_best)
    with pytest.raises(FileExistsError, match=r"best\.csv exists"):
        trainer(RankingReport(path, "val/map"), RankingMonitor(["map"])).fit(Worsens(), data(), data())
    with pytest.raises(FileExistsError, match=r"best\.csv exists"):
        trainer(RankingReport(path, "val/map"), RankingMonitor(["map"])).validate(NEW, data(), verbose=False)
    trainer(RankingReport(path, "val/map", overwrite=True), RankingMonitor(["map"])).validate(NEW, data(), verbose=False)
    assert read_per_query(path, ["map"])["map"] == pytest.approx(values(NEW, average_precision, None))


def test_the_lowest_value_is_best_where_lower_is_better(tmp_path):
    report = RankingReport(str(tmp_path / "v.csv"), "val/fall_out@2")
    trainer(report, RankingMonitor(["fall_out@2"]), max_epochs=3).fit(Worsens(), data(), data())
    assert report.best_epoch == 1


def test_values_of_the_test_on_request(tmp_path):
    path = str(tmp_path / "v.csv")
    run = trainer(RankingMonitor(["ndcg@3"]), RankingReport(path, "test/ndcg@3"))
    run.validate(OLD, data(), verbose=False)
    assert not (tmp_path / "v.csv").exists()
    run.test(OLD, data(), verbose=False)
    assert read_per_query(path, ["ndcg@3"])["ndcg@3"] == pytest.approx(values(OLD))
    # A file that this stage does not write may be there.
    for key, stage in (("test/ndcg@3", "validate"), ("val/ndcg@3", "test")):
        getattr(trainer(RankingMonitor(["ndcg@3"]), RankingReport(path, key)), stage)(NEW, data(), verbose=False)
    assert read_per_query(path, ["ndcg@3"])["ndcg@3"] == pytest.approx(values(OLD))


@pytest.mark.parametrize("names", [("dataloader_idx_0", "dataloader_idx_1"), ("one", "two")])
def test_one_of_several_dataloaders(names, tmp_path):
    path = str(tmp_path / "v.csv")
    loaders = [data(QUERIES), data(8, first=900)]
    given = loaders if "idx" in names[0] else dict(zip(names, loaders, strict=True))
    trainer(RankingMonitor(["map"]), RankingReport(path, f"val/map/{names[1]}")).validate(OLD, given, verbose=False)
    assert list(read_per_query(path, ["map"])["map"]) == [str(i) for i in range(900, 908)]
    with pytest.raises(ValueError, match=rf"there is val/map/{names[0]}, val/map/{names[1]}"):
        trainer(RankingMonitor(["map"]), RankingReport(path, "val/map", overwrite=True)).validate(OLD, given, verbose=False)


@pytest.mark.parametrize(
    ("monitors", "key", "words"),
    [
        ([], "val/map", "there is none: add one beside it"),
        ([RankingMonitor(["map"])], "val/mpa", "they log val/map, test/map"),
        ([RankingMonitor(["map"], prefix="a/")], "val/map", "they log a/map"),
    ],
)
def test_a_report_must_watch_what_is_logged(monitors, key, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        trainer(RankingReport(str(tmp_path / "v.csv"), key), *monitors).validate(NEW, data(), verbose=False)


def test_the_name_of_the_file_is_looked_at_when_built():
    with pytest.raises(ValueError, match=r"values\.xls: the name of a table must end in"):
        RankingReport("values.xls")


def events(logger):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(logger.log_dir, {"histograms": 0, "images": 0})
    found.Reload()
    return found


@pytest.mark.parametrize("with_baseline", [False, True])
def test_tensorboard_has_histograms_of_each_epoch_and_a_figure_of_each_best_one(with_baseline, tmp_path, baseline):
    monitor = RankingMonitor(["map", "ndcg@3"], baseline=baseline if with_baseline else None)
    loggers = [CSVLogger(tmp_path, name="csv"), TensorBoardLogger(tmp_path, name="tb")]
    trainer(monitor, RankingReport(str(tmp_path / "v.csv"), "val/map"), max_epochs=3, logger=loggers).fit(
        Worsens(), data(), data()
    )
    found = events(loggers[1])
    for name in ("map", "ndcg@3"):
        histograms = found.Histograms(f"val/{name}/queries")
        assert [h.histogram_value.num for h in histograms] == [QUERIES] * 3
    assert histograms[1].histogram_value.sum == pytest.approx(QUERIES - 1), "the second epoch is perfect"
    images = found.Images("val/map")
    assert [image.step for image in images] == [h.step for h in histograms[:2]], "the third epoch is not the best"
    assert all(image.encoded_image_string.startswith(b"\x89PNG") for image in images)


def test_without_matplotlib_there_is_a_warning_and_no_figure(tmp_path, monkeypatch):
    import lightning_rank.callbacks_report as module

    def missing(*args):
        raise ModuleNotFoundError("Plots need matplotlib: pip install 'lightning-rank[plot]'.")

    monkeypatch.setattr(module, "value_bars", missing)
    logger = TensorBoardLogger(tmp_path, name="tb")
    with pytest.warns(UserWarning, match="draws nothing: Plots need matplotlib") as caught:
        trainer(
            RankingMonitor(["map"]), RankingReport(str(tmp_path / "v.csv"), "val/map"), max_epochs=2, logger=logger
        ).fit(Worsens(), data(), data())
    assert len([w for w in caught if "matplotlib" in str(w.message)]) == 1
    assert not events(logger).Tags()["images"]
    assert (tmp_path / "v.csv").exists()


SCRIPT = """
import sys
import pytorch_lightning as pl
import torch
from lightning_rank import LinearScorer, RankingModule, RankingMonitor, RankingReport, SyntheticDataModule

def main(devices, out, base):
    torch.manual_seed(0)
    data = SyntheticDataModule(num_train=8, num_val=7, num_test=7, batch_size=2)  # a distributed sampler repeats a query
    monitor = RankingMonitor(["ndcg@10", "map"], baseline=base)
    trainer = pl.Trainer(
        accelerator="cpu", devices=devices, strategy="ddp_fork" if devices > 1 else "auto", logger=False,
        enable_progress_bar=False, enable_checkpointing=False, callbacks=[monitor, RankingReport(out), Save(out)],
    )
    trainer.validate(RankingModule(LinearScorer(16), "softmax"), data, verbose=False)

class Save(pl.Callback):
    def __init__(self, out):
        self.out = out
    def on_validation_end(self, trainer, module):
        values = {k: v.item() for k, v in trainer.callback_metrics.items() if "loss" not in k}
        torch.save(values, f"{self.out}.{trainer.global_rank}")

if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
def test_two_processes_report_as_one(tmp_path):
    script = tmp_path / "validate.py"
    script.write_text(SCRIPT)
    for devices, out, *baseline in (("1", "one.csv"), ("2", "two.csv", "one.csv"), ("1", "again.csv", "two.csv")):
        done = subprocess.run(
            [sys.executable, str(script), devices, out, *baseline], capture_output=True, text=True, cwd=tmp_path, check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    one, two = (read_per_query(tmp_path / f"{name}.csv", ["ndcg@10", "map"]) for name in ("one", "two"))
    assert len(one["map"]) == 7
    assert two == {name: pytest.approx(of) for name, of in one.items()}
    logged = [torch.load(tmp_path / f"two.csv.{rank}", weights_only=True) for rank in (0, 1)]
    assert logged[0] == logged[1]
    assert logged[0]["val/map/difference"] == pytest.approx(0, abs=1e-6)
