"""LetorDataModule on converted data and tables, jagged batches, over processes, and after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import polars as pl
import pytest
import torch

from lightning_rank import read_letor
from lightning_rank.data.cache import CachedDataset, convert
from lightning_rank.models import LinearScorer, MLPScorer, SelfAttentionScorer
from lightning_rank.pytorch_lightning import LetorDataModule, PredictionWriter, RankingModule, RankingMonitor
from tests.lightning_cases import trainer
from tests.test_module import write_letor


def write_fold(folder: Path) -> Path:
    for seed, (name, queries) in enumerate((("train.txt", 30), ("vali.txt", 10), ("test.txt", 10))):
        write_letor(folder / name, queries, seed=seed)
    return folder


@pytest.fixture
def fold(tmp_path):
    return write_fold(tmp_path)


def fitted(data: LetorDataModule, epochs: int = 2, loss: str = "softmax") -> dict[str, torch.Tensor]:
    """Weights and validation metrics."""
    torch.manual_seed(0)
    module = RankingModule(MLPScorer([8]), loss=loss)
    run = trainer(RankingMonitor(["ndcg@10", "map"], advice=False), max_epochs=epochs)
    run.fit(module, datamodule=data)
    values = {name: value for name, value in run.callback_metrics.items() if name.startswith("val/")}
    return {**module.state_dict(), **values}


def test_training_on_converted_data_is_training_on_the_files(fold):
    expected = fitted(LetorDataModule(str(fold), batch_size=4))
    data = LetorDataModule(str(fold), batch_size=4, cache=str(fold / "cache"))
    found = fitted(data)
    assert isinstance(data.splits["train"], CachedDataset)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    named = {
        split: str(convert(fold / f"{name}.txt", fold / "cache")) for split, name in (("train", "train"), ("val", "vali"))
    }
    for name in ("train.txt", "vali.txt"):
        (fold / name).unlink()
    found = fitted(LetorDataModule(**named, batch_size=4))
    assert all(torch.equal(found[name], value) for name, value in expected.items()), "without the files"
    with pytest.raises(ValueError, match="A converted data set is a whole split"):
        LetorDataModule(train=[named["train"], named["val"]]).setup("fit")


def test_jagged_training_is_padded_training(fold):
    padded = fitted(LetorDataModule(str(fold), batch_size=4))
    jagged = fitted(LetorDataModule(str(fold), batch_size=4, layout="jagged"))
    for name, value in padded.items():
        if (
            name != "scorer.network.3.bias"
        ):  # no softmax depends on it: its gradient is rounding, which Adam makes a step of
            torch.testing.assert_close(jagged[name], value, rtol=1e-4, atol=1e-5)
    with pytest.raises(
        ValueError, match="SelfAttentionScorer sees the items of a query together, so it needs padded batches"
    ):
        trainer().fit(RankingModule(SelfAttentionScorer()), datamodule=LetorDataModule(str(fold), layout="jagged"))


def test_float16_features_are_trained_on_in_float32(fold):
    data = LetorDataModule(str(fold), batch_size=4, cache=str(fold / "cache"), dtype="float16")
    found = fitted(data)
    assert data.splits["train"].features.dtype == torch.float16
    for name, value in fitted(LetorDataModule(str(fold), batch_size=4)).items():
        torch.testing.assert_close(found[name], value, rtol=0.02, atol=0.02)
    with pytest.raises(ValueError, match="`dtype` is of the features in a `cache`, and there is none"):
        LetorDataModule(str(fold), dtype="float16")


@pytest.mark.parametrize("cached", [True, False])
def test_tables_train_as_letor_files_do(fold, cached):
    expected = fitted(LetorDataModule(str(fold), batch_size=4))
    for name in ("train", "vali"):
        data = read_letor(fold / f"{name}.txt")
        query = torch.arange(len(data)).repeat_interleave(data.lengths)
        frame = pl.DataFrame({"query": query.numpy(), "grade": data.grades.numpy()})
        frame.hstack(pl.DataFrame(data.features.numpy(), schema=["a", "b", "c", "d"])).write_parquet(
            fold / f"{name}.parquet"
        )
    cache = str(fold / "cache") if cached else None
    found = fitted(LetorDataModule(str(fold), train="train.parquet", val="vali.parquet", batch_size=4, cache=cache))
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    with pytest.raises(ValueError, match="of LETOR files or of tables, got both"):
        LetorDataModule(str(fold), train=["train.txt", "train.parquet"]).setup("fit")


@pytest.mark.parametrize("cached", [False, True])
def test_features_that_are_nan_are_said_before_the_model_seems_to_diverge(tmp_path, cached):
    (tmp_path / "t.csv").write_text("query,grade,u,v\na,1,1,\na,0,2,3\nb,0,1,NA\n")
    (tmp_path / "whole.csv").write_text("query,grade,u,v\na,1,1,1\na,0,2,3\n")
    cache = str(tmp_path / "cache") if cached else None
    for _ in range(2):  # also where it was converted before
        with pytest.warns(
            UserWarning, match=rf"The train data has .* NaN .*: {'v' if cached else 2} in 2 items\. .*features"
        ):
            LetorDataModule(str(tmp_path), train="t.csv", cache=cache).setup("fit")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LetorDataModule(str(tmp_path), train="whole.csv", cache=cache).setup("fit")


def test_files_with_fewer_features_are_converted_as_wide_as_the_training_data(fold, tmp_path):
    write_letor(fold / "test.txt", 10, num_features=2, seed=9)
    run, module = trainer(), RankingModule(LinearScorer())
    run.fit(module, datamodule=LetorDataModule(str(fold), cache=str(fold / "cache")))
    run.save_checkpoint(tmp_path / "model.ckpt")
    data = LetorDataModule(str(fold), cache=str(fold / "cache"))
    fresh = trainer(RankingMonitor(advice=False))
    fresh.test(RankingModule(LinearScorer()), datamodule=data, ckpt_path=tmp_path / "model.ckpt", verbose=False)
    assert data.splits["test"].features.shape[1] == 4
    assert isinstance(data.splits["test"], CachedDataset)


def test_batches_by_items(fold):
    data = LetorDataModule(str(fold), batch_size=None, batch_items=20)
    data.setup("fit")
    for loader in (data.train_dataloader(), data.val_dataloader()):
        assert all(batch["mask"].numel() <= 20 for batch in loader)
        assert len(loader) == len(list(loader))
    data = LetorDataModule(str(fold), batch_size=None, batch_items=20, max_items=4)
    data.setup("fit")
    assert max(len(batch["mask"]) for batch in data.train_dataloader()) == 5, "lists are as long as they are cut"
    with pytest.raises(ValueError, match="both are None"):
        LetorDataModule(str(fold), batch_size=None)


def test_predictions_of_converted_data_go_back_to_their_lines(fold, tmp_path):
    lines = [f"0 qid:{'ab'[i % 2]} 1:{i} # doc{i}" for i in range(6)]
    (fold / "mixed.txt").write_text("\n".join(lines) + "\n")
    module = RankingModule(torch.nn.Linear(1, 1, bias=False))
    module.scorer.weight.data.fill_(-2.0)
    module.forward = lambda features, mask=None: module.scorer(features).squeeze(-1)
    for number, cache in enumerate((None, str(fold / "cache"))):
        names = {name: str(tmp_path / f"{name}{number}.txt") for name in ("run", "scores")}
        data = LetorDataModule(predict=str(fold / "mixed.txt"), cache=cache, layout="jagged")
        with pytest.warns(UserWarning, match="contiguous"):
            trainer(PredictionWriter(**names)).predict(module, datamodule=data)
    for name in ("run", "scores"):
        assert (tmp_path / f"{name}1.txt").read_text() == (tmp_path / f"{name}0.txt").read_text()
    assert [float(line) for line in (tmp_path / "scores1.txt").read_text().split()] == [-2.0 * i for i in range(6)]


# Real processes -------------------------------------------------------------------------------------------------------

TRAIN = """
import os, signal, sys
import pytorch_lightning as pl, torch
from lightning_rank.models import MLPScorer
from lightning_rank.pytorch_lightning import LetorDataModule, RankingModule
from tests.lightning_cases import trainer
folder, die_at, resume = sys.argv[1], int(sys.argv[2]), sys.argv[3]

