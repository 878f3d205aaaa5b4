"""MQ2008, five folds: an MLP on ApproxNDCG, chosen on validation, beside LightGBM's LambdaMART where that is installed.

    python examples/benchmarks/mq2008.py --data FOLDER   # holds S1.txt ... S5.txt of LETOR 4.0

Test NDCG@10 with gain 2^grade - 1, over the queries that have a relevant document (the others have no NDCG; LETOR's own script
counts them as 0, others as 1).
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint

from lightning_rank import (
    ApproxNDCGLoss,
    LetorDataModule,
    MLPScorer,
    RankingDataset,
    RankingMetrics,
    RankingModule,
    RankingMonitor,
)
from lightning_rank.report.tables import print_table

METRICS = ("ndcg@5", "ndcg@10", "map", "mrr")


def fold_files(fold: int) -> tuple[list[str], str, str]:
    """Training, validation and test files of fold 1..5, as LETOR's readme rotates them."""
    names = [f"S{(fold - 1 + i) % 5 + 1}.txt" for i in range(5)]
    return names[:3], names[3], names[4]


def train_mlp(data: LetorDataModule, seed: int, epochs: int, folder: Path) -> dict[str, float]:
    """Train with early stopping on validation NDCG@10; test metrics of the best epoch."""
    pl.seed_everything(seed, verbose=False)
    scorer = MLPScorer([64, 32], dropout=0.3, transform="standardize")
    module = RankingModule(
        scorer,
        ApproxNDCGLoss(temperature=1.0),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=1e-2),
    )
    best = ModelCheckpoint(folder, monitor="val/ndcg@10", mode="max")
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            RankingMonitor(METRICS, empty_target_action="skip"),
            best,
            EarlyStopping("val/ndcg@10", mode="max", patience=30),
        ],
    )
    trainer.fit(module, datamodule=data)
    (result,) = trainer.test(module, datamodule=data, ckpt_path=best.best_model_path, verbose=False)
    return {name: result[f"test/{name}"] for name in METRICS}


def train_lightgbm(splits: dict[str, RankingDataset], seed: int) -> dict[str, float]:
    """LambdaMART with early stopping on validation NDCG@10."""
    import lightgbm as lgb

    ranker = lgb.LGBMRanker(
        objective="lambdarank",
        n_estimators=1000,
        learning_rate=0.05,
        num_leaves=15,
        min_child_samples=50,
        subsample=0.8,
        subsample_freq=1,
        colsample_bytree=0.5,
        reg_lambda=5.0,
        random_state=seed,
        verbose=-1,
        n_jobs=2,
    )
    x, y, group = zip(
        *((d.features.numpy(), d.grades.numpy(), d.lengths.numpy()) for d in (splits["train"], splits["val"])), strict=True
    )
    ranker.fit(
        x[0], y[0], group=group[0], eval_set=[(x[1], y[1])], eval_group=[group[1]], eval_at=[10],
        callbacks=[lgb.early_stopping(100, verbose=False)],
    )  # fmt: skip
    test = splits["test"]
    metrics = RankingMetrics(METRICS, empty_target_action="skip")
    metrics.update(torch.from_numpy(ranker.predict(test.features.numpy())), test.grades, offsets=test.offsets)
    return {name: value.item() for name, value in metrics.compute().items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of S1.txt ... S5.txt")
    parser.add_argument("--folds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=150)
    args = parser.parse_args()
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="pytorch_lightning")

    systems = ["MLP, ApproxNDCG"] + ["LightGBM LambdaMART"] * (find_spec("lightgbm") is not None)
    results: dict[str, list[dict[str, float]]] = {system: [] for system in systems}
    started = time.perf_counter()
    for fold in args.folds:
        train, val, test = fold_files(fold)
        data = LetorDataModule(args.data, train=train, val=val, test=test, batch_size=32, seed=args.seed)
        with tempfile.TemporaryDirectory() as folder:
            results[systems[0]].append(train_mlp(data, args.seed, args.epochs, Path(folder)))
        if len(systems) > 1:
            results[systems[1]].append(train_lightgbm(data.splits, args.seed))
        scores = ", ".join(f"{system} {results[system][-1]['ndcg@10']:.4f}" for system in systems)
        print(f"fold {fold}: test ndcg@10 {scores}  ({time.perf_counter() - started:.0f} s)", flush=True)

    print()
    rows = []
    for system in systems:
        table = torch.tensor([[fold[name] for name in METRICS] for fold in results[system]], dtype=torch.float64)
        error = table.std(0) / len(table) ** 0.5 if len(table) > 1 else torch.zeros(len(METRICS))
        rows.append([system, *(f"{m:.4f} ± {e:.4f}" for m, e in zip(table.mean(0), error, strict=True))])
    print_table(f"MQ2008, test, mean ± standard error over folds {args.folds}, seed {args.seed}", ["", *METRICS], rows)


if __name__ == "__main__":
    main()
