"""How `python examples/benchmarks/mq2008.py` trains and measures: folds, one recipe for every loss, results kept as they come.

A run is one system on one fold with one seed. It returns a record, plain numbers by name, which `Results` appends to a file, so
that what was interrupted goes on where it stopped.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping
from torch import Tensor, nn

from lightning_rank import (
    FeatureTransform,
    LetorDataModule,
    MLPScorer,
    RankingDataset,
    RankingMetrics,
    RankingModule,
    RankingMonitor,
    loss,
    read_letor,
)
from lightning_rank.functional.losses import LOSSES

METRICS = ("ndcg@5", "ndcg@10", "map", "mrr")
WATCHED = "ndcg@10"
NOT_OF_LISTS = ("in_batch_softmax",)  # its batch is its list: it needs no grades
TREES, RIDGE, BEST = "lightgbm", "ridge", "best"


def list_losses() -> list[str]:
    """The names of the losses that a list of graded items can be trained on."""
    return [name for name in LOSSES if name not in NOT_OF_LISTS]


# Data -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fold:
    """Files of training, validation and test, and how their features are brought to scale."""

    number: int
    train: tuple[str, ...]
    val: tuple[str, ...]
    test: tuple[str, ...]
    transform: str


def folds_of(folder: str) -> tuple[str, list[Fold]]:
    """The name of the data in a folder, and its folds.

    MQ2008 of LETOR 4.0 is S1.txt ... S5.txt, rotated as its readme says. Otherwise the folder is one fold of train.txt,
    vali.txt and test.txt, as MSLR has them; its features are raw counts and scores.
    """
    root = Path(folder)
    parts = [str(root / f"S{i}.txt") for i in range(1, 6)]
    if all(Path(part).exists() for part in parts):
        turns = [parts[i:] + parts[:i] for i in range(5)]
        return "MQ2008", [
            Fold(i, tuple(turn[:3]), (turn[3],), (turn[4],), "standardize") for i, turn in enumerate(turns, start=1)
        ]
    files = {name: root / f"{name}.txt" for name in ("train", "vali", "test")}
    if missing := [path.name for path in files.values() if not path.exists()]:
        raise SystemExit(f"{root} must hold S1.txt ... S5.txt, or train.txt, vali.txt and test.txt; it lacks {missing[0]}.")
    return "MSLR", [Fold(1, *((str(path),) for path in files.values()), "log1p")]


@lru_cache(maxsize=16)
def _read(files: tuple[str, ...]) -> RankingDataset:
    return read_letor(*files)


def read(fold: Fold) -> dict[str, RankingDataset]:
    """The three splits of a fold, equally wide."""
    splits = {"train": _read(fold.train), "val": _read(fold.val), "test": _read(fold.test)}
    width = max(data.num_features for data in splits.values())
    return {name: data.widened(width) for name, data in splits.items()}


def measured(scores: Tensor, data: RankingDataset) -> dict[str, float]:
    """Metrics of the scores of all items: gain 2^grade - 1, queries without a relevant item left out."""
    metrics = RankingMetrics(METRICS, empty_target_action="skip")
    metrics.update(scores, data.grades, offsets=data.offsets)
    return {name: value.item() for name, value in metrics.compute().items()}


# Networks -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    Attributes:
        batches: of whole queries in an epoch, however many queries there are.
        patience: training stops when validation has not become better for so many epochs, and the best epoch counts. None:
            all epochs, with a learning rate that falls to 0 along half a cosine, and the last one counts.
    """

    hidden: tuple[int, ...] = (64, 32)
    dropout: float = 0.3
    learning_rate: float = 2e-3
    weight_decay: float = 1e-2
    batches: int = 8
    epochs: int = 60
    patience: int | None = 15