class Record(pl.Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        with open(f"{folder}/seen.txt", "a") as file:
            print(trainer.global_step, *batch["query"].tolist(), file=file)
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

pl.seed_everything(0, verbose=False)
module = RankingModule(MLPScorer([8]), loss="softmax")
keep = pl.callbacks.ModelCheckpoint(folder, filename="last", every_n_train_steps=1, enable_version_counter=False)
run = trainer(keep, Record(), max_epochs=3, enable_checkpointing=True)
data = LetorDataModule(folder, batch_size=4, cache=f"{folder}/cache")
run.fit(module, datamodule=data, ckpt_path=resume or None)
torch.save(module.state_dict(), f"{folder}/weights.pt")
"""


def trained(folder: Path, die_at: int = -1, resume: str = "") -> int:
    command = [sys.executable, "-c", TRAIN, str(folder), str(die_at), resume]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def seen(folder: Path) -> dict[int, list[int]]:
    lines = [[int(word) for word in line.split()] for line in (folder / "seen.txt").read_text().splitlines()]
    return {step: queries for step, *queries in lines}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = write_fold(tmp_path_factory.mktemp("undisturbed"))
    assert trained(folder) == 0
    return folder


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize("die_at", [8 + 3, 2 * 8])
def test_killed_in_an_epoch_or_at_its_end_training_goes_on_with_the_same_batches(fold, undisturbed, die_at):
    assert trained(fold, die_at) == -signal.SIGKILL
    (fold / "seen.txt").rename(fold / "before.txt")
    assert trained(fold, resume=str(fold / "last.ckpt")) == 0
    expected, after = seen(undisturbed), seen(fold)
    assert len(expected) == 3 * 8
    first = min(after)
    assert first in (die_at - 1, die_at), "a checkpoint is at most one step old"
    assert after == {step: queries for step, queries in expected.items() if step >= first}
    weights = torch.load(fold / "weights.pt")
    others = torch.load(undisturbed / "weights.pt")
    assert all(torch.equal(weights[name], value) for name, value in others.items()), "to the bit"


DDP = """
import json, os, sys
import pytorch_lightning as pl, torch
from lightning_rank.models import MLPScorer
from lightning_rank.pytorch_lightning import LetorDataModule, RankingModule, RankingMonitor
folder, devices, options = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])

