"""``lightning-rank report``: what it writes, and what it refuses."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

from lightning_rank.cli import main
from lightning_rank.data.tables import read_judgements, read_run
from lightning_rank.offline.compare import compare
from lightning_rank.offline.per_query import read_attributes
from lightning_rank.report import comparison_page

QRELS = "".join(f"q{i} 0 a 2\nq{i} 0 b 1\nq{i} 0 c 0\n" for i in range(6))
OLD = "".join(f"q{i} Q0 {d} 1 {s} x\n" for i in range(6) for d, s in {"c": 3, "b": 2, "a": 1}.items())
NEW = "".join(f"q{i} Q0 {d} 1 {s} x\n" for i in range(6) for d, s in {"a": 3 if i else 0, "b": 2, "x": 1}.items())
QUERIES = "query_id,query,market,length\n" + "".join(
    f"q{i},the query {i},{'de' if i < 3 else 'fr'},{i % 2}\n" for i in range(6)
)
ARGS = ("report", "--qrels", "qrels", "--run", "old=old", "--run", "new=new", "-o", "out.html")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    for name, text in (("qrels", QRELS), ("old", OLD), ("new", NEW), ("queries.csv", QUERIES)):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def expected(measures="ndcg@10 map mrr@10 recall@100", page=None, **options):
    runs = {"old": read_run("old"), "new": read_run("new")}
    return comparison_page(compare(read_judgements("qrels"), runs, measures, **options), **(page or {}))


def test_it_writes_the_page_of_the_function(folder, capsys):
    assert main([*ARGS]) == 0
    assert (folder / "out.html").read_text(encoding="utf-8") == expected()
    assert capsys.readouterr() == ("", "")


def test_options_reach_the_functions(folder):
    given = ("--metrics", "ndcg@2", "mrr", "--test", "randomization", "--seed", "3", "--level", "0.9", "--gain", "linear")
    assert main([*ARGS, *given, "--worst", "1", "--shown", "2", "--title", "T"]) == 0
    options = {"test": "randomization", "seed": 3, "alpha": 1 - 0.9, "gain": "linear"}
    assert (folder / "out.html").read_text() == expected("ndcg@2 mrr", {"worst": 1, "shown": 2, "title": "T"}, **options)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_slices_by_the_columns_of_a_file(suffix, folder):
    frame = pl.read_csv("queries.csv")
    {"csv": frame.write_csv, "parquet": frame.write_parquet, "jsonl": frame.write_ndjson}[suffix](f"known.{suffix}")
    assert main([*ARGS, "--queries", f"known.{suffix}"]) == 0
    known = read_attributes(f"known.{suffix}", [f"q{i}" for i in range(6)])
    assert list(known) == ["query", "market", "length"], "the id is the column whose values are ids"
    assert known["length"] == {f"q{i}": i % 2 for i in range(6)}
    assert known["market"]["q5"] == "fr"
    assert (folder / "out.html").read_text() == expected(page={"attributes": known})


@pytest.mark.parametrize(("name", "start"), [("bars.pdf", b"%PDF"), ("bars.png", b"\x89PNG"), ("b/bars.SVG", b"<?xml")])
def test_a_figure_for_papers(name, start, folder):
    (folder / "$x^").write_text(NEW)  # matplotlib would read a formula
    assert main([*ARGS[:6], "$x^$=$x^", *ARGS[7:], "--figure", name]) == 0
    assert (folder / name).read_bytes().startswith(start)


def test_files_that_exist_are_replaced_only_on_request(folder, capsys):
    for name in ("out.html", "bars.png"):
        (folder / name).write_text("mine")
        assert main([*ARGS, "--figure", "bars.png"]) == 1
        assert f"{name} exists: choose another name, or give --overwrite" in capsys.readouterr().err
        assert (folder / name).read_text() == "mine"
        assert {path.name for path in folder.iterdir()} == {"qrels", "old", "new", "queries.csv", name}
        assert main([*ARGS, "--figure", "bars.png", "--overwrite"]) == 0
        assert (folder / name).read_bytes()[:4] != b"mine"
        (folder / "out.html").unlink()
        (folder / "bars.png").unlink()


@pytest.mark.parametrize(
    ("args", "files", "words"),
    [
        (("--metrics", "ndgc"), {}, r"Unknown measure 'ndgc'.*ndcg"),
        (("--figure", "bars.gif"), {}, r"bars\.gif: the name of a figure must end in \.pdf, \.png, \.svg"),
        (("--shown", "0"), {}, r"`shown` must be a whole number >= 1, got 0"),
        (("--queries", "none.csv"), {}, r"no file at 'none\.csv'"),
        (("--queries", "queries.xls"), {}, r"queries\.xls: the name of a table must end in"),
        (("--queries", "queries.csv"), {"queries.csv": "query,a\nz1,1\nz2,2\n"},
         r"queries\.csv: none of its queries is known: 'z1', 'z2' against 'q0', 'q1', 'q2'"),
        (("--queries", "queries.csv"), {"queries.csv": "name,a\nq1,1\n"}, r"no column is the query by its name"),
        (("--queries", "queries.csv"), {"queries.csv": "query\nq1\n"}, r"no column beside 'query'"),
        (("--queries", "queries.csv"), {"queries.csv": "query,a\nq1,1\nq1,2\n"}, r"each query must come once, 'q1'"),
        (("--queries", "queries.csv"), {"queries.csv": "query,a\n,1\n"}, r"lacks an id in 1 rows"),
        (("--queries", "queries.csv"), {"queries.csv": "query,a\n"}, r"there is no row in it"),
        ((), {"new": "q1 Q0 a 1 nan x\n"}, r"new:1: the score is NaN"),
        ((), {"new": "z Q0 a 1 1 x\n"}, r"no query in common"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_leaves_no_file(args, files, words, folder, capsys):
    for name, text in files.items():
        (folder / name).write_text(text)
    before = sorted(folder.iterdir())
    given = args if "--figure" in args else (*args, "--figure", "bars.png")
    assert main([*ARGS, *given]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(rf"(lightning-rank: warning: .*\n)*lightning-rank: error: .*{words}.*\n", said.err)
    assert sorted(folder.iterdir()) == before


def test_a_wrong_command_line_is_status_2(folder, capsys):
    for args in (("report",), ARGS[:-2], (*ARGS, "--format", "json")):
        with pytest.raises(SystemExit) as stopped:
            main([*args])
        assert stopped.value.code == 2
        assert "usage: lightning-rank report" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_leaves_nothing(folder, monkeypatch):
    def fails(*args, **kwargs):
        raise ValueError("no page")

    monkeypatch.setattr("lightning_rank.cli.report.comparison_page", fails)
    before = sorted(folder.iterdir())
    assert main([*ARGS, "--figure", "bars.png"]) == 1
    assert sorted(folder.iterdir()) == before
