"""Metrics against other tools and against one sort, in one run: time, memory, growth.

    python examples/benchmarks/metrics.py                     # tools that are not installed are left out
    pip install ranx pytrec-eval-terrier                      # those that are compared beside torchmetrics and scikit-learn

Each side gets its own input, made beforehand and not timed: padded rows or flat items with offsets here, flat items with query
ids for torchmetrics, dictionaries for pytrec_eval, its own objects for ranx, rows for scikit-learn. Scores are positive and
untied and grades binary, so that all mean the same and every value is compared; ties by average are on all the same. Times are
medians of one update and compute. The floor is one ``torch.sort`` of the same scores (flat: of int64 keys), or ``torch.topk``
of the largest cutoff where all metrics have one.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib.util import find_spec

import torch
import torchmetrics.retrieval as tm
from measuring import extra_bytes, printed_by, seconds
from torch import Tensor
from torchmetrics import MetricCollection

from lightning_rank import RankingMetrics
from lightning_rank.report.tables import print_table

Values = dict[str, float]
NAMES = ("ndcg", "dcg", "map", "mrr", "precision", "recall", "hit_rate", "f1", "err", "rbp")
FIFTY = [f"{name}@{k}" for name in NAMES for k in (1, 3, 5, 10, 20)]
SETS = {"ndcg@10": ["ndcg@10"], "map": ["map"], "mrr": ["mrr"], "all three": ["ndcg@10", "map", "mrr"], "50 names": FIFTY}
SHAPES = ("64x100", "2000x100", "8000x40", "100x100000", "skewed")


class Batch:
    """Queries in every layout that a tool asks for."""

    def __init__(self, shape: str) -> None:
        generator = torch.Generator().manual_seed(0)
        if shape == "skewed":
            lengths = torch.empty(20_000).log_normal_(3.8, 1.0, generator=generator).long().clamp(1, 2000)
        else:
            queries, items = map(int, shape.split("x"))
            lengths = torch.full((queries,), items)
        self.offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
        n = int(self.offsets[-1])
        # Distinct in float32, also within 100,000 items.
        self.preds = (
            (torch.randperm(n, generator=generator) + 1).float() / n if n < 2**24 else torch.rand(n, generator=generator)
        )
        self.target = (torch.rand(n, generator=generator) < 0.1).long()
        self.target[self.offsets[:-1]] = 1  # tools differ in queries without a relevant item
        self.ids = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        self.rows = None if shape == "skewed" else (len(lengths), int(lengths[0]))

    def layout(self) -> tuple[tuple[Tensor, Tensor], dict[str, Tensor]]:
        if self.rows is None:
            return (self.preds, self.target), {"offsets": self.offsets}
        return (self.preds.view(self.rows), self.target.view(self.rows)), {}

    @cached_property
    def dictionaries(self) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
        """Judgements and run, by query and document."""
        lengths = self.offsets.diff().tolist()
        names = [f"d{i}" for i in range(max(lengths))]
        qrels, run = (
            {f"q{q}": dict(zip(names, row.tolist(), strict=False)) for q, row in enumerate(values.split(lengths))}
            for values in (self.target, self.preds)
        )
        return qrels, run


def here(batch: Batch, names: list[str]) -> Callable[[], Values]:
    metrics = RankingMetrics(names, convention="torchmetrics", **({"max_grade": 1} if names is FIFTY else {}))
    data, layout = batch.layout()

    def run() -> Values:
        metrics.reset()
        metrics.update(*data, **layout)
        return {name: value.item() for name, value in metrics.compute().items()}

    return run


def torchmetrics(batch: Batch, names: list[str]) -> Callable[[], Values]:
    classes = {"ndcg@10": tm.RetrievalNormalizedDCG(top_k=10), "map": tm.RetrievalMAP(), "mrr": tm.RetrievalMRR()}
    collection = MetricCollection({name: classes[name] for name in names})

    def run() -> Values:
        collection.reset()
        collection.update(batch.preds, batch.target, indexes=batch.ids)
        return {name: value.item() for name, value in collection.compute().items()}

    return run


def ranx(batch: Batch, names: list[str]) -> Callable[[], Values]:
    from ranx import Qrels, Run, evaluate

    if not hasattr(batch, "ranx"):
        batch.ranx = tuple(make(rows) for make, rows in zip((Qrels, Run), batch.dictionaries, strict=True))

    def score() -> Values:
        values = evaluate(*batch.ranx, names)
        return dict(values) if isinstance(values, dict) else {names[0]: float(values)}

    return score


def pytrec_eval(batch: Batch, names: list[str]) -> Callable[[], Values]:
    import pytrec_eval as tool

    measures = {"ndcg@10": "ndcg_cut_10", "map": "map", "mrr": "recip_rank"}
    qrels, run = batch.dictionaries
    evaluator = tool.RelevanceEvaluator(qrels, {measures[name].replace("cut_", "cut.") for name in names})

    def score() -> Values:
        rows = evaluator.evaluate(run).values()
        return {name: statistics.fmean(row[measures[name]] for row in rows) for name in names}

    return score


def sklearn(batch: Batch, names: list[str]) -> Callable[[], Values]:
    from sklearn.metrics import label_ranking_average_precision_score, ndcg_score

    if batch.rows is None or set(names) - {"ndcg@10", "map"}:
        raise LookupError("scikit-learn has no MRR, and takes rows alone")
    preds, target = (values.view(batch.rows).numpy() for values in (batch.preds, batch.target))
    functions = {
        "ndcg@10": lambda: ndcg_score(target, preds, k=10),
        "map": lambda: label_ranking_average_precision_score(target, preds),
    }
    return lambda: {name: float(functions[name]()) for name in names}


PEERS = {"torchmetrics": torchmetrics, "ranx": ranx, "pytrec_eval": pytrec_eval, "sklearn": sklearn}


def floor(batch: Batch, names: list[str]) -> Callable[[], object]:
    if batch.rows is None:
        keys = torch.randint(0, 2**62, batch.preds.shape)
        return lambda: torch.sort(keys)
    preds, cutoffs = batch.preds.view(batch.rows), [int(name.partition("@")[2] or 0) for name in names]
    if min(cutoffs) == 0:
        return lambda: torch.sort(preds, descending=True)
    return lambda: torch.topk(preds, max(cutoffs))


def compare(shape: str, peers: list[str]) -> Iterator[list[str]]:
    batch = Batch(shape)
    for label, names in SETS.items():
        ours = here(batch, names)
        values, own = ours(), seconds(ours)
        cells = []
        for peer in peers:
            try:
                if names is FIFTY:
                    raise LookupError("not all names there")
                theirs = PEERS[peer](batch, names)
            except LookupError:
                cells.append("")
                continue
            print(f"{shape}, {label}: {peer}", file=sys.stderr)
            for name, value in theirs().items():
                if abs(value - values[name]) > 1e-5:
                    raise SystemExit(f"{name} differs on {shape}: {values[name]} here, {value} in {peer}.")
            cells.append(f"{seconds(theirs) / own:.0f}")
        yield [shape, label, f"{own * 1e3:.1f} ms", *cells, f"{own / seconds(floor(batch, names)):.1f}"]


def peak_memory(shape: str, names: list[str]) -> float:
    """Extra memory of an update at its peak, in sizes of the input. Runs in a process of its own, see ``main``."""
    batch = Batch(shape)
    data, layout = batch.layout()
    metrics = RankingMetrics(names)
    metrics.update(torch.rand(2, 3), torch.ones(2, 3))
    given = sum(tensor.nbytes for tensor in (*data, *layout.values()))
    return extra_bytes(lambda: metrics.update(*data, **layout)) / given


def growth(length: int | None) -> Iterator[list[str]]:
    """Time over n log n, as a multiple of that at the smallest n."""
    first: dict[str, float] = {}
    for n in (10**5, 10**6, 10**7):
        items = n if length is None else length
        preds = torch.randn(n // items, items)
        target = torch.randint(0, 4, preds.shape)
        cells = []
        sets = {label: RankingMetrics(SETS[label]) for label in ("ndcg@10", "all three")}
        for label, metrics in {**sets, "sort": None}.items():
            took = seconds(lambda m=metrics, p=preds, t=target: m.update(p, t) if m else torch.sort(p))
            per = took / (n * math.log2(n))
            cells.append(f"{took * 1e3:.1f} ms ({per / first.setdefault(label, per):.1f})")
        yield ["one list" if length is None else f"lists of {length}", f"{n:,}", *cells]


def state_bytes(queries: int) -> int:
    metrics = RankingMetrics(SETS["all three"])
    for _ in range(10):
        metrics.update(torch.rand(queries // 10, 10), torch.ones(queries // 10, 10))
    return sum(state.nbytes for state in metrics.metric_state.values() if isinstance(state, Tensor))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, help="queries x items, or 'skewed'")
    parser.add_argument("--parts", nargs="+", default=["time", "memory", "growth"], choices=["time", "memory", "growth"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peak", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.peak:
        print(peak_memory(args.peak[0], args.peak[1:]))
        return
    about = f"threads: {args.threads}, torch {torch.__version__}"
    if "time" in args.parts:
        peers = [peer for peer in PEERS if find_spec(peer)]
        rows = [row for shape in args.shapes for row in compare(shape, peers)]
        header = ["shape", "metrics", "here", *(f"x faster than {peer}" for peer in peers), "x the floor"]
        print_table(f"Time of update and compute, {about}", header, rows)
    if "memory" in args.parts and sys.platform == "linux":
        rows = []
        for shape in (*args.shapes, *(["1x5000000"] if tuple(args.shapes) == SHAPES else [])):
            cells = []
            for label in ("ndcg@10", "all three", "50 names"):
                printed = printed_by(__file__, "--peak", shape, *SETS[label])
                cells.append("" if printed is None else f"{float(printed):.1f}")
            rows.append([shape, *cells])
        print_table(
            "Extra memory of an update at its peak, in sizes of its input",
            ["shape", "ndcg@10", "all three", "50 names"],
            rows,
        )
        print(f"State after a million queries: {state_bytes(10**6)} bytes\n")
    if "growth" in args.parts:
        rows = [*growth(100), *growth(None)]
        print_table(
            "Time of an update (and over n log n, relative)", ["lists", "items", "ndcg@10", "all three", "one sort"], rows
        )


if __name__ == "__main__":
    main()
