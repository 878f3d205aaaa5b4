"""Two real processes under Lightning's DDP: metrics and training equal to one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = """
import sys
import pytorch_lightning as pl
import torch
from lightning_rank import LinearScorer, RankingModule, RankingMonitor, SyntheticDataModule

def main(devices, out):
    torch.manual_seed(0)
    # 7 validation queries do not divide evenly, so that a distributed sampler repeats one.
    data = SyntheticDataModule(num_train=8, num_val=7, num_test=7, batch_size=int(sys.argv[3]))
    data.shuffle = False
    module = RankingModule(LinearScorer(16), "softmax", optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    trainer = pl.Trainer(
        accelerator="cpu", devices=devices, strategy="ddp_fork" if devices > 1 else "auto", max_epochs=3, logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, num_sanity_val_steps=0,
        callbacks=[RankingMonitor(num_queries=True), Save(out)],
    )
    trainer.fit(module, datamodule=data)
    data.setup("validate")
    data.setup("test")
    trainer.validate(module, [data.val_dataloader(), data.test_dataloader()], verbose=False)

class Save(pl.Callback):
    def __init__(self, out):
        self.out = out
    def values(self, trainer):
        return {k: v.item() for k, v in trainer.callback_metrics.items() if k.startswith("val/") and "loss" not in k}
    def on_train_end(self, trainer, module):
        torch.save({"rank": trainer.global_rank, "values": self.values(trainer), "weights": module.state_dict(),
                    "global_mean": module.loss.global_mean}, f"{self.out}/{trainer.global_rank}.pt")
    def on_validation_end(self, trainer, module):
        if not trainer.training:
            torch.save(self.values(trainer), f"{self.out}/several{trainer.global_rank}.pt")

if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
"""


def run(tmp_path: Path, devices: int, batch_size: int) -> list[dict]:
    out = tmp_path / str(devices)
    out.mkdir()
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(devices), str(out), str(batch_size)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    fits, several = (
        [torch.load(out / f"{name}{rank}.pt", weights_only=True) for rank in range(devices)] for name in ("", "several")
    )
    return [fit | {"several": values} for fit, values in zip(fits, several, strict=True)]


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
def test_two_processes_train_and_measure_as_one(tmp_path):
    # One step an epoch: two processes see four of the eight queries each.
    (one,) = run(tmp_path, 1, batch_size=8)
    two = run(tmp_path, 2, batch_size=4)
    assert [part["rank"] for part in two] == [0, 1]
    assert not one["global_mean"]
    for part in two:
        assert part["global_mean"]
        assert part["values"]["val/num_queries"] == 7
        assert part["values"] == pytest.approx(one["values"])
        assert {key.rpartition("/")[2] for key in part["several"]} == {"dataloader_idx_0", "dataloader_idx_1"}
        assert part["several"] == pytest.approx(one["several"])
        torch.testing.assert_close(part["weights"], one["weights"])