class Shares(nn.Module):
    """Grades as shares of the highest one, for a loss of targets in [0, 1]."""

    def __init__(self, inner: nn.Module, highest: float) -> None:
        super().__init__()
        self.inner, self.highest = inner, highest

    def forward(self, preds: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.inner(preds, target / self.highest, mask=mask)


class Thresholds(nn.Module):
    """One score per item against a learnt threshold per grade: the logits of an ordinal loss (CORAL, Cao et al. 2020)."""

    def __init__(self, inner: nn.Module, highest: float) -> None:
        super().__init__()
        self.inner, self.thresholds = inner, nn.Parameter(torch.arange(highest) / 2)

    def forward(self, preds: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.inner(preds.unsqueeze(-1) - self.thresholds, target, mask=mask)


def adapted(name: str, highest: float) -> nn.Module:
    """A loss with its own default options, for grades from 0 to `highest`."""
    if name == "pointwise_bce":
        return Shares(loss(name), highest)
    if name == "ordinal":
        return Thresholds(loss(name), highest)
    return loss(name)


class BestWeights(pl.Callback):
    """Keeps the weights of the best epoch in memory, and puts them back after training."""

    def __init__(self, monitor: str) -> None:
        self.monitor, self.best, self.weights = monitor, float("-inf"), {}

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        value = trainer.callback_metrics[self.monitor].item()
        if value > self.best:
            self.best, self.weights = value, copy.deepcopy(pl_module.state_dict())

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.weights:
            pl_module.load_state_dict(self.weights)


def trained(fold: Fold, scorer: nn.Module, loss: nn.Module, recipe: Recipe, seed: int) -> tuple[Tensor, Tensor]:
    """Scores of the validation items and of the test items by a trained scorer."""
    splits = read(fold)
    size = -(-len(splits["train"]) // recipe.batches)
    data = LetorDataModule(train=list(fold.train), val=list(fold.val), batch_size=size, seed=seed)
    data.splits = dict(splits)  # read once, for all runs
    schedule, callbacks = None, []
    if recipe.patience is None:
        schedule = lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, recipe.epochs)  # noqa: E731
    else:
        callbacks = [
            RankingMonitor((WATCHED,), empty_target_action="skip", advice=False),
            BestWeights(f"val/{WATCHED}"),
            EarlyStopping(f"val/{WATCHED}", mode="max", patience=recipe.patience),
        ]
    module = RankingModule(
        scorer,
        loss,
        optimizer=lambda parameters: torch.optim.AdamW(
            parameters, lr=recipe.learning_rate, weight_decay=recipe.weight_decay
        ),
        lr_scheduler=schedule,
    )
    trainer = pl.Trainer(
        max_epochs=recipe.epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        limit_val_batches=1.0 if callbacks else 0,
        callbacks=callbacks,
    )
    trainer.fit(module, datamodule=data)
    return scores(module, splits["val"]), scores(module, splits["test"])


@torch.no_grad()
def scores(module: RankingModule, data: RankingDataset) -> Tensor:
    """``[item]``, in the order of the data."""
    batch = data[list(range(len(data)))]
    return module.eval()(batch["features"], batch["mask"])[batch["mask"]]


def run_network(fold: Fold, name: str, recipe: Recipe, seed: int) -> tuple[Tensor, Tensor]:
    pl.seed_everything(seed, verbose=False)
    scorer = MLPScorer(recipe.hidden, dropout=recipe.dropout, transform=fold.transform)
    highest = read(fold)["train"].grades.max().item()
    return trained(fold, scorer, adapted(name, highest), recipe, seed)


# Others ---------------------------------------------------------------------------------------------------------------

LIGHTGBM: dict[str, Any] = {
    "n_estimators": 1000,
    "learning_rate": 0.05,
    "num_leaves": 15,
    "min_child_samples": 50,
    "subsample": 0.8,
    "subsample_freq": 1,
    "colsample_bytree": 0.5,
    "reg_lambda": 5.0,
}
RIDGE_STRENGTHS = (1.0, 10.0, 100.0, 1000.0, 10000.0)


def run_lightgbm(fold: Fold, seed: int) -> tuple[Tensor, Tensor]:
    """LambdaMART with early stopping on validation NDCG@10."""
    import lightgbm as lgb

    train, val, test = read(fold).values()
    ranker = lgb.LGBMRanker(objective="lambdarank", random_state=seed, verbose=-1, n_jobs=1, **LIGHTGBM)
    ranker.fit(
        train.features.numpy(), train.grades.numpy(), group=train.lengths.numpy(),
        eval_set=[(val.features.numpy(), val.grades.numpy())], eval_group=[val.lengths.numpy()], eval_at=[10],
        callbacks=[lgb.early_stopping(100, verbose=False)],
    )  # fmt: skip
    return tuple(torch.from_numpy(ranker.predict(data.features.numpy())) for data in (val, test))


def run_ridge(fold: Fold) -> tuple[Tensor, Tensor]:
    """Linear regression on the grades, its strength chosen by validation NDCG@10."""
    from sklearn.linear_model import Ridge

    train, val, test = read(fold).values()
    transform = FeatureTransform(fold.transform)
    transform.fit(train.features)
    x = {data: transform(data.features).numpy() for data in (train, val, test)}
    candidates = []
    for strength in RIDGE_STRENGTHS:
        model = Ridge(alpha=strength).fit(x[train], train.grades.numpy())
        candidates.append(tuple(torch.from_numpy(model.predict(x[data])) for data in (val, test)))
    return max(candidates, key=lambda scores: measured(scores[0], val)[WATCHED])


# The strongest one ----------------------------------------------------------------------------------------------------

BEST_RECIPE = Recipe(epochs=40, patience=None)
SHAPES = (((64, 32), 0.3), ((128, 64), 0.5), ((32,), 0.5), ((256,), 0.5))  # widths of hidden layers, and dropout
MEMBERS = tuple((name, hidden, dropout) for name in ("softmax", "listnet", "approx_ndcg") for hidden, dropout in SHAPES)


def comparable(scores: Tensor, data: RankingDataset) -> Tensor:
    """Scores with mean 0 in each query and deviation 1 over all items, so that those of several networks can be averaged."""
    query = torch.arange(len(data)).repeat_interleave(data.lengths)
    mean = torch.zeros(len(data)).index_add(0, query, scores) / data.lengths
    centred = scores - mean[query]
    deviation = centred.std()
    return centred / torch.where(deviation > 0, deviation, 1.0)


def run_best(fold: Fold, recipe: Recipe, seed: int) -> tuple[Tensor, Tensor]:
    """Networks that differ in loss, shape and seed, trained without a look at validation: the mean of their scores."""
    splits = read(fold)
    sums = [torch.zeros(len(splits[part].grades)) for part in ("val", "test")]
    for i, (name, hidden, dropout) in enumerate(MEMBERS):
        own = replace(recipe, hidden=hidden, dropout=dropout)
        both = run_network(fold, name, own, len(MEMBERS) * seed + i)
        for total, part, scores in zip(sums, ("val", "test"), both, strict=True):
            total += comparable(scores, splits[part])
    return sums[0], sums[1]
