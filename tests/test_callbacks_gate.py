"""ReleaseGate: records a baseline, compares each epoch with it, vetoes, and refuses what cannot be compared."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch

import lightning_rank.lightning
from lightning_rank.functional import ndcg
from lightning_rank.gate import Gate
from lightning_rank.models import LinearScorer
from lightning_rank.offline.per_query import read_per_query
from lightning_rank.pytorch_lightning import RankingModule, RankingMonitor, RankingReport, ReleaseGate, SyntheticDataModule
from lightning_rank.stats import paired
from tests.lightning_cases import Ranker, lists, loader, trainer

QUERIES = 40


def values(model):
    """NDCG@3 of each query that has a relevant item."""
    features, target, mask = lists(QUERIES).tensors
    with torch.no_grad():
        found = ndcg(model(features), target, 3, mask=mask)
    return found[~found.isnan()].tolist()


def ranker(weight):
    model = Ranker()
    with torch.no_grad():
        model.scorer.weight.copy_(torch.tensor([weight]))
    return model


@pytest.fixture
def baseline(tmp_path):
    path = str(tmp_path / "baseline.json")
    old = ranker([1.0, 0.0, 0.0])
    trainer(ReleaseGate(path, "ndcg@3", record=True)).validate(old, loader(QUERIES), verbose=False)
    return path, old


def validated(gate, model, loaders=None, **options):
    made = trainer(gate, RankingMonitor(["ndcg@3"]), **options)
    made.validate(model, loaders or loader(QUERIES), verbose=False)
    return {name: float(value) for name, value in made.callback_metrics.items()}


def test_a_baseline_holds_the_value_of_each_query_with_a_relevant_item(baseline):
    path, old = baseline
    content = json.loads(Path(path).read_text())
    assert content["metric"] == "ndcg@3"
    stored = [value for _, value in content["values"]]
    assert stored == pytest.approx(values(old))
    assert len(stored) < QUERIES


@pytest.mark.parametrize("tolerance", [0.0, 0.9])
@pytest.mark.parametrize("weight", [[1.0, 0.0, 0.0], [-1.0, 0.5, 0.3]])
def test_what_is_logged_is_the_paired_comparison_and_the_decision_of_the_gate(baseline, weight, tolerance):
    path, old = baseline
    model = ranker(weight)
    gate = ReleaseGate(path, "ndcg@3", tolerance=tolerance, veto=True)
    logged = validated(gate, model)
    expected = paired(values(old), values(model))
    for name in ("difference", "low", "high"):
        assert logged[f"gate/{name}"] == pytest.approx(getattr(expected, name), abs=1e-6)
    passes = Gate(tolerance=tolerance).screen(expected).outcome == "pass"
    assert passes == (tolerance == 0.9)
    assert logged["gate/pass"] == passes
    assert gate.decision.outcome == ("pass" if passes else "hold")
    assert logged["gate/ndcg@3"] == (logged["val/ndcg@3"] if passes else -math.inf)


def test_a_worse_model_is_rejected(baseline):
    path, _ = baseline
    content = json.loads(Path(path).read_text())
    content["values"] = [[query, 1.0] for query, _ in content["values"]]
    Path(path).write_text(json.dumps(content))
    gate = ReleaseGate(path, "ndcg@3")
    logged = validated(gate, ranker([1.0, 0.0, 0.0]))
    assert gate.decision.outcome == "reject"
    assert "gate/ndcg@3" not in logged, "only with veto"


def test_queries_are_joined_by_their_ids(tmp_path):
    path = str(tmp_path / "baseline.json")
    features, target, mask = lists(QUERIES).tensors
    ids = torch.arange(QUERIES) + 100

    class WithIds(Ranker):
        def validation_step(self, batch, batch_idx):
            features, target, mask, ids = batch
            return {"preds": self(features), "target": target, "mask": mask, "indexes": ids}

    def shuffled(seed):
        order = torch.randperm(QUERIES, generator=torch.Generator().manual_seed(seed))
        data = torch.utils.data.TensorDataset(*(x[order] for x in (features, target, mask, ids)))
        return torch.utils.data.DataLoader(data, batch_size=7)

    model = WithIds()
    trainer(ReleaseGate(path, "ndcg@3", record=True)).validate(model, shuffled(0), verbose=False)
    logged = validated(ReleaseGate(path, "ndcg@3"), model, shuffled(1))
    assert logged["gate/difference"] == 0
    other = Ranker()
    other.load_state_dict(model.state_dict())
    with pytest.raises(ValueError, match=r"by ids, but here they come by order"):
        validated(ReleaseGate(path, "ndcg@3"), other)


class WithIds(Ranker):
    def validation_step(self, batch, batch_idx):
        features, target, mask = batch
        ids = torch.arange(len(target)) + 1000 * batch_idx
        return {"preds": self(features), "target": target, "mask": mask, "indexes": ids}


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl.gz"])
def test_a_table_of_values_is_a_baseline_too(tmp_path, ending):
    path, text = str(tmp_path / f"old.{ending}"), str(tmp_path / "old.json")
    old, new = WithIds(), WithIds()
    with torch.no_grad():
        old.scorer.weight.copy_(torch.tensor([[1.0, 0.0, 0.0]]))
        new.scorer.weight.copy_(torch.tensor([[-1.0, 0.5, 0.3]]))
    report = RankingReport(path, monitor="val/ndcg@3")
    trainer(RankingMonitor(["ndcg@3", "mrr"], gain="linear"), report).validate(old, loader(QUERIES), verbose=False)
    if ending == "jsonl.gz":  # its own, in place of the report's
        trainer(ReleaseGate(path, "ndcg@3", record=True, gain="linear")).validate(old, loader(QUERIES), verbose=False)
    stored = read_per_query(path, ["ndcg@3"])["ndcg@3"]
    assert len(stored) == QUERIES
    gate = ReleaseGate(path, "ndcg@3", gain="linear")
    logged = validated(gate, new)
    # Queries without a relevant item count here, and differ by 0.
    trainer(ReleaseGate(text, "ndcg@3", record=True, gain="linear")).validate(old, loader(QUERIES), verbose=False)
    among = validated(ReleaseGate(text, "ndcg@3", gain="linear"), new)
    share = len(json.loads(Path(text).read_text())["values"]) / QUERIES
    assert share < 1
    assert logged["gate/difference"] == pytest.approx(among["gate/difference"] * share)
    assert logged["gate/low"] < logged["gate/difference"] < logged["gate/high"]
    assert validated(ReleaseGate(path, "ndcg@3", gain="linear"), old)["gate/difference"] == pytest.approx(0)
    with pytest.raises(ValueError, match="did not come"):
        validated(ReleaseGate(path, "ndcg@3"), old, limit_val_batches=2)
    with pytest.raises(ValueError, match="must return their ids as 'indexes'"):
        validated(ReleaseGate(path, "ndcg@3"), Ranker())
    with pytest.raises(ValueError, match="no values of map"):
        validated(ReleaseGate(path, "map"), old)


def test_a_table_names_the_queries_of_a_data_module(tmp_path):
    data = SyntheticDataModule(num_train=8, num_val=15, num_test=7, batch_size=4)
    data.setup("validate")
    names = [f"question {i}" for i in range(15)]
    object.__setattr__(data.splits["val"], "query_ids", names)
    path, module = str(tmp_path / "old.csv"), RankingModule(LinearScorer(16), "softmax")
    trainer(ReleaseGate(path, record=True)).validate(module, datamodule=data, verbose=False)
    stored = read_per_query(path, ["ndcg@10"])["ndcg@10"]
    assert sorted(stored) == sorted(names)
    made = trainer(ReleaseGate(path))
    made.validate(module, datamodule=data, verbose=False)
    assert made.callback_metrics["gate/difference"] == pytest.approx(0)


def test_checkpoints_are_of_models_that_pass(baseline, tmp_path):
    path, _ = baseline
    best = pl.callbacks.ModelCheckpoint(tmp_path / "kept", monitor="gate/ndcg@3", mode="max")
    gate = ReleaseGate(path, "ndcg@3", tolerance=0.2, veto=True)
    made = trainer(gate, best, max_epochs=3, enable_checkpointing=True)
    made.fit(ranker([-1.0, 0.5, 0.3]), loader(QUERIES), loader(QUERIES))
    assert math.isfinite(best.best_model_score) == (gate.decision.outcome == "pass")


def test_one_of_several_dataloaders_is_compared(baseline):
    path, old = baseline
    two = [loader(10, seed=3), loader(QUERIES)]
    logged = validated(ReleaseGate(path, "ndcg@3", dataloader_idx=1), old, two)
    assert logged["gate/difference"] == 0
    with pytest.raises(ValueError, match="others did"):
        validated(ReleaseGate(path, "ndcg@3"), old, two)
    with pytest.raises(ValueError, match="got 1 for 1"):
        validated(ReleaseGate(path, "ndcg@3", dataloader_idx=1), old)


def test_what_cannot_be_compared_is_refused(baseline, tmp_path):
    path, old = baseline
    with pytest.raises(FileNotFoundError, match="record=True"):
        validated(ReleaseGate(str(tmp_path / "none.json"), "ndcg@3"), old)
    for options in ({"metric": "ndcg@5"}, {"metric": "ndcg@3", "gain": "linear"}):
        with pytest.raises(ValueError, match="same conventions"):
            validated(ReleaseGate(path, **options), old)
    with pytest.raises(ValueError, match=r"did not come \(are batches limited\?\)"):
        validated(ReleaseGate(path, "ndcg@3"), old, limit_val_batches=2)
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="must be a baseline"):
        validated(ReleaseGate(str(tmp_path / "other.json"), "ndcg@3"), old)
    with pytest.raises(ValueError, match="at least 0"):
        ReleaseGate(path, tolerance=-1)


def test_two_need_prefixes(baseline):
    path, old = baseline
    with pytest.raises(ValueError, match=r"gate/pass.*`prefix`"):
        trainer(ReleaseGate(path, "ndcg@3"), ReleaseGate(path, "ndcg@3")).validate(old, loader(QUERIES), verbose=False)
    made = trainer(ReleaseGate(path, "ndcg@3"), ReleaseGate(path, "ndcg@3", prefix="other/"))
    made.validate(old, loader(QUERIES), verbose=False)
    assert {"gate/pass", "other/pass"} <= made.callback_metrics.keys()


def test_nothing_happens_at_test(baseline):
    path, old = baseline
    made = trainer(ReleaseGate(path, "ndcg@3"))
    made.test(old, loader(5, seed=9), verbose=False)
    assert not made.callback_metrics


def test_there_is_one_for_each_lightning():
    assert lightning_rank.ReleaseGate is ReleaseGate
    assert lightning_rank.lightning.ReleaseGate is not ReleaseGate


SCRIPT = """
import sys
import pytorch_lightning as pl
import torch
from lightning_rank import LinearScorer, RankingModule, ReleaseGate, SyntheticDataModule

