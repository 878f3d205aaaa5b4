"""Evaluation of retrieval from a whole catalogue against its matrix products alone; two processes against one.

    python examples/benchmarks/retrieval.py             # --threads 2, --users 20000 --items 50000
    python examples/benchmarks/retrieval.py --parts processes --batch 512 --queries 16000

The products are the least that exact retrieval by embeddings can cost: all users times all items, some users at a time into
memory that is used again, at the fastest of three sizes. "topk" is what people write: products and ``torch.topk``. Each side runs
in processes of its own, ``--turns`` of them taking turns; memory is the rise above what it held before, embeddings and seen items.
Times are medians of wall time, and of CPU time in brackets, which others on the machine do not change as much. Two processes train
the same network on the same queries, by DistributedDataParallel with a thread each, against one process with one thread, and with
two.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytorch_lightning as pl
import torch
from measuring import extra_bytes, printed_by
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_rank import MLPScorer, RankingModule, RetrievalMonitor, SyntheticDataModule
from lightning_rank.functional import top_items
from lightning_rank.report.tables import print_table

MIB = 2**20
METRICS = ["recall@100", "ndcg@10", "ndcg@100", "mrr@10"]
SEEN, HELD_OUT = 50, 5
"""Items of each user."""


# A catalogue ----------------------------------------------------------------------------------------------------------


class Catalogue(pl.LightningModule):
    """Embeddings as they are after training, and for each user items seen and held out."""

    def __init__(self, users: int, items: int, size: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.user = torch.randn(users, size, generator=generator)
        self.item_embeddings = torch.randn(items, size, generator=generator)
        first = torch.randint(0, items, (users, 1), generator=generator)
        # Multiples of an odd step: no item of a user comes twice.
        drawn = (first + 7919 * torch.arange(SEEN + HELD_OUT)) % items
        self.seen, self.held_out = drawn[:, :SEEN], drawn[:, SEEN:]

    def validation_step(self, users: Tensor, batch_idx: int) -> dict[str, Tensor]:
        return {"query": self.user[users], "relevant": self.held_out[users], "seen": self.seen[users]}


def products(model: Catalogue, rows: int) -> Callable[[], None]:
    query, item = model.user, model.item_embeddings
    memory = torch.empty(rows, len(item))

    def run() -> None:
        for part in query.split(rows):
            torch.mm(part, item.T, out=memory[: len(part)])

    return run


def topk(model: Catalogue, rows: int = 256) -> Callable[[], None]:
    query, item = model.user, model.item_embeddings
    memory, row = torch.empty(rows, len(item)), torch.arange(rows)[:, None]

    def run() -> None:
        for part, seen in zip(query.split(rows), model.seen.split(rows), strict=True):
            scores = torch.mm(part, item.T, out=memory[: len(part)])
            scores[row[: len(part)], seen] = -torch.inf
            scores.topk(100)

    return run


def monitor(model: Catalogue) -> Callable[[], None]:
    trainer = pl.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        callbacks=[RetrievalMonitor(METRICS)],
    )  # fmt: skip
    batches = torch.arange(len(model.user)).split(2048)  # not user by user, as a DataLoader would put them together
    loader = DataLoader(batches, batch_size=None)  # type: ignore[arg-type]  # a tuple will do
    return lambda: trainer.validate(model, loader, verbose=False)


def retrieved(model: Catalogue) -> Callable[[], None]:
    return lambda: top_items(model.user, model.item_embeddings, 100, seen=model.seen)


SIDES: dict[str, Callable[[Catalogue], Callable[[], object]]] = {
    "products, 128 users at a time": lambda model: products(model, 128),
    "products, 256 users": lambda model: products(model, 256),
    "products, 512 users": lambda model: products(model, 512),
    "products and topk": topk,
    "top_items": retrieved,
    "RetrievalMonitor, a validation": monitor,
}


def measure(side: str, sizes: list[int], rounds: int) -> str:
    """Medians of seconds and of seconds of CPU, and extra bytes, in this process."""
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    SIDES[side](Catalogue(300, 300, sizes[2]))()  # what a first call loads
    run = SIDES[side](Catalogue(*sizes))
    extra, wall, cpu = extra_bytes(run), [], []
    for _ in range(rounds):
        start = time.perf_counter(), time.process_time()
        run()
        wall.append(time.perf_counter() - start[0])
        cpu.append(time.process_time() - start[1])
    return f"{statistics.median(wall)} {statistics.median(cpu)} {extra}"


def catalogue(sizes: list[int], threads: int, rounds: int, turns: int) -> None:
    all_found: dict[str, list[list[float]]] = {}
    for turn in range(turns):
        for side in SIDES:
            print(f"{turn + 1} of {turns}: {side}", file=sys.stderr)
            # Output of Lightning may stand before the line.
            arguments = ["--one", side, "--threads", str(threads), "--rounds", str(rounds)]
            printed = printed_by(
                __file__, *arguments, "--users", str(sizes[0]), "--items", str(sizes[1]), "--size", str(sizes[2])
            )
            if printed is not None:
                all_found.setdefault(side, []).append([float(value) for value in printed.splitlines()[-1].split()])
    found = {side: [statistics.median(values) for values in zip(*of, strict=True)] for side, of in all_found.items()}
    least = [min(values[i] for side, values in found.items() if side.startswith("products, ")) for i in (0, 1)]
    rows = [
        [side, f"{wall:.2f} s ({cpu:.2f})", f"{wall / least[0]:.2f} ({cpu / least[1]:.2f})", f"{extra / MIB:.0f} MiB"]
        for side, (wall, cpu, extra) in found.items()
    ]
    title = f"{sizes[0]:,} users x {sizes[1]:,} items, {sizes[2]} dimensions, top 100, threads: {threads}"
    print_table(title, ["", "time (CPU)", "over the products", "memory"], rows)


# Two processes --------------------------------------------------------------------------------------------------------


def train(devices: int, queries: int, batch: int, out: str) -> None:
    """Train some epochs; seconds of the fastest but the first go to a file."""
    warnings.filterwarnings("ignore")
    data = SyntheticDataModule(num_train=queries, num_val=20, num_test=20, batch_size=batch // devices)
    module = RankingModule(MLPScorer([256, 128, 64], num_features=16), "softmax")
    clock = Clock()
    pl.Trainer(
        accelerator="cpu", devices=devices, strategy="ddp" if devices > 1 else "auto", max_epochs=4, logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, limit_val_batches=0, callbacks=[clock],
    ).fit(module, datamodule=data)  # fmt: skip
    if os.environ.get("LOCAL_RANK", "0") == "0":
        Path(out).write_text(str(min(clock.seconds[1:])))


class Clock(pl.Callback):
    """Seconds of each training epoch."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._start = time.perf_counter()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.seconds.append(time.perf_counter() - self._start)


