"""The commands data convert and data inspect, and what an inspection counts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
import torch

from lightning_rank import cli
from lightning_rank.data.batches import RankingDataset
from lightning_rank.data.cache import open_cache
from lightning_rank.data.inspection import inspect
from lightning_rank.data.letor import read_letor
from lightning_rank.pytorch_lightning import LetorDataModule

TEXT = """2 qid:a 1:0.5 2:7 3:1
0 qid:a 1:0.25 2:7 3:2
1 qid:b 1:0.5 2:7 3:3
1 qid:b 1:1 2:7 3:4
0 qid:c 1:2 2:7 3:5
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.txt").write_text(TEXT)
    return tmp_path


def run(command: str, capsys, status: int = 0) -> tuple[str, str]:
    assert cli.main(["data", *command.split()]) == status
    said = capsys.readouterr()
    return said.out, said.err


def test_the_folder_of_converted_data_sets_is_told_from_one_of_them(folder, capsys):
    (folder / "other.txt").write_text(TEXT.replace("qid:a", "qid:z"))
    made = {name: run(f"convert {name} --cache made", capsys)[0].splitlines()[0] for name in ("train.txt", "other.txt")}
    assert run(f"inspect {made['train.txt']}", capsys)[0].startswith("queries   3")
    told = run("inspect made", capsys, status=1)[1]
    assert re.search(
        r"got the directory '\S+/made', into which data sets were converted\. Give the one that is meant: ", told
    )
    for name, path in made.items():
        assert f"'{path}' (of {name})" in told
    with pytest.raises(FileNotFoundError, match=rf"'{made['other.txt']}' \(of other\.txt\)"):
        LetorDataModule(train="made").setup("fit")
    (folder / made["other.txt"] / "manifest.json").write_text("{")
    told = run("inspect made", capsys, status=1)[1]
    assert made["train.txt"] in told
    assert made["other.txt"] not in told, "damaged"


def test_convert_says_where_it_lies_and_what_it_is(folder, capsys):
    out, err = run("convert train.txt --cache cache", capsys)
    path, facts = out.splitlines()
    assert facts == "3 queries, 5 items, 3 features"
    assert err == "", "no bar where there is no terminal"
    assert torch.equal(open_cache(path).features, read_letor("train.txt").features)
    facts = json.loads(run("convert train.txt --cache cache --format json", capsys)[0])
    assert facts == {"folder": path, "queries": 3, "items": 5, "features": 3}
    half = run("convert train.txt --cache cache --dtype float16 --num-features 4", capsys)[0].splitlines()[0]
    assert open_cache(half).features.dtype == torch.float16
    assert open_cache(half).num_features == 4


def test_inspect_counts_the_same_of_files_and_of_what_was_converted(folder, capsys):
    text = run("inspect train.txt", capsys)[0]
    converted = run("convert train.txt --cache cache", capsys)[0].splitlines()[0]
    assert run(f"inspect {converted}", capsys)[0] == text
    assert run("inspect train.txt --cache cache", capsys)[0] == text
    assert "queries   3\nitems     5\nfeatures  3\nlengths   mean 1.66667, min 1, " in text
    assert re.search(r"^grades +0 +2 +40\.0%  █+$", text, flags=re.MULTILINE)
    assert "constant  1: 2 (7)" in text
    assert "no signal 2 queries (66.7%): 1 without a grade above 0, 2 of one grade" in text
    facts = json.loads(run("inspect train.txt --format json", capsys)[0])
    assert facts["grades"] == {"0": 2, "1": 2, "2": 1}
    run("inspect train.txt --format json --output facts.json", capsys)
    assert json.loads((folder / "facts.json").read_text()) == facts
    assert "facts.json" in run("inspect train.txt --output facts.json", capsys, status=1)[1]


def test_tables_by_the_names_of_their_columns(folder, capsys):
    frame = pl.DataFrame({"q": ["a", "a", "b"], "y": [1, 0, 2], "u": [1.0, None, 3.0], "v": [5, 5, 5], "w": [1, 2, 3]})
    frame.write_csv("t.csv")
    facts = json.loads(run("inspect t.csv --query q --grade y --features u,v --format json", capsys)[0])
    assert facts["nan_features"] == {"u": 1}
    assert facts["constant_features"] == {"v": 5}
    assert facts["features"] == 2
    assert "--query COLUMN on the command line" in run("inspect t.csv", capsys, status=1)[1]


def test_bad_input_is_one_line(folder, capsys):
    (folder / "bad.txt").write_text("1 qid:1 1:x\n")
    assert run("convert bad.txt --cache cache", capsys, status=1)[1].startswith("lightning-rank: error: bad.txt:1: ")
    converted = run("convert train.txt --cache cache", capsys)[0].splitlines()[0]
    content = bytearray((folder / converted / "features.npy").read_bytes())
    content[-1] ^= 1
    (folder / converted / "features.npy").write_bytes(content)
    said = run(f"inspect {converted}", capsys, status=1)[1]
    assert "features.npy has changed" in said
    assert len(said.splitlines()) == 1
    said = run("convert train.txt --cache cache", capsys)[1]
    assert said.startswith("lightning-rank: warning: ")
    assert "It is converted again." in said


def test_an_inspection_agrees_with_numpy(monkeypatch):
    monkeypatch.setattr("lightning_rank.data.inspection._ITEMS_AT_A_TIME", 7)
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 12, 60)
    features = rng.normal(size=(lengths.sum(), 4)).astype("f4")
    features[3:20, 1] = np.nan
    features[:, 2] = np.nan
    features[:, 3] = np.where(rng.random(len(features)) < 0.5, np.nan, 2.5)
    grades = rng.integers(-1, 3, lengths.sum()).astype("f4")
    offsets = np.concatenate([[0], lengths.cumsum()])
    data = RankingDataset(
        torch.from_numpy(features), torch.from_numpy(grades), torch.from_numpy(offsets), [str(i) for i in range(60)]
    )
    found = inspect(data)
    lists = [grades[a:b] for a, b in pairwise(offsets)]
    assert found.grades == {float(grade): int((grades == grade).sum()) for grade in np.unique(grades)}
    assert found.nan_features == {str(i + 1): n for i, n in enumerate(np.isnan(features).sum(0).tolist()) if n}
    assert found.constant_features == {"4": 2.5}
    assert found.lengths["mean"] == pytest.approx(lengths.mean())
    assert (found.lengths["min"], found.lengths["max"]) == (lengths.min(), lengths.max())
    assert found.queries_without_relevant == sum(not (grade > 0).any() for grade in lists)
    assert found.queries_of_one_grade == sum(len(set(grade)) == 1 for grade in lists)
    assert found.queries_without_signal == sum(not (grade > 0).any() or len(set(grade)) == 1 for grade in lists)
    half = inspect(replace(data, features=data.features.half()), feature_names=["a", "b", "c", "d"])
    assert half.constant_features == {"d": 2.5}


def test_an_empty_data_set_is_counted_too():
    data = RankingDataset(torch.zeros(0, 2), torch.zeros(0), torch.zeros(1, dtype=torch.int64), [])
    assert inspect(data).queries == 0
    assert "queries   0" in inspect(data).text()
