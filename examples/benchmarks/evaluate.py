"""A large run in a file against judgements: whole processes against other tools, in one run: time and peak memory.

    python examples/benchmarks/evaluate.py                    # 7,000 queries x 1,000 documents, 7 million lines
    pip install ranx pytrec-eval-terrier                      # the tools that are compared; one not installed is left out

Every side is one process that reads the two TREC files and prints four means, which must agree. Ids look like those of MS MARCO,
scores are distinct in float32. Time and memory are those of the process as the system counts them; each runs once more before, so
that files are in the cache and ranx has compiled. Below: what reading and measuring take in a process of ours, and a paired
randomization test with 100,000 resamples.

On 2026-12-01, on two cores that were free for the time (AVX-512, no GPU), in seconds of the clock and in MB: ours 0.78 and 364,
pytrec_eval 4.4 and 1231, ranx 14.8 and 2480; on one core (``taskset -c 0``) 0.94, 4.5 and 15.4 s. Measures took 0.07 of reading.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl
from measuring import Usage, process

from lightning_rank.report.tables import print_table

OURS = """
import sys
from lightning_rank.cli import main
main(["evaluate", "--qrels", sys.argv[1], "--run", sys.argv[2], "--format", "trec_eval",
      "--metrics", "ndcg_cut_10", "map", "recip_rank", "recall_100"])
"""
PYTREC_EVAL = """
import sys, pytrec_eval
with open(sys.argv[1]) as file:
    qrels = pytrec_eval.parse_qrel(file)
with open(sys.argv[2]) as file:
    run = pytrec_eval.parse_run(file)
rows = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "map", "recip_rank", "recall.100"}).evaluate(run).values()
for name in ("ndcg_cut_10", "map", "recip_rank", "recall_100"):
    print(name, "all", sum(row[name] for row in rows) / len(rows))
"""
RANX = """
import sys
from ranx import Qrels, Run, evaluate
qrels, run = Qrels.from_file(sys.argv[1], kind="trec"), Run.from_file(sys.argv[2], kind="trec")
for name, value in evaluate(qrels, run, ["ndcg@10", "map", "mrr", "recall@100"]).items():
    print(name, "all", value)
"""
PARTS = """
import sys, time
import lightning_rank.offline.evaluate
from lightning_rank.data.tables import read_judgements, read_run
start = time.process_time()
judgements, run = read_judgements(sys.argv[1]), read_run(sys.argv[2])
read = time.process_time()
lightning_rank.offline.evaluate.evaluate(judgements, run, "ndcg_cut_10 map recip_rank recall_100", convention="trec_eval")
print(read - start, time.process_time() - read)
"""
PAIRED = """
import sys, time
import numpy as np
from lightning_rank.stats import paired
a, b = np.random.default_rng(0).random((2, int(sys.argv[1])))
paired(a, b, test="randomization", resamples=10)
start = time.process_time()
paired(a, b, test="randomization", resamples=100_000)
print(time.process_time() - start)
"""
TOOLS = {"pytrec_eval": PYTREC_EVAL, "ranx": RANX}


def write_files(folder: Path, queries: int, documents: int) -> None:
    """Judgements of one to three documents a query, most of them retrieved, and a run by rank."""
    generator = np.random.default_rng(0)
    ids = generator.choice(1_100_000, queries, replace=False)
    pids = generator.integers(0, 8_841_823, (queries, documents * 2))
    # No document twice in a query: of those that are, the later ones are moved out of the way.
    pids = np.sort(pids, axis=1)
    pids += np.cumsum(np.diff(pids, axis=1, prepend=-1) == 0, axis=1)
    pids = generator.permuted(pids, axis=1)[:, :documents]
    scores = 40 - np.arange(documents) * 0.02 + generator.random((queries, 1))
    columns = [
        pl.Series("query", np.repeat(ids, documents)), pl.Series("document", pids.ravel()),
        pl.Series("rank", np.tile(np.arange(1, documents + 1), queries)), pl.Series("score", scores.ravel().round(4)),
    ]  # fmt: skip
    table = pl.DataFrame(columns).select("query", pl.lit("Q0"), "document", "rank", "score", pl.lit("run").alias("tag"))
    table.write_csv(folder / "run.txt", include_header=False, separator=" ")
    lines = []
    for query, row in zip(ids.tolist(), pids, strict=True):
        ranks = np.unique(generator.geometric(0.02, generator.integers(1, 4)).clip(max=documents)) - 1
        lines += [f"{query} 0 {document} 1\n" for document in row[ranks].tolist()]
        lines += [f"{query} 0 99999999 1\n"] if generator.random() < 0.2 else []
    (folder / "qrels.txt").write_text("".join(lines))


def means(out: str) -> list[float]:
    return [float(line.split()[2]) for line in out.splitlines() if line.split()[0] != "runid"]


def row(name: str, usage: Usage, ours: Usage) -> list[str]:
    cells = zip(("{:.2f}", "{:.2f}", "{:.0f}"), usage, ours, strict=True)
    return [name, *(text for form, value, own in cells for text in (form.format(value), f"{value / own:.1f}"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=7000)
    parser.add_argument("--documents", type=int, default=1000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        # By a process of its own: the peak of a process begins at that of the one which started it.
        writing = multiprocessing.get_context("spawn").Process(
            target=write_files, args=(Path(name), args.queries, args.documents)
        )
        writing.start()
        writing.join()
        files = (Path(name, "qrels.txt"), Path(name, "run.txt"))
        size = files[1].stat().st_size / 1e6
        process(OURS, *files)
        out, ours = process(OURS, *files)
        values = means(out)
        rows = [row("lightning-rank evaluate", ours, ours)]
        for tool, code in TOOLS.items():
            if find_spec(tool) is None:
                continue
            process(code, *files)
            out, theirs = process(code, *files)
            if np.abs(np.subtract(means(out), values)).max() > 6e-5:
                raise SystemExit(f"Values differ: {values} here, {means(out)} in {tool}.")
            rows.append(row(tool, theirs, ours))
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        title = f"{args.queries:,} queries x {args.documents:,} documents, {size:.0f} MB of text, {cores} cores"
        print_table(title, ["process", "seconds", "times ours", "CPU seconds", "times ours", "peak MB", "times ours"], rows)
        read, measured = map(float, process(PARTS, *files)[0].split())
    print(f"CPU time: reading {read:.2f} s, measures {measured:.3f} s: {measured / read:.3f} of reading")
    seconds = float(process(PAIRED, str(args.queries))[0])
    print(f"paired randomization, 100,000 resamples of {args.queries:,} queries: {seconds:.2f} s of CPU time")


if __name__ == "__main__":
    main()
