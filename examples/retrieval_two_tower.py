"""Two towers for recommendation: trained by in-batch softmax, chosen and tested over the whole catalogue.

python examples/retrieval_two_tower.py                       # interactions that are generated
python examples/retrieval_two_tower.py --ratings ratings.csv # a file with user, item, rating and time, such as MovieLens

Of each user the last item is for the test, the one before for validation; items of a user's past are not recommended again. The
baseline recommends what is popular, by the same protocol.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.data import DataLoader, TensorDataset

from lightning_rank import InBatchSoftmaxLoss, RetrievalMonitor
from lightning_rank.data.ratings import Ratings, read_ratings
from lightning_rank.report.tables import print_table

METRICS = ["recall@20", "ndcg@20", "mrr@20"]


def generated(users: int, items: int, per_user: int = 20) -> Ratings:
    """Users with tastes choose among items of eight kinds, some popular; no item twice."""
    rng = np.random.default_rng(0)
    taste, kind = rng.normal(size=(users, 8)), rng.normal(size=(items, 8))
    appeal = taste @ kind.T + 1.5 * rng.normal(size=items) + rng.gumbel(size=(users, items))
    chosen = np.argsort(-appeal, axis=1)[:, :per_user]
    chosen = rng.permuted(chosen, axis=1)  # the time of a choice says nothing of its appeal
    user, place = np.indices(chosen.shape)
    return Ratings.from_columns(user.ravel(), chosen.ravel(), np.ones(chosen.size), place.ravel())


class Interactions:
    """Pairs of users and items by number: the past, and what is held out for validation and test."""

    def __init__(self, ratings: Ratings) -> None:
        before_test, test = ratings.leave_last_out()
        past, val = before_test.leave_last_out()
        users = {name: i for i, name in enumerate(ratings.frame["user"].unique(maintain_order=True))}
        items = {name: i for i, name in enumerate(ratings.frame["item"].unique(maintain_order=True))}
        self.num_users, self.num_items = len(users), len(items)

        def numbers(frame: Ratings) -> Tensor:
            pairs = zip(frame.frame["user"], frame.frame["item"], strict=True)
            return torch.tensor(sorted({(users[u], items[i]) for u, i in pairs}))

        self.past, before = numbers(past), numbers(before_test)
        self.seen = {"val": self.past, "test": before}
        self.held_out = {}
        for stage, judgements in (("val", val), ("test", test)):
            known = set(map(tuple, self.seen[stage].tolist()))
            pairs = [(users[u], items[i]) for u, found in judgements.to_dict().items() for i in found]
            self.held_out[stage] = torch.tensor([pair for pair in pairs if pair not in known])

    def loader(self, stage: str, batch_size: int = 256) -> DataLoader:
        """Users with their held-out item and what they have seen, flat with offsets."""
        seen, held_out = self.seen[stage], self.held_out[stage]
        start = torch.searchsorted(seen[:, 0].contiguous(), torch.arange(self.num_users + 1))

        def collate(rows: list[int]) -> dict[str, Tensor]:
            user, item = held_out[rows].unbind(1)
            parts = [seen[start[u] : start[u + 1], 1] for u in user.tolist()]
            offsets = torch.tensor([0, *map(len, parts)]).cumsum(0)
            return {"user": user, "item": item, "seen": torch.cat(parts), "seen_offsets": offsets}

        return DataLoader(range(len(held_out)), batch_size=batch_size, collate_fn=collate)  # type: ignore[arg-type]


class Recommender(pl.LightningModule):
    """Embeddings of users and items; the step says what was held out and what was seen."""

    def user_embeddings(self, user: Tensor) -> Tensor:
        raise NotImplementedError

    def item_embeddings(self) -> Tensor:
        raise NotImplementedError

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> dict[str, Tensor]:
        # Ids, so that on several processes each user counts once.
        held_out = {"relevant": batch["item"], "indexes": batch["user"]}
        seen = {"seen": batch["seen"], "seen_offsets": batch["seen_offsets"]}
        return {"query": self.user_embeddings(batch["user"]), **held_out, **seen}

    test_step = validation_step


class Popular(Recommender):
    """The same for all users: how often an item was chosen."""

    def __init__(self, count: Tensor) -> None:
        super().__init__()
        self.register_buffer("count", count.float())

    def user_embeddings(self, user: Tensor) -> Tensor:
        return torch.ones(len(user), 1, device=self.device)

    def item_embeddings(self) -> Tensor:
        return self.count[:, None]


class TwoTowers(Recommender):
    """An embedding and a layer for each side, trained so that a user is near the items of its past."""

    def __init__(self, num_users: int, count: Tensor, size: int = 32) -> None:
        super().__init__()
        self.user = nn.Sequential(nn.Embedding(num_users, size), nn.Linear(size, size))
        self.item = nn.Sequential(nn.Embedding(len(count), size), nn.Linear(size, size))
        self.bias = nn.Embedding.from_pretrained(torch.log1p(count.float())[:, None], freeze=False)
        # A popular item is often a negative of the batch by mere frequency: log_q takes that back.
        self.register_buffer("log_q", torch.log((count + 1.0) / (count + 1.0).sum()))
        self.loss = InBatchSoftmaxLoss()

    def user_embeddings(self, user: Tensor) -> Tensor:
        # The last place meets the item's bias.
        return torch.cat([5 * normalize(self.user(user)), torch.ones(len(user), 1, device=self.device)], 1)

    def item_embeddings(self, item: Tensor | None = None) -> Tensor:
        item = torch.arange(len(self.log_q), device=self.device) if item is None else item
        return torch.cat([normalize(self.item(item)), self.bias(item)], 1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        user, item = batch[0].unbind(1)
        return self.loss(self.user_embeddings(user), self.item_embeddings(item), item_ids=item, log_q=self.log_q[item])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2, weight_decay=0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ratings", help="CSV, TSV, Parquet or JSON lines with user, item, rating, time")
    parser.add_argument("--users", type=int, default=3000, help="users to generate without --ratings")
    parser.add_argument("--items", type=int, default=2000, help="items to generate without --ratings")
    parser.add_argument("--epochs", type=int, default=25)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", ".*does not have many workers.*|The number of training batches.*")

    torch.set_num_threads(1)  # matrices this small are slower on several
    pl.seed_everything(0, verbose=False)
    data = Interactions(read_ratings(args.ratings) if args.ratings else generated(args.users, args.items))
    count = torch.bincount(data.past[:, 1], minlength=data.num_items)
    print(f"{data.num_users:,} users, {data.num_items:,} items, {len(data.past):,} interactions to train on")
    with tempfile.TemporaryDirectory() as folder:
        best = ModelCheckpoint(folder, monitor="val/ndcg@20", mode="max")
        trainer = pl.Trainer(
            max_epochs=args.epochs,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[RetrievalMonitor(METRICS), best, EarlyStopping("val/ndcg@20", mode="max", patience=4)],
        )
        towers = TwoTowers(data.num_users, count)
        trainer.fit(towers, DataLoader(TensorDataset(data.past), batch_size=512, shuffle=True), data.loader("val"))
        rows = []
        for name, model, path in (("popular", Popular(count), None), ("two towers", towers, best.best_model_path)):
            (found,) = trainer.test(model, data.loader("test"), ckpt_path=path, verbose=False)
            rows.append([name, *(f"{found[f'test/{metric}']:.4f}" for metric in METRICS)])
    print_table(f"Test: the last item of {len(data.held_out['test']):,} users", ["", *METRICS], rows)


if __name__ == "__main__":
    main()
