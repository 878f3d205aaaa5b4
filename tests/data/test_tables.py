"""Runs and judgements from tables of every kind, from LETOR data with scores, and ratings."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from lightning_rank.data.batches import RankingDataset
from lightning_rank.data.ratings import Ratings, read_ratings
from lightning_rank.data.runs import Judgements, Run
from lightning_rank.data.tables import lists_of, read_judgements, read_run, read_scores, write_lists, write_table
from lightning_rank.data.trec import write_run, write_scores

LISTS = {"007": {"d 1": 0.5, "d,2": 2.0}, "q2": {'"d3"': -1.0, "8": 1e-30}}


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.parquet", "x.jsonl", "x.csv.gz", "x.JSONL.gz", "x.parquet.gz"])
@pytest.mark.parametrize(("cls", "reader"), [(Run, read_run), (Judgements, read_judgements)])
def test_what_is_written_reads_back(cls, reader, name, tmp_path):
    write_lists(tmp_path / name, cls.from_dict(LISTS))
    assert reader(tmp_path / name).to_dict() == LISTS
    with pytest.raises(FileExistsError, match=r"exists"):
        write_lists(tmp_path / name, cls.from_dict(LISTS), overwrite=False)


def test_trec_files_are_told_by_their_columns(tmp_path):
    lists = {"q": {"a": 2.0, "b": 1.0}}
    for name in ("run.txt", "run.tsv", "run"):
        write_lists(tmp_path / name, Run.from_dict(lists), form="trec")
        assert read_run(tmp_path / name).to_dict() == lists
        write_lists(tmp_path / name, Judgements.from_dict(lists), form="trec")
        assert read_judgements(tmp_path / name).to_dict() == lists
    run = read_run(write(tmp_path / "run.tsv", "q\ta\t1\nq\tb\t2\n"))
    assert run.to_dict() == {"q": {"a": -1.0, "b": -2.0}}
    assert run.name == "run.tsv"
    assert read_run(tmp_path / "run.tsv", name="me").name == "me"
    assert read_run(tmp_path / "run.tsv", form="msmarco").to_dict() == run.to_dict()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.csv", "Query_ID,other,docid,Score\n1,x,07,0.5\n1,y,8, 1 \n"),
        ("x.tsv", "docno\tqid\tsim\textra\n07\t1\t0.5\t\n8\t1\t1e0\t\n"),
        ("x.jsonl", '{"user": 1, "item": "07", "score": 0.5, "z": []}\n{"user": "1", "item": 8, "score": 1, "z": [2]}\n'),
        ("x.csv", "qid,pid,rank,score\n1,07,9,0.5\n1,8,7,1\n"),
    ],
)
def test_columns_are_found_by_their_usual_names(name, text, tmp_path):
    assert read_run(write(tmp_path / name, text)).to_dict() == {"1": {"07": 0.5, "8": 1.0}}


def test_columns_by_name_and_ranks_for_scores(tmp_path):
    path = write(tmp_path / "x.csv", "a,b,c,score\nq,d,1,0.1\nq,e,2,0.2\n")
    assert read_run(path, columns={"query": "a", "document": "b", "rank": "c"}).to_dict() == {"q": {"d": -1.0, "e": -2.0}}
    assert read_run(path, columns={"query": "a", "document": "b"}).to_dict() == {"q": {"d": 0.1, "e": 0.2}}
    assert read_judgements(path, columns={"query": "a", "document": "b", "grade": "c"}).to_dict() == {"q": {"d": 1, "e": 2}}
    path = write(tmp_path / "y.csv", "qid,docid,rank\nq,d,1\n")
    assert read_run(path).to_dict() == {"q": {"d": -1.0}}


def test_beir_judgements(tmp_path):
    path = write(tmp_path / "test.tsv", "query-id\tcorpus-id\tscore\n1\t31715818\t1\n3\t14717500\t0\n")
    assert read_judgements(path).to_dict() == {"1": {"31715818": 1}, "3": {"14717500": 0}}


def test_parquet_of_whole_numbers_categories_and_booleans(tmp_path):
    frame = pl.DataFrame(
        {"qid": [1, 2], "doc_id": pl.Series(["a", "b"], dtype=pl.Categorical), "relevance": [True, False], "x": [1, 2]}
    )
    frame.write_parquet(tmp_path / "q.parquet")
    assert read_judgements(tmp_path / "q.parquet").to_dict() == {"1": {"a": 1.0}, "2": {"b": 0.0}}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("x.csv", "qid,docid,score\n1,a,1\n1,b,high\n", r"x\.csv:3: the column score must be a number, got 'high'"),
        ("x.csv", "qid,docid,score\n1,a,nan\n", r"x\.csv:2: the column score must be a number, got 'nan'"),
        ("x.csv", "qid,docid,score\n1,a\n", r"x\.csv:2: the column score must be a number, got None"),
        ("x.csv", "qid,docid,score\n1,a,1\n,b,2\n", r"x\.csv: The column qid lacks an id in 1 rows, first in row 2"),
        ("x.csv", "qid,docid,score\n", r"x\.csv: there is no row in it"),
        ("x.csv", "", r"x\.csv: cannot be read as csv"),
        ("x.csv", "qid\tdocid\tscore\n1\ta\t1\n", r"x\.csv:1: .*separated by commas, but the header has tabs"),
        ("x.csv", "qid;docid;score\n1;a;1\n", r"the header has semicolons"),
        ("x.csv", "topic,text,score\n1,a,1\n", r"no column is the document by its name; there is 'topic', 'text', 'score'"),
        ("x.csv", "qid,docid,text\n1,a,1\n", r"no column is the score by its name.* or --run-columns score=\.\.\."),
        ("x.csv", "qid,docid,score\n1,a,1,5\n", r"x\.csv: cannot be read as csv"),
        ("x.jsonl", '{"qid": "1", "docid": "a", "score": 1}\n{"qid": "1", "docid": "b"}\n', r"x\.jsonl:2: .*got None"),
        ("x.jsonl", '{"qid": "1", "docid": "a", "score": "high"}\n', r"x\.jsonl"),
        ("x.jsonl", '{"qid": "1", "docid": "a", "score": 1}\n{"qid": \n', r"x\.jsonl: cannot be read as jsonl"),
        ("x.jsonl", "", r"x\.jsonl"),
        ("x.parquet", "no parquet", r"x\.parquet: cannot be read as parquet"),
    ],
)
def test_bad_tables(name, text, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        read_run(write(tmp_path / name, text))


def test_bad_columns_and_kinds(tmp_path):
    path = write(tmp_path / "x.csv", "qid,docid,score\n1,a,1\n")
    with pytest.raises(ValueError, match=r"there is no column 'id'; there is qid, docid, score"):
        read_run(path, columns={"query": "id"})
    with pytest.raises(ValueError, match="names the query, the document and the score, got grade"):
        read_run(path, columns={"grade": "score"})
    with pytest.raises(ValueError, match="one of trec, msmarco, csv, tsv, parquet, jsonl, letor, scores, got 'xls'"):
        read_run(path, form="xls")
    with pytest.raises(FileNotFoundError, match="no file at"):
        read_run(tmp_path / "none.csv")
    frame = pl.DataFrame({"qid": [1.0], "docid": ["a"], "score": [1]})
    frame.write_parquet(tmp_path / "x.parquet")
    with pytest.raises(
        ValueError, match=r"x\.parquet: The ids of the column qid must be text or whole numbers, got Float64"
    ):
        read_run(tmp_path / "x.parquet")
    pl.DataFrame({"qid": ["1"], "docid": ["a"], "score": [[1]]}).write_parquet(tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="the column score must hold numbers, got List"):
        read_run(tmp_path / "x.parquet")


def test_a_repeated_document_in_a_table(tmp_path):
    path = write(tmp_path / "x.csv", "qid,docid,score\n1,a,1\n1,a,3\n")
    with pytest.warns(UserWarning, match=r"x\.csv: 1 repeated document"):
        assert read_run(path).to_dict() == {"1": {"a": 3.0}}
    with pytest.raises(ValueError, match=r"x\.csv: 1 repeated document"):
        read_run(path, strict=True)


def test_a_table_needs_an_ending(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.csv, \.tsv, \.parquet or \.jsonl"):
        write_table(tmp_path / "x.xls", pl.DataFrame({"a": [1]}))
    write_table(tmp_path / "x.csv.gz", pl.DataFrame({"a": [1]}))
    assert gzip.decompress((tmp_path / "x.csv.gz").read_bytes()) == b"a\n1\n"
    write_table(tmp_path / "x.jsonl", pl.DataFrame({"a": [1]}))
    assert json.loads((tmp_path / "x.jsonl").read_text()) == {"a": 1}


# LETOR data -----------------------------------------------------------------------------------------------------------


def dataset() -> RankingDataset:
    grades = torch.tensor([2.0, 0.0, 1.0, 0.0, 3.0])
    return RankingDataset(
        torch.zeros(5, 1), grades, torch.tensor([0, 2, 2, 5]), ["a", "none", "b"],
        document_ids=["d0", "", "d2", "d3", "d4"], rows=torch.tensor([3, 0, 4, 1, 2]),
    )  # fmt: skip


def test_grades_of_a_data_set_and_a_file_of_scores(tmp_path):
    scores = torch.tensor([0.5, 1.25, -3.0, 7.0, -3.0])
    write_scores(tmp_path / "scores.txt", dataset(), scores)
    judged, run = lists_of(dataset(), read_scores(tmp_path / "scores.txt"), name="mlp")
    assert judged.to_dict() == {"a": {"d0": 2, "0": 0}, "b": {"d2": 1, "d3": 0, "d4": 3}}
    assert run is not None
    assert run.to_dict() == {"a": {"d0": 0.5, "0": 1.25}, "b": {"d2": -3, "d3": 7, "d4": -3}}
    write_run(tmp_path / "run.txt", dataset(), scores)
    assert read_run(tmp_path / "run.txt").to_dict() == run.to_dict()
    assert lists_of(dataset())[1] is None
    with pytest.raises(ValueError, match="a score for each of the 5 items, got 2"):
        lists_of(dataset(), [1, 2])


def test_a_letor_file_serves_as_judgements(tmp_path):
    path = write(tmp_path / "S5.txt", "2 qid:10 1:0.5 # GX1\n0 qid:10 1:0.1 # GX2\n1 qid:007 1:3\n")
    judged = read_judgements(path)
    assert judged.to_dict() == {"10": {"GX1": 2, "GX2": 0}, "007": {"2": 1}}
    assert judged.name == "S5.txt"
    assert read_judgements(path, form="letor").to_dict() == judged.to_dict()
    with pytest.raises(ValueError, match=r"S5\.txt: a LETOR file holds grades and features, no scores"):
        read_run(path)


def test_a_file_of_scores_is_a_run_beside_its_items(tmp_path):
    path = tmp_path / "scores.txt"
    write_scores(path, dataset(), torch.tensor([0.5, 1.25, -3.0, 7.0, -3.0]))
    run = read_run(path, items=dataset())
    assert run.to_dict() == {"a": {"d0": 0.5, "0": 1.25}, "b": {"d2": -3, "d3": 7, "d4": -3}}
    assert run.name == "scores.txt"
    with pytest.raises(ValueError, match=r"scores\.txt: .* must be the LETOR file of its items"):
        read_run(path)
    with pytest.raises(ValueError, match=r"scores\.txt: .* can only be a run"):
        read_judgements(path)
    for text, words in (
        ("1\n2\n", r"scores\.txt: There must be a score for each of the 5 items, got 2"),
        ("1\n2\n3\n4\nnan\n", r"scores\.txt: a score must be a number, got nan"),
        ("1\n\n3\n4\n5\n", r"scores\.txt:2: a score must be a number, got ''"),
    ):
        with pytest.raises(ValueError, match=words):
            read_run(write(path, text), items=dataset())


def test_a_line_that_is_no_score_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"scores:2: a score must be a number, got 'x'"):
        read_scores(write(tmp_path / "scores", "1\nx\n"))
    assert read_scores(write(tmp_path / "scores", "1\n-2e3\n\n")).tolist() == [1, -2000]


# Ratings --------------------------------------------------------------------------------------------------------------


def ratings() -> Ratings:
    return Ratings.from_columns(
        ["u", "v", "u", "u", "v", "w"], [1, 1, 2, 3, 2, 3], [5, 4, 3, 2, 1, 5], time=[30, 10, 10, 20, 10, 5]
    )


def test_the_last_ratings_are_held_out():
    past, held_out = ratings().leave_last_out()
    assert held_out.to_dict() == {"u": {"1": 5}, "v": {"2": 1}}
    assert past.frame.sort("user", "item").rows() == [
        ("u", "2", 3, 10),
        ("u", "3", 2, 20),
        ("v", "1", 4, 10),
        ("w", "3", 5, 5),
    ]
    assert ratings().leave_last_out(2)[1].to_dict() == {"u": {"3": 2, "1": 5}}


def test_ratings_from_a_moment_on_are_held_out():
    past, held_out = ratings().after(20)
    assert held_out.to_dict() == {"u": {"1": 5, "3": 2}}
    assert len(past) == 4
    with pytest.raises(ValueError, match="Of 6 ratings 0 were held out"):
        ratings().after(99)


def test_a_random_share_of_each_user_is_held_out():
    generator = np.random.default_rng(0)
    many = Ratings.from_columns(np.repeat(np.arange(20), 10), generator.permutation(200), generator.integers(1, 6, 200))
    past, held_out = many.random(0.25, seed=1)
    assert len(past) == 160
    assert held_out.lengths.tolist() == [2] * 20
    assert many.random(0.25, seed=1)[1].to_dict() == held_out.to_dict() != many.random(0.25, seed=2)[1].to_dict()
    assert not set(past.frame.select("user", "item").rows()) & set(held_out.to_polars().select("query", "document").rows())


def test_rated_twice_the_last_counts():
    twice = Ratings.from_columns(["u", "u", "u"], ["a", "b", "b"], [1, 2, 3], time=[1, 2, 3])
    assert twice.leave_last_out(2)[1].to_dict() == {"u": {"b": 3}}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("r.csv", "userId,movieId,rating,timestamp\n1,07,4.0,964982703\n2,x,3.5,5\n"),
        ("r.tsv", "user\titem\trating\ttime\n1\t07\t4\t964982703\n2\tx\t3.5\t5\n"),
        (
            "r.jsonl",
            '{"user": "1", "item": "07", "rating": 4, "time": 964982703}\n'
            '{"user": "2", "item": "x", "rating": 3.5, "time": 5}',
        ),
    ],
)
def test_files_of_ratings(name, text, tmp_path):
    read = read_ratings(write(tmp_path / name, text))
    assert read.frame.rows() == [("1", "07", 4.0, 964982703.0), ("2", "x", 3.5, 5.0)]
    read.frame.write_parquet(tmp_path / "r.parquet")
    assert read_ratings(tmp_path / "r.parquet").frame.equals(read.frame)
    assert repr(read) == "<Ratings: 2 of 2 users on 2 items>"


def test_bad_ratings(tmp_path):
    path = write(tmp_path / "r.csv", "user,item,rating\nu,a,4\nu,b,good\n")
    with pytest.raises(ValueError, match=r"r\.csv:3: the rating must be a number, got 'good'"):
        read_ratings(path)
    with pytest.raises(ValueError, match="no column for the time; there is user, item, rating"):
        read_ratings(path, columns={"time": "when"})
    with pytest.raises(ValueError, match="no column for the user"):
        read_ratings(write(tmp_path / "s.csv", "who,item,rating\nu,a,4\n"))
    with pytest.raises(FileNotFoundError, match="no file at"):
        read_ratings(tmp_path / "none.csv")
    timeless = Ratings.from_columns(["u", "u"], ["a", "b"], [1, 2])
    for split in (timeless.leave_last_out, lambda: timeless.after(3)):
        with pytest.raises(ValueError, match="needs the time of each rating"):
            split()
    with pytest.raises(ValueError, match="between 0 and 1, got 1"):
        timeless.random(1)
    with pytest.raises(ValueError, match="A rating must be a finite number, got nan"):
        Ratings.from_columns(["u"], ["a"], [float("nan")])
    with pytest.raises(ValueError, match="of one length"):
        Ratings.from_columns(["u"], ["a", "b"], [1])
    with pytest.raises(ValueError, match="There is no rating"):
        Ratings.from_columns([], [], [])
