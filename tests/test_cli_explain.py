"""``lightning-rank explain``: what it writes, and what it refuses without writing anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_rank.cli import main
from lightning_rank.data.tables import read_judgements, read_run
from lightning_rank.report import explain_page

QRELS = "".join(f"q{i} 0 a 2\nq{i} 0 b 1\nq{i} 0 c 0\n" for i in range(6))
BASE = "".join(f"q{i} Q0 {d} 1 {s} base\n" for i in range(6) for d, s in {"c": 3, "b": 2, "a": 1}.items())
BEST = "".join(f"q{i} Q0 {d} 1 {s} best\n" for i in range(5) for d, s in {"a": 3 if i else 0, "b": 2, "x": 1}.items())
RUNS = ("--qrels", "qrels", "--run", "old=base", "--run", "new=best")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs the command and returns its status, what it printed and what it said on stderr."""
    for name, text in (("qrels", QRELS), ("base", BASE), ("best", BEST)):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)

    def call(*args: str) -> tuple[int, str, str]:
        status = main(["explain", *args])
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


def test_the_page_is_that_of_the_function(run):
    status, out, err = run(*RUNS)
    expected = explain_page(read_judgements("qrels"), {"old": read_run("base"), "new": read_run("best")})
    assert Path("explain.html").read_text("utf-8") == expected.html
    assert (status, out, err) == (0, f"explain.html: 6 of 6 queries, {len(expected.html.encode()) / 1000:.0f} kB\n", "")


def test_options_reach_the_function(run):
    Path("texts").write_text("q1\tred shoes\nq2\tblue shoes\n")
    Path("titles").write_text("a\tA shoe\n")
    status, _, _ = run(
        *RUNS, "--query", "q2", "--query", "q1", "--measure", "map@2", "--documents", "2", "--lang", "zh", "--gain", "linear",
        "-l", "2", "--denominator", "cutoff", "--ties", "stable", "-M", "3", "--missing", "skip", "--query-texts", "texts",
        "--document-texts", "titles", "--max-kb", "300", "--output", "page.html",
    )  # fmt: skip
    expected = explain_page(
        read_judgements("qrels"), {"old": read_run("base"), "new": read_run("best")}, "map@2", queries=["q2", "q1"], documents=2,
        lang="zh", gain="linear", min_relevance=2, denominator="cutoff", ties="stable", depth=3, missing="skip",
        query_texts={"q1": "red shoes", "q2": "blue shoes"}, document_texts={"a": "A shoe"},
    )  # fmt: skip
    assert status == 0
    assert Path("page.html").read_text("utf-8") == expected.html
    assert "red shoes" in expected.html
    assert "A shoe" in expected.html


def test_a_page_that_exists_is_kept(run):
    Path("explain.html").write_text("mine")
    assert run(*RUNS) == (1, "", "lightning-rank: error: explain.html exists: choose another name, or give --overwrite.\n")
    assert Path("explain.html").read_text() == "mine"
    assert run(*RUNS, "--overwrite")[0] == 0


def test_queries_that_do_not_fit_are_left_out_and_counted(run):
    many = [f"q{i}" for i in range(300)]
    Path("qrels").write_text("".join(f"{q} 0 d{j} 1\n" for q in many for j in range(20)))
    Path("base").write_text("".join(f"{q} Q0 d{j} 1 {-j} x\n" for q in many for j in range(20)))
    status, out, err = run("--qrels", "qrels", "--run", "base", "--max-kb", "80")
    kept = int(out.split()[1])
    assert status == 0
    assert 10 < kept < 300
    assert f"warning: The page keeps {kept} of 300 queries" in err
    assert Path("explain.html").stat().st_size <= 80_000


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((*RUNS, "--query", "q77"), "'q77' is not among the 6"),
        ((*RUNS, "--run", "third=base"), "one run, or two"),
        ((*RUNS, "--lang", "de"), "'en', 'zh', got 'de'"),
        ((*RUNS, "--max-kb", "1"), "more than 1,000"),
        ((*RUNS, "--query-texts", "bad"), "bad:2: a line must be an id, a tab and a text, got 'no tab'"),
        (("--qrels", "qrels", "--run", "nothing"), "no file"),
        (("--qrels", "qrels", "--run", "short"), "short:1"),
    ],
)
def test_refusals_write_nothing(run, args, message):
    Path("bad").write_text("q1\ttext\nno tab\n")
    Path("short").write_text("q1 Q0 a\n")
    before = sorted(Path().iterdir())
    status, out, err = run(*args)
    assert status == 1
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert sorted(Path().iterdir()) == before
