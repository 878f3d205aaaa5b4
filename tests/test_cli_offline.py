"""``lightning-rank evaluate`` and ``compare``: what they print and write, and what they refuse."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from lightning_rank.cli import main
from lightning_rank.data.tables import read_judgements, read_run, write_lists
from lightning_rank.offline.compare import compare
from lightning_rank.offline.evaluate import evaluate

QRELS = "".join(f"q{i} 0 a 2\nq{i} 0 b 1\nq{i} 0 c 0\n" for i in range(6))
BASE = "".join(f"q{i} Q0 {d} 1 {s} base\n" for i in range(6) for d, s in {"c": 3, "b": 2, "a": 1}.items())
BEST = "".join(f"q{i} Q0 {d} 1 {s} best\n" for i in range(5) for d, s in {"a": 3 if i else 0, "b": 2, "x": 1}.items())


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    for name, text in (("qrels", QRELS), ("base", BASE), ("best", BEST)):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder, capsys):
    """Runs a command and returns its status, what it printed and what it said on stderr."""

    def call(*args: str) -> tuple[int, str, str]:
        status = main([*args])
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


EVALUATE = ("evaluate", "--qrels", "qrels", "--run", "best")
COMPARE = ("compare", "--qrels", "qrels", "--run", "old=base", "--run", "new=best")


def test_evaluate_prints_the_table_of_the_function(run):
    expected = evaluate(read_judgements("qrels"), read_run("best"), "ndcg@10 map mrr@10 recall@100")
    assert run(*EVALUATE) == (0, f"{expected}\n", "")
    assert "1 missing in the run (they count as 0)" in str(expected)


def test_a_table_for_each_run_and_names_for_them(run):
    _, out, _ = run(*EVALUATE, "--run", "old one=base", "--metrics", "mrr", "P_5,10")
    tables = out.strip().split("\n\n")
    assert [table.splitlines()[0] for table in tables] == ["best", "old one"]
    assert [line.split()[0] for line in tables[0].splitlines()[3:6]] == ["mrr", "P_5", "P_10"]


def test_options_reach_the_function(run):
    options = {"gain": "linear", "missing": "skip", "depth": 2, "min_relevance": 2, "level": 0.9, "ties": "stable"}
    expected = evaluate(read_judgements("qrels"), read_run("best"), "ndcg map", **options)
    given = ("--gain", "linear", "--missing", "skip", "-M", "2", "-l", "2", "--level", "0.9", "--ties", "stable")
    assert run(*EVALUATE, "--metrics", "ndcg map", *given)[1] == f"{expected}\n"
    expected = evaluate(read_judgements("qrels"), read_run("best"), "rbp err", convention="beir", p=0.5, max_grade=2)
    assert (
        run(*EVALUATE, "--metrics", "rbp", "err", "--convention", "beir", "--p", ".5", "--max-grade", "2")[1]
        == f"{expected}\n"
    )


def test_formats(run):
    _, out, _ = run(*EVALUATE, "--metrics", "map", "--format", "json")
    assert json.loads(out) == [evaluate(read_judgements("qrels"), read_run("best"), "map").to_dict()]
    assert run(*EVALUATE, "--run", "base", "--format", "markdown")[1].startswith("| measure | best | base |")
    assert r"\begin{tabular}{lr}" in run(*EVALUATE, "--format", "latex")[1]
    _, out, _ = run(*EVALUATE, "--metrics", "map", "num_ret", "--format", "trec_eval", "-q")
    # Each q1 to q4 has a and b on top; q0 has b, x, a, and q5 is missing.
    lines = [line.split() for line in out.splitlines()]
    assert lines[:4] == [["map", "q0", "0.8333"], ["num_ret", "q0", "3"], ["map", "q1", "1.0000"], ["num_ret", "q1", "3"]]
    assert lines[-5:] == [
        ["map", "q5", "0.0000"], ["num_ret", "q5", "0"],
        ["runid", "all", "best"], ["map", "all", "0.8056"], ["num_ret", "all", "15"],
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["values.csv", "values.tsv", "values.parquet", "values.jsonl", "deep/values.csv.gz"])
def test_values_of_each_query(name, run, folder):
    status, *_ = run(*EVALUATE, "--run", "base", "--metrics", "mrr", "--per-query", name)
    assert status == 0
    data = (folder / name).read_bytes()
    data = gzip.decompress(data) if name.endswith("gz") else data
    separator = "\t" if "tsv" in name else ","
    kind = name.split(".")[1]
    frame = {"parquet": pl.read_parquet, "jsonl": pl.read_ndjson}.get(kind, lambda x: pl.read_csv(x, separator=separator))(
        data
    )
    expected = [evaluate(read_judgements("qrels"), read_run(x), "mrr").to_polars() for x in ("best", "base")]
    assert frame.equals(pl.concat(expected))


def test_output_goes_to_a_file(run, folder):
    assert run(*EVALUATE, "-o", "out.txt") == (0, "", "")
    written = (folder / "out.txt").read_text()
    assert written == run(*EVALUATE)[1]
    status, _, err = run(*EVALUATE, "--output", "out.txt", "--metrics", "map")
    assert (status, (folder / "out.txt").read_text()) == (1, written)
    assert "out.txt exists: choose another name, or give --overwrite" in err
    assert run(*EVALUATE, "--output", "out.txt", "--metrics", "map", "--overwrite")[0] == 0
    assert (folder / "out.txt").read_text() != written


@pytest.mark.parametrize(
    "args",
    [
        (*EVALUATE, "--output", "./qrels"),
        (*COMPARE, "--output", "link"),
        ("evaluate", "--qrels", "qrels", "--run", "x=in.csv", "--per-query", "in.csv"),
        ("explain", "--qrels", "qrels", "--run", "best", "--output", "in.csv", "--query-texts", "in.csv"),
        ("report", "--output", "in.csv", "--queries", "in.csv", *COMPARE[1:]),
        ("report", "--output", "new", "--figure", "best.png", "--run", "x=best.png", *COMPARE[1:]),
        ("data", "inspect", "letor", "--output", "letor"),
    ],
)
def test_what_is_read_is_never_overwritten(args, run, folder):
    (folder / "in.csv").write_text("query,document,score\nq1,a,1\n")
    (folder / "best.png").write_text(BEST)
    (folder / "letor").write_text("1 qid:1 1:1\n")
    (folder / "link").symlink_to("base")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    status, out, err = run(*args, "--overwrite")
    assert (status, out) == (1, "")
    assert re.fullmatch(r"lightning-rank: error: .* is read by this command.* choose another name\.\n", err)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_two_outputs_are_two_files(run, folder):
    status, _, err = run(*EVALUATE, "--output", "v.csv", "--per-query", "./v.csv", "--overwrite")
    assert (status, (folder / "v.csv").exists()) == (1, False)
    assert "./v.csv is to be written twice" in err


def test_other_files_and_columns(run, folder):
    write_lists(folder / "qrels.parquet", read_judgements("qrels"))
    pl.DataFrame({"a": ["q1", "q1"], "b": ["a", "c"], "c": [1, 2]}).write_csv(folder / "run.csv")
    _, out, _ = run(
        "evaluate", "--qrels", "qrels.parquet", "--run", "run.csv", "--run-columns", "query=a,document=b,rank=c",
        "--metrics", "mrr", "--missing", "skip", "--format", "json",
    )  # fmt: skip
    assert json.loads(out)[0]["measures"]["mrr"]["value"] == 1
    (folder / "marco.txt").write_text("q1\tc\t1\nq1\ta\t2\n")
    _, out, _ = run("evaluate", "--qrels", "qrels", "--run", "marco.txt", "--run-format", "msmarco", "--format", "json")
    assert json.loads(out)[0]["counts"]["missing"] == 5


def test_compare_prints_the_function_and_the_queries_that_lost_most(run):
    expected = compare(read_judgements("qrels"), {"old": read_run("base"), "new": read_run("best")}, "ndcg@3 mrr")
    status, out, err = run(*COMPARE, "--metrics", "ndcg@3", "mrr", "--worst", "1", "--shown", "2")
    assert (status, err) == (0, "")
    assert out.startswith(f"{expected}\n\nnew, lost: query q5: ndcg@3 ")
    assert [line.split()[0] for line in out.splitlines()[-2:]] == ["1", "2"]


def test_compare_options_reach_the_function(run):
    runs = {"old": read_run("base"), "new": read_run("best")}
    options = {
        "test": "bootstrap",
        "correction": "bh",
        "resamples": 99,
        "seed": 3,
        "alpha": 0.1,
        "missing": "skip",
        "depth": 2,
    }
    expected = compare(read_judgements("qrels"), runs, "rbp map", p=0.5, **options)
    given = (
        "--test",
        "bootstrap",
        "--correction",
        "bh",
        "--resamples",
        "99",
        "--seed",
        "3",
        "--level",
        "0.9",
        "--missing",
        "skip",
    )
    _, out, _ = run(*COMPARE, "--metrics", "rbp map", *given, "-M2", "--p", ".5", "--format", "json")
    assert json.loads(out) == expected.to_dict()
    assert json.loads(run(*COMPARE, "--format", "json")[1])["differences"][0]["test"]["alpha"] == 0.05


def test_compare_writes_values_and_formats(run, folder):
    assert run(*COMPARE, "--per-query", "v.csv", "--output", "c.md", "--format", "markdown") == (0, "", "")
    written = pl.read_csv(folder / "v.csv")
    assert written["run"].to_list() == ["old"] * 6 + ["new"] * 6
    assert written.columns == ["run", "query", "ndcg@10", "map", "mrr@10", "recall@100"]
    assert (folder / "c.md").read_text().startswith("| measure | baseline |")


def test_a_warning_is_one_line(run, folder):
    (folder / "best").write_text(BEST + "q1 Q0 a 1 0 x\n")
    status, _, err = run(*EVALUATE)
    assert status == 0
    assert err == (
        "lightning-rank: warning: best: 1 repeated document, for example 'a' of the query 'q1'; a repeated document of a query "
        "counts once, at its best rank.\n"
    )


@pytest.mark.parametrize(
    ("args", "files", "words"),
    [
        ((*EVALUATE, "--strict"), {"best": BEST + "q1 Q0 a 1 0 x\n"}, r"best: 1 repeated document"),
        ((*EVALUATE, "--strict"), {"qrels": QRELS + "q1 0 a 2\n"}, r"qrels: 1 repeated judgement"),
        (EVALUATE, {"qrels": QRELS + "q1 0 a 0\n"}, r"qrels: 1 documents have judgements that contradict"),
        (EVALUATE, {"qrels": "z 0 a 0\n"}, r"no query in common: 'q0', 'q1', 'q2', … against 'z'"),
        (EVALUATE, {"qrels": "Q1 0 a 0\n"}, r"They differ only by upper and lower case"),
        (EVALUATE, {"best": BEST + "q1 Q0 a 1\n"}, r"best:16: a line of a run file must have 6 or more columns"),
        (EVALUATE, {"best": BEST + "q1 Q0 z 1 nan x\n"}, r"best:16: the score is NaN"),
        (EVALUATE, {"best": BEST + "q1 Q0 z 1 high x\n"}, r"best:16: the score must be a number, got 'high'"),
        (EVALUATE, {"best": BEST + "q1,Q0,z,1,1,x\n"}, r"best:16: .*got 1"),
        (EVALUATE, {"best": ""}, r"best: there is no line in it"),
        ((*EVALUATE, "--metrics", "ndgc@10"), {}, r"Unknown measure 'ndgc@10'.*ndcg"),
        ((*EVALUATE, "--metrics", "map", "--gain", "linear"), {}, r"`gain` means nothing for map"),
        ((*EVALUATE, "--convention", "trek"), {}, r"convention 'trek'"),
        ((*EVALUATE, "--missing", "error"), {}, r"1 of 6 judged queries are missing in the run 'best', for example 'q5'"),
        ((*EVALUATE, "--metrics", "all_trec"), {}, r"\(--convention trec_eval or --ties stable\)"),
        ((*EVALUATE, "-q"), {}, r"-q .* add --format trec_eval"),
        ((*EVALUATE, "--per-query", "v.xls"), {}, r"v\.xls: the name of a table must end in"),
        ((*EVALUATE, "--run-columns", "query"), {}, r"named as query=q,document=d, got 'query'"),
        ((*EVALUATE, "--run", "best"), {}, r"Two runs are called 'best'"),
        (("evaluate", "--qrels", "qrels", "--run", "none"), {}, r"no file at 'none'"),
        (("compare", "--qrels", "qrels", "--run", "best"), {}, r"a baseline and at least one other run, got 1"),
        ((*COMPARE, "--metrics", "gm_map"), {}, r"gm_map is no mean over queries"),
        ((*COMPARE, "--test", "z"), {}, r"`test`"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_file(args, files, words, run, folder):
    for name, text in files.items():
        (folder / name).write_text(text)
    before = sorted(folder.iterdir())
    given = args if "--per-query" in args else (*args, "--per-query", "v.csv")
    status, out, err = run(*given, "--output", "out")
    assert (status, out) == (1, "")
    assert re.fullmatch(rf"lightning-rank: error: .*{words}.*\n", err)
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    "args", [("evaluate",), (*EVALUATE, "--format", "xml"), (*EVALUATE, "--metric", "map"), (*COMPARE, "-q")]
)
def test_a_wrong_command_line_is_status_2(args, folder, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([*args])
    assert stopped.value.code == 2
    assert "usage: lightning-rank" in capsys.readouterr().err


def test_help_names_every_option(folder, capsys):
    for command, words in (
        ("evaluate", ("--per-query", "ndcg has linear gain", "-q")),
        ("compare", ("--test", "holm", "--worst")),
    ):
        with pytest.raises(SystemExit) as stopped:
            main([command, "--help"])
        assert stopped.value.code == 0
        text = " ".join(capsys.readouterr().out.split())
        assert all(word in text for word in words)


def test_a_command_that_there_is_not_names_all(run):
    status, out, err = run("eval", "--qrels", "qrels")
    assert (status, out) == (2, "")
    assert err == (
        "lightning-rank: error: there is no command 'eval'. Did you mean 'evaluate'? There is fit, validate, test, predict, "
        "evaluate, compare, report, explain, signals, experiment, gate, data; each has a --help.\n"
    )


def test_a_process_without_lightning(folder):
    code = (
        "import sys; from lightning_rank.cli import main; status = main(sys.argv[1:]); "
        "print(*sorted({'pytorch_lightning', 'sklearn', 'scipy', 'pandas', 'matplotlib'} & set(sys.modules))); sys.exit(status)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code, *EVALUATE, "--output", "out"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")
    failed = subprocess.run(
        [sys.executable, "-m", "lightning_rank.cli", *EVALUATE, "--output", "out"],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert failed.returncode == 1
    assert failed.stderr.startswith("lightning-rank: error: out exists")


def test_scores_beside_a_letor_file(run, folder):
    # A query whose lines are apart, and an item without an id.
    (folder / "test.txt").write_text("2 qid:1 1:0.5 # a\n0 qid:2 1:0.1 # b\n0 qid:1 1:0.2 # c\n1 qid:2 1:3\n")
    (folder / "scores.txt").write_text("0.1\n0.9\n0.7\n-0.4\n")
    (folder / "as_run").write_text("1 Q0 a 1 0.1 t\n1 Q0 c 1 0.7 t\n2 Q0 b 1 0.9 t\n2 Q0 3 1 -0.4 t\n")
    files = ("--qrels", "test.txt", "--run", "x=scores.txt", "--metrics", "ndcg@10", "mrr", "judged@2")
    status, out, _ = run("evaluate", *files)
    assert (status, out) == run("evaluate", *(f.replace("scores.txt", "as_run") for f in files))[:2]
    assert "0.5000" in out
    status, out, _ = run("compare", *files[:4], "--run", "y=as_run", "--metrics", "mrr")
    assert status == 0
    assert "0.0000" in out
    (folder / "scores.txt").write_text("0.1\n0.9\n")
    assert run("evaluate", *files)[2].endswith("error: scores.txt: There must be a score for each of the 4 items, got 2.\n")
    assert "must be the LETOR file of its items" in run("evaluate", "--qrels", "qrels", *files[2:])[2]
