"""Data larger than comfort: converting LETOR text, and training on what was converted, against what others do, in one run.

    python examples/benchmarks/scale.py                       # 1.2 million lines x 136 features: 1.4 GB, a quarter of an hour
    python examples/benchmarks/scale.py --lines 60000         # a small one
    pip install lightgbm                                      # one side of the first part; left out if it is missing

`convert`: a process that makes a memory-mapped data set of a text file in the shape of MSLR-WEB10K, against processes that load it
with scikit-learn and with LightGBM (which cannot read query ids in the text, so it gets a file without them, and one of list
lengths). Each is run `--repeats` times in turn (once if it takes more than a minute), the file being in the system's cache, and the
fastest counts.

`train`: an epoch of an MLP on that data set with Trainer, RankingModule and LetorDataModule, against a hand-written loop of plain
PyTorch on the same batches, its data in memory. And the peak of memory that an epoch takes for a quarter of the queries and for all
of them; what counts is memory that the mapped file does not back (RssAnon): the system takes the rest back when it needs it.

`validate`: a validation with and without RankingMonitor, by a small MLP and by one of a usual size; "in its hooks" is the CPU time
that passes there, which noise does not reach as it does the difference of two epochs.

The last two run on one thread and count CPU seconds, as two threads on a machine that others use wait for one another.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from measuring import Usage, process

from lightning_rank.report.tables import print_table

FEATURES, PER_QUERY, BATCHES, HIDDEN = 136, 120, (64, 256), ((64, 32), (512, 256, 128))
PARTS = ("convert", "train", "validate")
VALIDATIONS = 9
CONVERT = """
import sys
from lightning_rank.data.cache import convert
print(convert(sys.argv[1], sys.argv[2]))
"""
OPEN = """
import sys, time
from lightning_rank.data.cache import open_cache
open_cache(sys.argv[1])
start = time.perf_counter()
open_cache(sys.argv[1])
print(time.perf_counter() - start)
"""
SKLEARN = """
import sys
from sklearn.datasets import load_svmlight_file
features, grades, queries = load_svmlight_file(sys.argv[1], query_id=True)
print(features.shape)
"""
LIGHTGBM = """
import sys, lightgbm
data = lightgbm.Dataset(sys.argv[2], params={"verbose": -1, "two_round": TWO_ROUND}).construct()
print((data.num_data(), data.num_feature()))
"""


def write_text(path: Path, lines: int, seed: int = 0) -> None:
    """LETOR text like MSLR-WEB10K's, and beside it the same without query ids for LightGBM, with the lengths of the lists.

    Two thirds of the features are counts, the others have six decimals. There are 4,000 vectors, which no side can know; within a
    query one in 2,000 is there twice, as in a sample of MSLR-WEB30K.
    """
    rng = np.random.default_rng(seed)
    kinds = [
        np.char.mod("%d", rng.geometric(0.02, 4000)) if j % 3 else np.char.mod("%.6f", rng.lognormal(-1, 1.5, 4000))
        for j in range(FEATURES)
    ]
    bodies = ["".join(f" {j}:{value}" for j, value in enumerate(row, 1)) + " \n" for row in zip(*kinds, strict=True)]
    lengths: list[int] = []
    with path.open("w") as text, path.with_suffix(".plain").open("w") as plain:
        left = lines
        while left:
            lengths.append(min(left, int(rng.lognormal(np.log(PER_QUERY) - 0.18, 0.6)) + 1, 900))
            left -= lengths[-1]
            grades = rng.choice(5, lengths[-1], p=[0.52, 0.32, 0.13, 0.02, 0.01])
            vectors = rng.permutation(4000)[: lengths[-1]]
            vectors[1:] = np.where(rng.random(lengths[-1] - 1) < 0.0005, vectors[:-1], vectors[1:])
            picked = [bodies[i] for i in vectors]
            text.writelines(f"{grade} qid:{len(lengths)}{body}" for grade, body in zip(grades, picked, strict=True))
            plain.writelines(f"{grade}{body}" for grade, body in zip(grades, picked, strict=True))
    Path(f"{path.with_suffix('.plain')}.query").write_text("\n".join(map(str, lengths)))


def compare_converting(path: Path, folder: Path, repeats: int) -> None:
    sides = {"lightning_rank convert": CONVERT, "scikit-learn load_svmlight_file": SKLEARN}
    if find_spec("lightgbm") is not None:
        sides |= {
            f"LightGBM Dataset{', two_round' * two_round}": LIGHTGBM.replace("TWO_ROUND", str(two_round))
            for two_round in (False, True)
        }
    used: dict[str, list[Usage]] = {name: [] for name in sides}
    for i in range(repeats):
        for name, code in sides.items():
            if used[name] and used[name][0].seconds > 60:
                continue  # long enough to be sure of
            ours = code is CONVERT
            _, usage = process(code, path, folder / f"cache{i}" if ours else path.with_suffix(".plain"))
            used[name].append(usage)
    best = {name: min(usages) for name, usages in used.items()}
    others = [usage for name, usage in best.items() if name != "lightning_rank convert"]
    ours = best["lightning_rank convert"]
    print_table(
        f"Converting {path.stat().st_size / 1e9:.2f} GB of text, the fastest of {repeats}",
        ["", "seconds", "CPU seconds", "peak MB", "time / ours", "memory / ours"],
        [
            [name, f"{u.seconds:.1f}", f"{u.cpu:.1f}", f"{u.megabytes:.0f}", f"{u.seconds / ours.seconds:.1f}",
             f"{u.megabytes / ours.megabytes:.1f}"]
            for name, u in best.items()
        ],
    )  # fmt: skip
    print(f"Peak memory is {ours.megabytes / min(u.megabytes for u in others):.2f} of the smallest of the others.")


# Training -------------------------------------------------------------------------------------------------------------


def mlp(hidden: tuple[int, ...] = HIDDEN[0]) -> Any:
    from lightning_rank.models import MLPScorer

    return MLPScorer(hidden, num_features=FEATURES)


def work_trainer(folder: str, batch_size: int, part: float) -> dict[str, float]:
    """CPU seconds of the second epoch, and the peak of memory in it beyond what there was before."""
    import pytorch_lightning as pl
    import torch

    from lightning_rank.pytorch_lightning import LetorDataModule, RankingModule

    before = rss("RssAnon")

    class Watch(pl.Callback):
        seconds = 0.0
        peak = 0.0

        def on_train_epoch_start(self, *_: Any) -> None:
            self.start = time.process_time()

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx % 20 == 0:
                self.peak = max(self.peak, rss("RssAnon"))

        def on_train_epoch_end(self, *_: Any) -> None:
            self.seconds = time.process_time() - self.start

    torch.manual_seed(0)
    watch = Watch()
    data = LetorDataModule(train=folder, batch_size=batch_size)
    module = RankingModule(mlp(), loss="softmax", optimizer=lambda p: torch.optim.Adam(p, lr=1e-3))
    trainer = plain_trainer([watch], max_epochs=2, limit_train_batches=part)
    trainer.fit(module, datamodule=data)
    return {"seconds": watch.seconds, "anonymous": watch.peak - before, "resident": rss("VmHWM")}


def plain_trainer(callbacks: list[Any], **options: Any) -> Any:
    import logging
    import warnings

    import pytorch_lightning as pl

    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    return pl.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=callbacks, **options,
    )  # fmt: skip


def work_loop(folder: str, batch_size: int, part: float) -> dict[str, float]:
    """The same by hand, all of the data in memory."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    from lightning_rank.data.batches import QueryBatchSampler
    from lightning_rank.functional import softmax_loss

    torch.manual_seed(0)
    features, grades = (torch.from_numpy(np.load(Path(folder, f"{name}.npy"))) for name in ("features", "grades"))
    offsets = np.load(Path(folder, "offsets.npy"))
    lists = [(features[a:b], grades[a:b]) for a, b in pairwise(offsets.tolist())]
    sampler = QueryBatchSampler(torch.from_numpy(np.diff(offsets)), batch_size, shuffle=True)
    model = mlp()
    model.fit_features(features)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    seconds = 0.0
    for epoch in range(2):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        start = time.process_time()
        for batch in batches[: round(part * len(batches))]:
            x = pad_sequence([lists[q][0] for q in batch], batch_first=True)
            target = pad_sequence([lists[q][1] for q in batch], batch_first=True, padding_value=-1.0)
            mask = target >= 0
            loss = softmax_loss(model(x), target, mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seconds = time.process_time() - start
    return {"seconds": seconds, "resident": rss("VmHWM")}


def work_validate(folder: str, batch_size: int, part: float, hidden: tuple[int, ...] = HIDDEN[0]) -> dict[str, float]:
    """CPU seconds of a validation epoch with a monitor and without, in turn, and of the monitor's hooks: the least of several."""
    from lightning_rank.pytorch_lightning import LetorDataModule, RankingModule, RankingMonitor

    def timed(hook: Any) -> Any:
        def run(*arguments: Any, **named: Any) -> None:
            start = time.process_time()
            hook(*arguments, **named)
            times["hooks"][-1] += time.process_time() - start

        return run

    data = LetorDataModule(val=folder, batch_size=batch_size)
    module = RankingModule(mlp(hidden), loss="softmax")
    times: dict[str, list[float]] = {"without": [], "with": [], "hooks": []}
    for _ in range(VALIDATIONS):
        for name in ("without", "with"):
            callbacks = []
            if name == "with":
                monitor = RankingMonitor(["ndcg@10", "map", "mrr"], advice=False)
                for hook in ("on_validation_epoch_start", "on_validation_batch_end", "on_validation_epoch_end"):
                    setattr(monitor, hook, timed(getattr(monitor, hook)))
                callbacks.append(monitor)
                times["hooks"].append(0.0)
            trainer = plain_trainer(callbacks, limit_val_batches=part)
            start = time.process_time()
            trainer.validate(module, datamodule=data, verbose=False)
            times[name].append(time.process_time() - start)
    return {name: min(values) for name, values in times.items()}


def work_validate_usual(folder: str, batch_size: int, part: float) -> dict[str, float]:
    return work_validate(folder, batch_size, part, HIDDEN[1])


def rss(key: str) -> float:
    """Megabytes; Linux only."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key)) / 1e3


WORK = {"trainer": work_trainer, "loop": work_loop, "validate": work_validate, "validate_usual": work_validate_usual}


def worked(name: str, folder: Path, batch_size: int, part: float = 1.0) -> dict[str, float]:
    """A measurement in a process of its own."""
    command = [sys.executable, __file__, "--work", name, str(folder), str(batch_size), str(part)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def compare_training(folder: Path, repeats: int) -> None:
    opened = float(process(OPEN, folder)[0])
    print(f"\nOpening the data set: {1000 * opened:.1f} ms")
    queries = len(np.load(folder / "offsets.npy", mmap_mode="r")) - 1
    rows = []
    for size in BATCHES:
        # In turn, as others may use the machine.
        runs: dict[str, list[dict[str, float]]] = {"trainer": [], "loop": []}
        for _ in range(repeats):
            for name, results in runs.items():
                results.append(worked(name, folder, size))
        trainer, loop = (min(result["seconds"] for result in results) for results in runs.values())
        rows.append([f"{size}", f"{trainer:.2f}", f"{loop:.2f}", f"{loop / trainer:.0%}"])
    print_table(
        f"An epoch of {queries:,} queries, CPU seconds, the least of {repeats}",
        ["queries a batch", "Trainer", "loop by hand", "throughput"],
        rows,
    )
    parts = [worked("trainer", folder, BATCHES[0], part)["anonymous"] for part in (0.25, 1.0)]
    print(
        f"Memory that an epoch takes beyond the mapped file: {parts[0]:.0f} MB for a quarter of the queries, "
        f"{parts[1]:.0f} MB for all."
    )


def compare_validation(folder: Path) -> None:
    rows = []
    for name, hidden in zip(("validate", "validate_usual"), HIDDEN, strict=True):
        for size in BATCHES:
            took = worked(name, folder, size)
            rows.append(
                ["-".join(map(str, hidden)), f"{size}", f"{took['without']:.2f}", f"{took['with'] / took['without'] - 1:+.1%}",
                 f"{took['hooks'] / took['without']:.1%}"]
            )  # fmt: skip
    print_table(
        f"A validation epoch, CPU seconds, the least of {VALIDATIONS}",
        ["MLP", "queries a batch", "without a monitor", "with RankingMonitor", "in its hooks"],
        rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_200_000)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        import torch

        torch.set_num_threads(1)
        name, folder, batch_size, part = options.work
        print(json.dumps(WORK[name](folder, int(batch_size), float(part))))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "train.txt")
        write_text(path, options.lines)
        if "convert" in options.parts:
            compare_converting(path, Path(folder), options.repeats)
        if {"train", "validate"} & {*options.parts}:
            cache = Path(process(CONVERT, path, Path(folder, "cache"))[0])
        if "train" in options.parts:
            compare_training(cache, options.repeats)
        if "validate" in options.parts:
            compare_validation(cache)


if __name__ == "__main__":
    main()
