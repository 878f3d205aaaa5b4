"""Two processes by Lightning's own launch and by torchrun: gradients and metrics of one process, and one voice."""

from __future__ import annotations

import operator
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning_utilities.core.imports import compare_version

from lightning_rank.functional.losses import LOSSES

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")

GLOO_MAY_ABORT = not compare_version("torch", operator.ge, "2.13.0", use_base_version=True)
LAUNCHES = {
    "lightning": (sys.executable,),
    "torchrun": (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"),
}

TRAINING = """
import os
import sys
import pytorch_lightning as pl
import torch
from lightning_rank import (
    InBatchSoftmaxLoss, LinearScorer, RankingModule, RankingMonitor, RetrievalMonitor, SyntheticDataModule, loss,
)
from lightning_rank.functional.losses import LOSSES

devices, names, out = int(sys.argv[1]), sys.argv[2].split(), sys.argv[3]
QUERIES = 6

class Module(RankingModule):
    # Three logits for an item where the loss wants them, and for losses with random parts noise of each query's own.
    def __init__(self, spec):
        super().__init__(torch.nn.Linear(16, 3) if spec.logits else LinearScorer(16), loss(spec.name),
                         optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0))
        self.spec = spec

    def forward(self, features, mask=None):
        return self.scorer(features) if self.spec.logits else super().forward(features, mask)

    def training_step(self, batch, batch_idx):
        if self.spec.noise:
            drawn = torch.rand(2, 2, QUERIES, 99, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
            drawn = drawn[:, :, batch["query"], :batch["mask"].shape[1]]
            self.loss.options[self.spec.noise] = drawn[0, 0] if self.spec.noise == "gamma" else drawn[0]
        return super().training_step(self.clamped(batch), batch_idx)

    def clamped(self, batch):
        most = {"pointwise_bce": 1, "ordinal": 3}.get(self.spec.name, 4)
        # A query without signal: its process has fewer that count than the other.
        target = batch["target"].clamp(max=most).masked_fill((batch["query"] == 5)[:, None], 0)
        return batch | {"target": target}

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        if self.spec.logits:
            outputs = {"preds": self(batch["features"]).sum(-1), "indexes": batch["query"]}
            return outputs | {name: batch[name] for name in ("target", "mask")}
        self.loss.options.pop(self.spec.noise, None)
        return super().validation_step(self.clamped(batch), batch_idx)

class Towers(pl.LightningModule):
    # 7 users do not divide evenly, and in training rows are of two processes.
    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.user = torch.nn.Parameter(torch.randn(7, 4, generator=generator))
        self.item = torch.nn.Parameter(torch.randn(50, 4, generator=generator))
        self.loss = InBatchSoftmaxLoss()

    def item_embeddings(self):
        return self.item

    def training_step(self, batch, batch_idx):
        value = self.loss(self.user[batch], self.item[batch + 3], item_ids=batch + 3)
        self.log("train/loss", value, on_step=False, on_epoch=True, batch_size=len(batch), sync_dist=True)
        return value

    def validation_step(self, batch, batch_idx):
        return {"query": self.user[batch], "relevant": batch + 3, "seen": batch + 9, "indexes": batch}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)

def trainer(monitor):
    return pl.Trainer(
        accelerator="cpu", devices=devices, strategy="ddp" if devices > 1 else "auto", max_epochs=1, logger=False,
        precision="64-true", enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        num_sanity_val_steps=0, callbacks=[monitor],
    )

def result(made, module):
    values = {k: v.item() for k, v in made.callback_metrics.items() if k != "val/loss"}
    return {"values": values, "weights": module.state_dict()}

results = {}
for name in names:
    torch.manual_seed(0)
    data = SyntheticDataModule(num_train=QUERIES, num_val=7, num_test=7, batch_size=QUERIES // devices)
    data.shuffle = False
    if name == "in_batch_softmax":
        module = Towers()
        loader = torch.utils.data.DataLoader(torch.arange(6), batch_size=6 // devices)
        val = torch.utils.data.DataLoader(torch.arange(7), batch_size=2)
        made = trainer(RetrievalMonitor(["mrr@10", "recall@5"], num_queries=True))
        made.fit(module, loader, val)
    else:
        module = Module(LOSSES[name])
        made = trainer(RankingMonitor(["ndcg@5", "map"], num_queries=True, advice=False))
        made.fit(module, datamodule=data)
    results[name] = result(made, module)
torch.save(results, f"{out}/{made.global_rank}.pt")
# Not by way of what PyTorch 2.4 does at the end: threads of gloo may abort the process there, or wait for the interpreter for ever.
sys.stdout.flush()
os._exit(0)
"""


def run(command: list[str], cwd: Path) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        capture_output=True,
        text=True,
        env={
            **{k: v for k, v in os.environ.items() if k not in ("LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_PORT")},
            "OMP_NUM_THREADS": "1",
            "MPLBACKEND": "agg",
            "PYTHONPATH": str(Path(__file__).parents[1]),
        },
        check=False,
        timeout=600,
    )
    aborted = any(text in done.stdout + done.stderr for text in ("terminate called without an active exception", "SIGABRT"))
    if done.returncode and GLOO_MAY_ABORT and aborted:
        pytest.skip("gloo aborted the process as Python ended, which this PyTorch may do")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def trained(tmp_path: Path, launch: tuple[str, ...], devices: int, names: list[str]) -> list[dict]:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    out = tmp_path / f"out{devices}"
    out.mkdir()
    run([*launch, str(script), str(devices), " ".join(names), str(out)], tmp_path)
    return [torch.load(path, weights_only=True) for path in sorted(out.iterdir())]