class Save(pl.Callback):
    def on_validation_end(self, trainer, module):
        values = {k: v.item() for k, v in trainer.callback_metrics.items() if k.startswith("gate/")}
        torch.save(values, f"values-{trainer.world_size}-{trainer.global_rank}.pt")

def validate(devices, seed, **options):
    torch.manual_seed(seed)
    module = RankingModule(LinearScorer(16), "softmax")
    pl.Trainer(
        accelerator="cpu", devices=devices, strategy="ddp_fork" if devices > 1 else "auto", logger=False, callbacks=[
        ReleaseGate("baseline.json", tolerance=0.01, **options), Save()], enable_progress_bar=False, enable_checkpointing=False,
    ).validate(module, datamodule=SyntheticDataModule(num_train=8, num_val=15, num_test=7, batch_size=4), verbose=False)

if __name__ == "__main__":
    validate(int(sys.argv[1]), 0, record=True)
    validate(2, 1, veto=True)
    validate(1, 1, veto=True)
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
@pytest.mark.parametrize("recorded_on", [1, 2])
def test_two_processes_decide_as_one(tmp_path, recorded_on):
    (tmp_path / "run.py").write_text(SCRIPT)
    root = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "run.py", str(recorded_on)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root},
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    one, *two = (torch.load(tmp_path / f"values-{name}.pt") for name in ("1-0", "2-0", "2-1"))
    assert one.keys() == {"gate/pass", "gate/difference", "gate/low", "gate/high", "gate/ndcg@10"}
    for values_ in two:
        assert values_ == pytest.approx(one)
