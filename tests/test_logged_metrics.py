"""Metrics that a LightningModule has as attributes and logs: each epoch's value is that of its queries alone."""

from __future__ import annotations

import math
from statistics import fmean

import pytest
import pytorch_lightning as pl
from torch import Tensor
from torchmetrics import MetricCollection

from lightning_rank.metrics import MAP, MRR, NDCG, RankingMetrics
from tests import reference
from tests.conftest import Query
from tests.lightning_cases import Ranker, loader, trainer


def mean(name: str, batch: list[Query]) -> float:
    values = [reference.metric_value(name, query["preds"], query["target"], 2) for query in batch]
    return fmean(0.0 if math.isnan(value) else value for value in values)


class Logged(pl.loggers.logger.DummyLogger):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, list[float]] = {}

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        for name, value in metrics.items():
            self.values.setdefault(name, []).append(value)


class MetricsInside(Ranker):
    """Logs metrics that it has as attributes, and remembers the queries that each epoch saw."""

    def __init__(self) -> None:
        super().__init__()
        self.train_ndcg, self.val_mrr = NDCG(2), MRR(2)
        self.val_many = MetricCollection({"ndcg": NDCG(2), "again": NDCG(2), "map": MAP(2)}, prefix="many/")
        self.val_several = RankingMetrics(["ndcg@2", "map@2"], prefix="several/")
        self.seen: dict[str, list[list[Query]]] = {"train": [], "val": []}

    def see(self, stage: str, batch_idx: int, preds: Tensor, target: Tensor, mask: Tensor) -> None:
        if batch_idx == 0:
            self.seen[stage].append([])
        for scores, grades, is_item in zip(preds, target, mask, strict=True):
            self.seen[stage][-1].append({"preds": scores[is_item].tolist(), "target": grades[is_item].tolist()})

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        preds = self(batch[0])
        self.see("train", batch_idx, preds, *batch[1:])
        self.train_ndcg(preds, batch[1], mask=batch[2])
        self.log("train", self.train_ndcg, on_step=True, on_epoch=True)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        preds = self(batch[0])
        self.see("val", batch_idx, preds, *batch[1:])
        for metric in (self.val_mrr, self.val_many, self.val_several):
            metric.update(preds, batch[1], mask=batch[2])
        self.log("mrr", self.val_mrr)
        self.log_dict(self.val_many)

    def on_validation_epoch_end(self) -> None:
        self.log_dict(self.val_several.compute())
        self.val_several.reset()


def test_metrics_of_a_module_are_those_of_each_epoch(tmp_path):
    module, logger = MetricsInside(), Logged()
    fit = trainer(max_epochs=3, logger=logger, log_every_n_steps=1, num_sanity_val_steps=0, default_root_dir=tmp_path)
    fit.fit(module, loader(seed=1), loader(seed=2))
    train, val = module.seen["train"], module.seen["val"]
    assert len(train) == len(val) == 3
    names = {"mrr": "mrr", "many/ndcg": "ndcg", "many/again": "ndcg", "many/map": "map"}
    names |= {"several/ndcg@2": "ndcg", "several/map@2": "map"}
    expected = {key: [mean(name, batch) for batch in val] for key, name in names.items()}
    expected["train_epoch"] = [mean("ndcg", batch) for batch in train]
    steps = [batch[start : start + 4] for batch in train for start in (0, 4, 8)]
    expected["train_step"] = [mean("ndcg", batch) for batch in steps]
    for name, values in expected.items():
        assert logger.values[name] == pytest.approx(values, rel=1e-6), name
    assert not [key for key in module.state_dict() if "scorer" not in key]
