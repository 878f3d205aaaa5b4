"""Every loss of the library on MQ2008, five folds by three seeds, with one recipe, beside LightGBM's LambdaMART and ridge.

    python examples/benchmarks/mq2008.py --data FOLDER                         # all losses
    python examples/benchmarks/mq2008.py --data FOLDER --losses softmax listnet --seeds 0 1 2 --jobs 2
    python examples/benchmarks/mq2008.py --data FOLDER --best --jobs 2         # the strongest ranker we know how to train

FOLDER holds S1.txt ... S5.txt of LETOR 4.0, or train.txt, vali.txt and test.txt, as MSLR-WEB has them. Each run is written to
`--results` when it ends; the same command goes on where it was stopped, and a run whose settings have changed is done anew.

Losses have their own default options and share all else: the network, the optimiser, and the epoch with the best validation
NDCG@10. `pointwise_bce` gets grades as shares of the highest one; for `ordinal` a threshold per grade is learnt beside the score.

Metrics are those of the test queries, with gain 2^grade - 1, over the queries that have a relevant document (the others have no
NDCG; LETOR's own script counts them as 0, others as 1). Folds are the unit of the standard error: seeds are averaged within a fold
first. Queries differ more than rankers do, so that the difference to LightGBM, fold by fold, tells more than two means.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from training import (
    BEST,
    BEST_RECIPE,
    LIGHTGBM,
    MEMBERS,
    METRICS,
    RIDGE,
    RIDGE_STRENGTHS,
    TREES,
    WATCHED,
    Fold,
    Recipe,
    adapted,
    folds_of,
    list_losses,
    measured,
    read,
    run_best,
    run_lightgbm,
    run_network,
    run_ridge,
)

import lightning_rank
from lightning_rank.report.tables import print_table

# Runs and their records -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A system on a fold with a seed."""

    system: str
    fold: Fold
    seed: int
    recipe: Recipe

    @property
    def key(self) -> str:
        """What must be the same for a record to stand for this run: all settings, and the data by the sizes of its files."""
        files = [Path(path) for path in (*self.fold.train, *self.fold.val, *self.fold.test)]
        settings: list[Any] = [self.system, self.seed, lightning_rank.__version__, self.fold.transform]
        settings += [[file.name, file.stat().st_size] for file in files]
        if self.system == TREES:
            settings.append(LIGHTGBM)
        elif self.system == RIDGE:
            settings.append(RIDGE_STRENGTHS)
        else:
            losses = [name for name, _, _ in MEMBERS] if self.system == BEST else [self.system]
            settings += [asdict(self.recipe), MEMBERS if self.system == BEST else ()]
            settings += [repr(adapted(loss, 1)) for loss in losses]
        return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]


def perform(run: Run) -> dict[str, Any]:
    """Train, and measure on the test queries: a record."""
    quiet()
    splits = read(run.fold)
    started = time.process_time()
    if run.system == TREES:
        val, test = run_lightgbm(run.fold, run.seed)
    elif run.system == RIDGE:
        val, test = run_ridge(run.fold)
    elif run.system == BEST:
        val, test = run_best(run.fold, run.recipe, run.seed)
    else:
        val, test = run_network(run.fold, run.system, run.recipe, run.seed)
    return {
        "key": run.key,
        "system": run.system,
        "fold": run.fold.number,
        "seed": run.seed,
        "seconds": round(time.process_time() - started, 2),
        "val": measured(val, splits["val"])[WATCHED],
        "test": measured(test, splits["test"]),
    }


def quiet() -> None:
    """One thread, as many runs may go on side by side, and no advice on each of them."""
    torch.set_num_threads(1)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning|lightgbm")


class Results:
    """Records in a file of JSON lines, by the key of their run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.records: dict[str, dict[str, Any]] = {}
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        # What a run was writing when it was stopped is no record.
        whole, _, torn = text.rpartition("\n")
        for line in whole.splitlines():
            record = json.loads(line)
            self.records[record["key"]] = record
        if torn:
            self.path.write_text(whole + "\n" * bool(whole), encoding="utf-8")

    def add(self, record: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self.records[record["key"]] = record


def performed(runs: Sequence[Run], jobs: int) -> Iterator[dict[str, Any]]:
    """Records of the runs as they are done, from `jobs` processes."""
    if jobs == 1:
        yield from map(perform, runs)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(perform, run) for run in runs]
        try:
            for done in as_completed(waiting):
                yield done.result()
        finally:
            for run in waiting:
                run.cancel()


@contextmanager
def progress(total: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Tells of each record as it comes: a bar on a terminal with rich, else a line."""
    if find_spec("rich") is not None and sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task("", total=total)
            yield lambda record: bar.update(task, advance=1, description=said(record))
        return
    done = iter(range(1, total + 1))
    yield lambda record: print(f"{next(done)}/{total} {said(record)}", file=sys.stderr, flush=True)


