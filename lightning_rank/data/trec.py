"""Files that the TREC tools read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from lightning_rank.data.batches import RankingDataset


def write_run(path: str | Path, dataset: RankingDataset, scores: Tensor, *, tag: str = "lightning_rank") -> None:
    """Write a run: ``query Q0 document rank score tag``, the items of each query from the highest score down.

    An item without a document id is named by its place in the source, counted from 0.

    Args:
        path: the file; replaced whole once everything is written.
        dataset: the queries and their items.
        scores: ``[item]`` in the order of the dataset; items with NaN are left out.
        tag: name of the run.

    Source: the results format of trec_eval.
    """
    _write_lines(path, _run_lines(dataset, scores.double(), tag))


def write_scores(path: str | Path, dataset: RankingDataset, scores: Tensor) -> None:
    """Write one score per line, in the order of the source's items: the format of LETOR's evaluation tools.

    Args:
        path: the file; replaced whole once everything is written.
        dataset: the queries and their items.
        scores: ``[item]`` in the order of the dataset.
    """
    if dataset.rows is not None:
        in_source = torch.empty_like(scores)
        in_source[dataset.rows] = scores
        scores = in_source
    _write_lines(path, (f"{score:.9g}\n" for score in scores.tolist()))


def _run_lines(dataset: RankingDataset, scores: Tensor, tag: str) -> Iterable[str]:
    bounds = dataset.offsets.tolist()
    for query, (start, end) in enumerate(pairwise(bounds)):
        order = torch.argsort(scores[start:end].neg(), stable=True)
        kept = order[~scores[start:end][order].isnan()] + start
        for rank, (item, score) in enumerate(zip(kept.tolist(), scores[kept].tolist(), strict=True), 1):
            document = dataset.document_ids[item] if dataset.document_ids is not None else ""
            document = document or str(item if dataset.rows is None else int(dataset.rows[item]))
            yield f"{dataset.query_ids[query]} Q0 {document} {rank} {score:.9g} {tag}\n"


def _write_lines(path: str | Path, lines: Iterable[str]) -> None:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            file.writelines(lines)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
