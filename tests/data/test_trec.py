from __future__ import annotations

import pytest
import torch

from lightning_rank.data.batches import RankingDataset
from lightning_rank.data.trec import write_run, write_scores


def dataset(**options: object) -> RankingDataset:
    return RankingDataset(torch.zeros(5, 1), torch.zeros(5), torch.tensor([0, 2, 2, 5]), ["a", "none", "b"], **options)


SCORES = torch.tensor([0.5, 1.25, -3.0, 7.0, -3.0])


def test_run_file(tmp_path):
    path = tmp_path / "deep" / "run.txt"
    write_run(path, dataset(document_ids=["d0", "d1", "", "d3", "d4"]), SCORES, tag="me")
    assert path.read_text().splitlines() == [
        "a Q0 d1 1 1.25 me",
        "a Q0 d0 2 0.5 me",
        "b Q0 d3 1 7 me",
        "b Q0 2 2 -3 me",
        "b Q0 d4 3 -3 me",
    ]


def test_items_without_a_score_are_left_out_and_without_ids_numbered_by_source(tmp_path):
    path = tmp_path / "run.txt"
    rows = torch.tensor([4, 3, 2, 1, 0])
    write_run(path, dataset(rows=rows), torch.tensor([0.0, torch.nan, 1.0, torch.nan, 2.0]))
    assert [line.split()[:4] for line in path.read_text().splitlines()] == [
        ["a", "Q0", "4", "1"],
        ["b", "Q0", "0", "1"],
        ["b", "Q0", "2", "2"],
    ]


def test_scores_come_in_the_order_of_the_source(tmp_path):
    path = tmp_path / "scores.txt"
    write_scores(path, dataset(rows=torch.tensor([3, 0, 4, 1, 2])), SCORES)
    assert [float(line) for line in path.read_text().split()] == [1.25, 7.0, -3.0, 0.5, -3.0]


def test_scores_read_back_exactly(tmp_path):
    scores = torch.randn(5) * 1e-3
    write_scores(tmp_path / "scores.txt", dataset(), scores)
    read = torch.tensor([float(line) for line in (tmp_path / "scores.txt").read_text().split()])
    assert torch.equal(read, scores)


def test_a_failed_write_leaves_nothing_behind(tmp_path):
    path = tmp_path / "run.txt"
    path.write_text("before")
    with pytest.raises(IndexError):
        write_run(path, dataset(document_ids=["too", "few"]), SCORES)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
