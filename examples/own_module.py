"""The callback and a loss in a LightningModule of your own: two lines beside what you have.

python examples/own_module.py
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_rank import ApproxNDCGLoss, RankingMonitor
from lightning_rank.report.curves import plot_curves


class MyRanker(pl.LightningModule):
    """Whatever scores items; here a small network."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(num_features, 32), nn.ReLU(), nn.Linear(32, 1))
        self.loss = ApproxNDCGLoss(temperature=0.5)

    def forward(self, features: Tensor) -> Tensor:
        return self.network(features).squeeze(-1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        features, grades, mask = batch
        loss = self.loss(self(features), grades, mask=mask)
        self.log("train/loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Tensor]:
        features, grades, mask = batch
        return {"preds": self(features), "target": grades, "mask": mask}  # what RankingMonitor reads

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def make_lists(queries: int, seed: int) -> TensorDataset:
    """Padded lists of 5 to 20 items with 8 features; grades 0..3 follow two of the features and noise."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(queries, 20, 8, generator=generator)
    lengths = torch.randint(5, 21, (queries, 1), generator=generator)
    mask = torch.arange(20) < lengths
    utility = features[..., 0] - features[..., 1] ** 2 + 0.5 * torch.randn(queries, 20, generator=generator)
    grades = torch.bucketize(utility, torch.tensor([-0.5, 0.3, 1.0]))
    return TensorDataset(features, grades, mask)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--folder", default="runs/own_module", help="for checkpoint and curves")
    args = parser.parse_args()

    pl.seed_everything(0, verbose=False)
    train = DataLoader(make_lists(args.queries, seed=1), batch_size=32, shuffle=True)
    val = DataLoader(make_lists(args.queries // 4, seed=2), batch_size=64)
    logger = CSVLogger(args.folder, name=None)
    best = ModelCheckpoint(logger.log_dir, monitor="val/ndcg@10", mode="max", filename="best")
    quiet = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        max_epochs=args.epochs,
        logger=logger,
        log_every_n_steps=10,
        callbacks=[
            RankingMonitor(["ndcg@10", "map", "mrr"], num_queries=True),
            best,
            EarlyStopping("val/ndcg@10", mode="max", patience=5),
        ],
        **quiet,
    )
    model = MyRanker(num_features=8)
    evaluator = pl.Trainer(logger=False, callbacks=RankingMonitor(["ndcg@10", "map", "mrr"], num_queries=True), **quiet)
    (before,) = evaluator.validate(model, val, verbose=False)
    trainer.fit(model, train, val)
    (after,) = evaluator.validate(model, val, ckpt_path=best.best_model_path, verbose=False)
    if find_spec("matplotlib") is not None:
        picture = Path(logger.log_dir, "curves.png")
        plot_curves(Path(logger.log_dir, "metrics.csv")).savefig(picture, dpi=120)
        print(f"curves: {picture}")
    print(f"{int(after['val/num_queries'])} validation queries, best checkpoint {best.best_model_path}")
    for name in ("val/ndcg@10", "val/map", "val/mrr"):
        print(f"{name:12} untrained {before[name]:.4f}   best epoch {after[name]:.4f}")


if __name__ == "__main__":
    main()