def said(record: dict[str, Any]) -> str:
    return (
        f"{record['system']}, fold {record['fold']}, seed {record['seed']}: "
        f"test {WATCHED} {record['test'][WATCHED]:.4f}  ({record['seconds']:.1f} s)"
    )


# The table ------------------------------------------------------------------------------------------------------------


def by_fold(records: Sequence[dict[str, Any]]) -> torch.Tensor:
    """`[fold, metric]`: means over seeds."""
    folds = sorted({record["fold"] for record in records})
    values = [[[r["test"][name] for name in METRICS] for r in records if r["fold"] == fold] for fold in folds]
    return torch.stack([torch.tensor(rows, dtype=torch.float64).mean(0) for rows in values])


def with_error(values: torch.Tensor, signed: bool = False) -> str:
    """Mean and standard error over folds; of one fold there is no error."""
    mean = f"{values.mean():{'+' if signed else ''}.4f}"
    return f"{mean} ± {values.std() / len(values) ** 0.5:.4f}" if len(values) > 1 else mean


def show(title: str, systems: Sequence[str], records: Sequence[dict[str, Any]]) -> None:
    """A row per system, best first."""
    column = METRICS.index(WATCHED)
    tables = {system: by_fold([r for r in records if r["system"] == system]) for system in systems}
    rows = []
    for system in sorted(systems, key=lambda name: -tables[name][:, column].mean()):
        seconds = [record["seconds"] for record in records if record["system"] == system]
        row = [system, *(with_error(values) for values in tables[system].T)]
        if TREES in tables:
            difference = (tables[system] - tables[TREES])[:, column]
            row.append("" if system == TREES else with_error(difference, signed=True))
        rows.append([*row, f"{sum(seconds) / len(seconds):.1f}"])
    versus = [f"{WATCHED} - {TREES}"] * (TREES in tables)
    print_table(title, ["", *METRICS, *versus, "CPU s/run"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of the LETOR files")
    parser.add_argument("--losses", nargs="+", help="'all' (the default), or names of losses")
    parser.add_argument("--best", action="store_true", help="the ensemble, in place of the losses where none are named")
    parser.add_argument("--folds", type=int, nargs="+", help="default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, help="at most, in place of what the recipe says")
    parser.add_argument("--results", default="mq2008.jsonl", help="file of the runs done")
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    args = parser.parse_args()

    losses = args.losses or ([] if args.best else ["all"])
    losses = list_losses() if losses == ["all"] else losses
    if unknown := sorted(set(losses) - set(list_losses())):
        parser.error(f"--losses are 'all' or some of {', '.join(list_losses())}; {', '.join(unknown)} is none of them.")
    name, folds = folds_of(args.data)
    folds = [fold for fold in folds if args.folds is None or fold.number in args.folds]
    if not folds:
        parser.error(f"--folds are numbers of the folds of {name}; {args.folds} has none of them.")
    # A ridge regression has no seed, and the ensemble has its own seeds.
    seeds = dict.fromkeys(losses, args.seeds) | ({TREES: args.seeds} if find_spec("lightgbm") else {})
    seeds |= {RIDGE: args.seeds[:1]} | ({BEST: args.seeds[:1]} if args.best else {})
    recipes = {system: BEST_RECIPE if system == BEST else Recipe() for system in seeds}
    if args.epochs is not None:
        recipes = {system: replace(recipe, epochs=args.epochs) for system, recipe in recipes.items()}
    # Seed by seed, so that what an interrupted command leaves compares all systems.
    runs = [
        Run(system, fold, seed, recipes[system])
        for seed in args.seeds for fold in folds for system, its_seeds in seeds.items() if seed in its_seeds
    ]  # fmt: skip

    results = Results(args.results)
    missing = [run for run in runs if run.key not in results.records]
    print(f"{name}: {len(runs)} runs, {len(runs) - len(missing)} of them in {results.path} already", flush=True)
    with progress(len(missing)) as tell:
        for record in performed(missing, args.jobs):
            results.add(record)
            tell(record)
    print()
    done = [results.records[run.key] for run in runs]
    error = "mean ± standard error over folds" if len(folds) > 1 else "mean over seeds"
    show(f"{name}, test, {error}, seeds {args.seeds}", list(seeds), done)


if __name__ == "__main__":
    main()