class Record(pl.Callback):
    seen = []
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.seen.append(["train", trainer.current_epoch, *batch["query"].tolist()])
    def on_validation_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx=0):
        self.seen.append(["val", trainer.current_epoch, *batch["query"].tolist()])

pl.seed_everything(0, verbose=False)
module = RankingModule(MLPScorer([8], num_features=4), loss="softmax")
run = pl.Trainer(
    accelerator="cpu", devices=devices, strategy="ddp" if devices > 1 else "auto", max_epochs=2, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    callbacks=[Record(), RankingMonitor(["ndcg@10"], advice=False)],
)
run.fit(module, datamodule=LetorDataModule(folder, cache=f"{folder}/cache", **options))
value = run.callback_metrics["val/ndcg@10"].item()
facts = {"seen": Record.seen, "value": value, "weight": module.scorer.network[0].weight.tolist()}
with open(f"{folder}/{devices}-{run.global_rank}.json", "w") as file:
    json.dump(facts, file)
# A thread of gloo that lets go of a tensor as Python ends may abort the process.
os._exit(0)
"""


@pytest.mark.parametrize("by", [{"batch_size": 4}, {"batch_size": None, "batch_items": 25, "layout": "jagged"}])
def test_two_processes_share_the_queries_and_agree_with_one(fold, tmp_path, by):
    write_letor(fold / "vali.txt", 11, seed=1)
    script = tmp_path / "ddp.py"
    script.write_text(DDP)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    halves = {"batch_size": 4} if by["batch_size"] else by
    whole = {"batch_size": 8} if by["batch_size"] else by
    for devices, options in ((2, halves), (1, whole)):
        command = [sys.executable, str(script), str(fold), str(devices), json.dumps(options)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
    one = json.loads((fold / "1-0.json").read_text())
    two = [json.loads((fold / f"2-{rank}.json").read_text()) for rank in range(2)]
    for stage, queries in (("train", 30), ("val", 11)):
        for epoch in (0, 1):
            parts = [[q for name, e, *qs in part["seen"] if (name, e) == (stage, epoch) for q in qs] for part in two]
            assert sorted(parts[0] + parts[1]) == list(range(queries)), "each once"
    assert two[0]["value"] == two[1]["value"]
    if by["batch_size"]:
        assert two[0]["value"] == pytest.approx(one["value"], rel=1e-6)
        torch.testing.assert_close(torch.tensor(two[0]["weight"]), torch.tensor(one["weight"]), rtol=1e-4, atol=1e-6)