@pytest.mark.parametrize(
    ("launch", "names"),
    # By torchrun the processes last, so that one script may fit once for each loss.
    [("lightning", ["approx_ndcg"]), ("lightning", ["in_batch_softmax"]), ("torchrun", [*LOSSES, "in_batch_softmax"])],
)
def test_a_step_and_a_validation_of_two_processes_are_those_of_one(tmp_path, launch, names):
    (one,) = trained(tmp_path, LAUNCHES["lightning"], 1, names)
    two = trained(tmp_path, LAUNCHES[launch], 2, names)
    assert len(two) == 2
    for name in names:
        # The weights after a step of plain gradient descent with rate 1: the gradient.
        for part in two:
            assert part[name]["values"] == pytest.approx(one[name]["values"], rel=1e-6), name
            assert part[name]["values"]["val/num_queries"] == 7
            torch.testing.assert_close(part[name]["weights"], one[name]["weights"], rtol=1e-7, atol=1e-9, msg=name)


@pytest.mark.parametrize("launch", LAUNCHES)
def test_the_command_speaks_and_writes_once(tmp_path, launch):
    options = [
        "--data=SyntheticDataModule",
        "--data.num_train=24",
        "--data.num_val=9",
        "--data.num_test=9",
        "--data.batch_size=2",
    ]
    options += ["--trainer.max_epochs=1", "--trainer.accelerator=cpu", "--trainer.devices=2", "--trainer.strategy=ddp"]
    command = [*LAUNCHES[launch], "-m", "lightning_rank.cli"]
    output = run([*command, "fit", *options], tmp_path)
    for line in ("Test: 9 queries", "checkpoint ", "curves ", "next "):
        assert output.count(line) == 1, output
    (folder,) = (tmp_path / "lightning_logs").iterdir()
    written = {path.name for path in folder.iterdir()} - {"hparams.yaml"}  # written by older versions of Lightning
    assert written == {"checkpoints", "config.yaml", "curves.png", "metrics.csv"}
    (checkpoint,) = (folder / "checkpoints").glob("best-*")
    given = ["--config", str(folder / "config.yaml"), "--ckpt_path", str(checkpoint), "--trainer.logger=false"]
    (tmp_path / "two").mkdir()
    run([*command, "predict", *given, "--predictions.scores=two.txt"], tmp_path / "two")
    one = [sys.executable, "-m", "lightning_rank.cli", "predict", *given, "--predictions.scores=one.txt"]
    run([*one, "--trainer.devices=1", "--trainer.strategy=auto"], tmp_path)
    scores = [[float(x) for x in (tmp_path / name).read_text().split()] for name in ("one.txt", "two/two.txt")]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)
