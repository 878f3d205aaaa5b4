"""From a LETOR file to a tested ranker in Python: read, train, choose by validation NDCG, test, look at one query.

python examples/letor.py                       # generated data, written as LETOR files first
python examples/letor.py --data MQ2008/Fold1   # a folder with train.txt, vali.txt and test.txt
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from lightning_rank import (
    ApproxNDCGLoss,
    LetorDataModule,
    MLPScorer,
    RankingDataset,
    RankingModule,
    RankingMonitor,
    make_ranking,
)


def write_letor(data: RankingDataset, path: Path) -> None:
    """``grade qid:id 1:value ... # docid``, a line per item."""
    with path.open("w") as file:
        for query, (start, end) in enumerate(zip(data.offsets[:-1].tolist(), data.offsets[1:].tolist(), strict=True)):
            for item in range(start, end):
                features = " ".join(f"{i}:{x:.5g}" for i, x in enumerate(data.features[item].tolist(), 1))
                file.write(f"{int(data.grades[item])} qid:{data.query_ids[query]} {features} # doc{item}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with train.txt, vali.txt, test.txt")
    parser.add_argument("--queries", type=int, default=400, help="training queries to generate without --data")
    parser.add_argument("--epochs", type=int, default=15)
    args = parser.parse_args()

    pl.seed_everything(0, verbose=False)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.data or temporary
        if args.data is None:
            sizes = {"train": args.queries, "vali": args.queries // 4, "test": args.queries // 4}
            for split, (name, size) in enumerate(sizes.items()):
                write_letor(make_ranking(size, difficulty=0.2, split=split), Path(folder, f"{name}.txt"))
        data = LetorDataModule(folder, batch_size=32)
        module = RankingModule(
            MLPScorer([64, 32], dropout=0.1),
            ApproxNDCGLoss(temperature=0.5),
            optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
        )
        best = ModelCheckpoint(temporary, monitor="val/ndcg@10", mode="max")
        trainer = pl.Trainer(
            max_epochs=args.epochs,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[RankingMonitor(["ndcg@5", "ndcg@10", "map", "mrr"], empty_queries=True), best],
        )
        trainer.fit(module, datamodule=data)
        (result,) = trainer.test(module, datamodule=data, ckpt_path=best.best_model_path, verbose=False)
        for name, value in result.items():
            print(f"{name:20} {value:.4f}")

        test = data.splits["test"]
        query = test[0]
        module.eval()
        scores = module(query["features"][None])[0]
        print(f"\nquery {test.query_ids[0]}, the first ten of {len(scores)}: rank, document, score, grade")
        for rank, item in enumerate(scores.argsort(descending=True)[:10].tolist(), 1):
            document = test.document_ids[item] if test.document_ids else item
            print(f"{rank:>4}  {document:<24} {scores[item]:8.3f}  {int(query['target'][item])}")


if __name__ == "__main__":
    main()
