"""Small LightningModules and loaders for tests of what joins a Trainer."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def lists(queries: int = 10, items: int = 6, seed: int = 0) -> TensorDataset:
    """Features, grades and mask of padded lists; the last query has no relevant item."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(queries, items, 3, generator=generator)
    grades = torch.randint(0, 4, (queries, items), generator=generator)
    grades[-1] = 0
    mask = torch.rand(queries, items, generator=generator) < 0.8
    mask[:, 0] = True
    return TensorDataset(features, grades, mask)


def loader(queries: int = 10, batch_size: int = 4, seed: int = 0) -> DataLoader:
    return DataLoader(lists(queries, seed=seed), batch_size=batch_size)


class Ranker(pl.LightningModule):
    """A linear scorer whose validation and test steps return what ``outputs`` makes of scores, grades and mask."""

    def __init__(self, outputs: Any = None) -> None:
        super().__init__()
        self.scorer = nn.Linear(3, 1)
        self.outputs = outputs or (lambda preds, target, mask: {"preds": preds, "target": target, "mask": mask})

    def forward(self, features: Tensor) -> Tensor:
        return self.scorer(features).squeeze(-1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        from lightning_rank.functional import softmax_loss

        features, target, mask = batch
        return softmax_loss(self(features), target, mask)

    def validation_step(self, batch: list[Tensor], batch_idx: int, dataloader_idx: int = 0) -> Any:
        features, target, mask = batch
        return self.outputs(self(features), target, mask)

    test_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(*callbacks: pl.Callback, **options: Any) -> pl.Trainer:
    defaults = {
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "max_epochs": 1,
    }
    return pl.Trainer(callbacks=list(callbacks), **{**defaults, **options})
