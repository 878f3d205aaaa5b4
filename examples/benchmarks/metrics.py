"""NDCG@10, MAP and MRR together, against torchmetrics, in one run: time of update and compute, and size of the state.

    python examples/benchmarks/metrics.py

Each side gets its own input layout, made beforehand: padded rows here, flat items with query ids there. Scores are positive
and untied and grades binary, so that both mean the same and the values can be compared. Medians of several runs; the floor is
one ``torch.sort`` of the same scores.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torchmetrics.retrieval as tm
from torch import Tensor
from torchmetrics import MetricCollection

from lightning_rank import RankingMetrics
from lightning_rank.report.tables import print_table


def seconds(run: Callable[[], object], repeats: int) -> float:
    """Median time, after one run to warm up."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def state_bytes(metric: torch.nn.Module) -> int:
    """Bytes of all tensors in the state of a metric, or of a collection's metrics."""
    metrics = metric.values() if isinstance(metric, MetricCollection) else [metric]
    tensors = {}
    for one in metrics:
        for state in one.metric_state.values():
            tensors |= {id(t): t.nbytes for t in (state if isinstance(state, list) else [state])}
    return sum(tensors.values())


def compare(queries: int, items: int, repeats: int) -> list[str]:
    generator = torch.Generator().manual_seed(0)
    preds = torch.rand(queries, items, generator=generator)
    target = (torch.rand(queries, items, generator=generator) < 0.1).long()
    ids = torch.arange(queries)[:, None].expand(queries, items).flatten().clone()
    flat_preds, flat_target = preds.flatten(), target.flatten()

    def ours() -> dict[str, Tensor]:
        metrics.reset()
        metrics.update(preds, target)
        return metrics.compute()

    def theirs() -> dict[str, Tensor]:
        collection.reset()
        collection.update(flat_preds, flat_target, indexes=ids)
        return collection.compute()

    metrics = RankingMetrics(["ndcg@10", "map", "mrr"], convention="torchmetrics")
    collection = MetricCollection(
        {"ndcg@10": tm.RetrievalNormalizedDCG(top_k=10), "map": tm.RetrievalMAP(), "mrr": tm.RetrievalMRR()}
    )
    their_time = seconds(theirs, max(1, repeats // 4))
    our_time = seconds(ours, repeats)
    floor = seconds(lambda: torch.sort(preds, descending=True), repeats)
    mine, others = ours(), theirs()
    for name, value in mine.items():
        if abs(value - others[name]) > 1e-5:
            raise SystemExit(f"{name} differs: {value.item()} here, {others[name].item()} in torchmetrics.")
    return [
        f"{queries} x {items}",
        f"{their_time * 1e3:.0f} ms",
        f"{our_time * 1e3:.1f} ms",
        f"{their_time / our_time:.0f}",
        f"{our_time / floor:.1f}",
        f"{state_bytes(collection):,}",
        f"{state_bytes(metrics):,}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["2000x100", "8000x40"], help="queries x items")
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    rows = [compare(*map(int, shape.split("x")), args.repeats) for shape in args.shapes]
    header = ["shape", "torchmetrics", "here", "times faster", "times one sort", "state bytes there", "state bytes here"]
    print_table(f"NDCG@10 + MAP + MRR, {torch.get_num_threads()} threads, torch {torch.__version__}", header, rows)


if __name__ == "__main__":
    sys.exit(main())