def processes(queries: int, batch: int) -> None:
    rows, first = [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        for label, devices, threads in (
            ("one, one thread", 1, 1),
            ("one, two threads", 1, 2),
            ("two, a thread each", 2, 1),
        ):
            print(label, file=sys.stderr)
            out = Path(folder, label.replace(" ", ""))
            arguments = ["--train", str(devices), str(out), "--threads", str(threads)]
            printed_by(__file__, *arguments, "--queries", str(queries), "--batch", str(batch))
            if not out.exists():  # gloo may abort a process whose work is done
                continue
            seconds = float(out.read_text())
            first = first or seconds
            rows.append([label, f"{seconds:.2f} s", f"{queries / seconds:,.0f}", f"{first / seconds:.2f}"])
    title = f"An epoch of {queries:,} queries, {batch} of them a step, MLP 16-256-128-64-1"
    print_table(title, ["processes", "time", "queries / s", "times as fast"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["catalogue", "processes"], choices=["catalogue", "processes"])
    parser.add_argument("--users", type=int, default=20_000)
    parser.add_argument("--items", type=int, default=50_000)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--queries", type=int, default=8_000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--train", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sizes = [args.users, args.items, args.size]
    if args.one:
        print(measure(args.one, sizes, args.rounds))
    elif args.train:
        train(int(args.train[0]), args.queries, args.batch, args.train[1])
    else:
        if "catalogue" in args.parts:
            catalogue(sizes, args.threads, args.rounds, args.turns)
        if "processes" in args.parts:
            processes(args.queries, args.batch)


if __name__ == "__main__":
    main()
