"""Each example runs, at a small size, and prints what it promises."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lightning_rank import functional
from tests.test_module import write_letor

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str, *args: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *args],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, "MPLBACKEND": "agg"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_own_module(tmp_path):
    output = run("own_module.py", "--queries=100", "--epochs=3", cwd=tmp_path)
    untrained, best = map(float, re.search(r"val/ndcg@10 +untrained (\S+) +best epoch (\S+)", output).groups())
    assert untrained < best <= 1


def test_metric_only(tmp_path):
    output = run("metric_only.py", "--queries=100", "--epochs=3", cwd=tmp_path)
    rows = [line.split() for line in output.splitlines() if re.match(r" +\d", line)]
    assert len(rows) == 3
    assert float(rows[-1][2]) > float(rows[0][2])


def test_letor(tmp_path):
    output = run("letor.py", "--queries=40", "--epochs=2", cwd=tmp_path)
    assert re.search(r"test/ndcg@10 +0\.\d{4}", output)
    assert len(re.findall(r"^ +\d+  doc\d+ ", output, flags=re.MULTILINE)) == 10


def test_benchmark_of_metrics_compares_equal_values(tmp_path):
    output = run("benchmarks/metrics.py", "--shapes", "20x30", "--parts", "time", "memory", cwd=tmp_path)
    assert len(re.findall(r"^20x30 .* ms ", output, flags=re.MULTILINE)) == 5
    assert int(re.search(r"State after a million queries: (\d+) bytes", output)[1]) < 1024


def test_benchmark_of_files_compares_equal_values(tmp_path):
    output = run("benchmarks/evaluate.py", "--queries=40", "--documents=20", cwd=tmp_path)
    assert re.search(r"^lightning-rank evaluate +\d", output, flags=re.MULTILINE)
    assert re.search(r"measures \d\.\d+ s: .* of reading", output)
    assert re.search(r"100,000 resamples of 40 queries: \d", output)


def test_benchmark_of_scale(tmp_path):
    output = run("benchmarks/scale.py", "--lines=40000", "--repeats=1", cwd=tmp_path)
    assert re.search(r"^lightning_rank convert +[\d.]+ +[\d.]+ +\d+ +1\.0 +1\.0", output, flags=re.MULTILINE)
    assert re.search(r"^scikit-learn load_svmlight_file +\d", output, flags=re.MULTILINE)
    assert len(re.findall(r"^(?:64|256) +[\d.]+ +[\d.]+ +\d+%$", output, flags=re.MULTILINE)) == 2
    assert len(re.findall(r"^[\d-]+ +(?:64|256) +[\d.]+ +[+-][\d.]+% +[\d.]+%$", output, flags=re.MULTILINE)) == 4
    assert re.search(r"beyond the mapped file: \d+ MB for a quarter of the queries, \d+ MB for all", output)


def test_benchmark_of_losses_compares_equal_values(tmp_path):
    command = ("benchmarks/losses.py", "--shapes", "3x20", "4 jagged", "--growth")
    output = run(*command, "--losses", "approx_ndcg", "lambda", cwd=tmp_path)
    assert len(re.findall(r"^(?:approx_ndcg|lambda) +(?:3x20|4 jagged) .* ms ", output, flags=re.MULTILINE)) == 4


def test_benchmark_of_losses_has_the_textbook_of_each(benchmark_of_losses):
    # What is raced against must be right itself: golden values check the library, this checks the other side.
    for name, function in benchmark_of_losses.DENSE.items():
        if name == "neural_ndcg":
            continue  # its textbook stops before it has converged
        score, grade, mask = benchmark_of_losses.lists_of("8 jagged")
        library = getattr(functional, f"{name}_loss")(score, grade, mask)
        torch.testing.assert_close(function(score, grade, mask).mean(), library)


@pytest.fixture
def benchmark_of_losses(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES / "benchmarks"))
    spec = importlib.util.spec_from_file_location("benchmark_of_losses", EXAMPLES / "benchmarks" / "losses.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def five_parts(tmp_path):
    for i in range(1, 6):
        write_letor(tmp_path / f"S{i}.txt", 6, seed=i)
    return tmp_path


def test_benchmark_of_retrieval(tmp_path):
    sizes = ("--users=300", "--items=2000", "--size=8", "--rounds=1", "--queries=64", "--batch=16", "--turns=1")
    output = run("benchmarks/retrieval.py", *sizes, cwd=tmp_path)
    assert len(re.findall(r" MiB$", output, flags=re.MULTILINE)) == 6
    assert re.search(r"^two, a thread each +\d", output, flags=re.MULTILINE)


def rows_of(output: str, names: list[str]) -> list[list[float]]:
    """The numbers of the rows of a table that begin with these names."""
    found = [re.search(rf"^{name} +(\d.*)$", output, flags=re.MULTILINE)[1] for name in names]
    return [[float(number) for number in re.findall(r"(?<!± )\b[01]\.\d{4}", row)] for row in found]


def test_retrieval_two_tower(tmp_path):
    output = run("retrieval_two_tower.py", "--users=300", "--items=200", "--epochs=12", cwd=tmp_path)
    popular, towers = rows_of(output, ["popular", "two towers"])
    assert all(a < b <= 1 for a, b in zip(popular, towers, strict=True))
    rows = [f"{u},{(u * 7 + i * i) % 31},4.5,{i}" for u in range(60) for i in range(6)]
    (tmp_path / "ratings.csv").write_text("\n".join(["userId,movieId,rating,timestamp", *rows]))
    output = run("retrieval_two_tower.py", "--ratings", "ratings.csv", "--epochs=1", cwd=tmp_path)
    assert output.startswith("60 users, ")


def test_text_reranker(tmp_path):
    output = run("text_reranker.py", "--docstrings=400", "--epochs=4", cwd=tmp_path)
    bm25, reranker = rows_of(output, ["BM25", "re-ranker"])
    assert 0.4 < bm25[0] < reranker[0] < 1
    texts = [f".I {i}\n.T\ntitle\n.W\nwing number{i} flow word{i % 7}\n" for i in range(1, 41)]
    (tmp_path / "cran.all.1400").write_text("".join(texts))
    # Queries are judged by their order, 1 to 20, and not by .I.
    (tmp_path / "cran.qry").write_text("".join(f".I {i * 3:03}\n.W\nnumber{i} flow\n" for i in range(1, 21)))
    (tmp_path / "cranqrel").write_text("".join(f"{i} {i} -1\n{i} {i + 1} 4\n\n" for i in range(1, 21)))
    output = run("text_reranker.py", "--cranfield=.", "--epochs=1", "--candidates=10", cwd=tmp_path)
    assert output.startswith("40 documents, 12 queries")
    assert rows_of(output, ["BM25"])[0][1] == 1, "only its own text has a query's number"


def test_ab_test(tmp_path):
    output = run("ab_test.py", cwd=tmp_path)
    assert "90,000 players, generated data" in output
    assert "PROBLEM: it is not known how many days the experiment ran" in output
    assert re.search(r"retention_7, gate_40: 0\.1[89]\d* -> 0\.1[78]\d*: -0\.00\d+", output)
    assert "Gate: REJECT" in output
    rows = ["userid,test_version,sum_gamerounds,retention_1,retention_7"]
    rows += [f"{i},gate_{30 + 10 * (i % 2)},{i % 50},{i % 3 == 0},{i % 5 == 0}" for i in range(300)]
    (tmp_path / "players.csv").write_text("\n".join(rows))
    output = run("ab_test.py", "--data", "players.csv", cwd=tmp_path)
    assert "150 users in the smallest arm" in output


def test_decision_loop(tmp_path):
    output = run("decision_loop.py", cwd=tmp_path)
    assert "SHIP" in output
    for name in ("swaps", "click model"):
        low = float(re.search(rf"   {name} .*over raw clicks: .*\[([+-][\d.e-]+), ", output)[1])
        assert low > 0, "better than raw clicks, by the interval"


def test_benchmark_of_the_online_statistics(tmp_path):
    output = run("benchmarks/online.py", "--simulations", "60", "--events", "20000", cwd=tmp_path)
    assert len(re.findall(r" % \[[\d.]+, [\d.]+\]$", output, flags=re.MULTILINE)) == 19
    assert len(re.findall(r"1 - rho² = ", output)) == 3
    assert re.search(r"  (19|20),\d{3} events in [\d.]+ s, [\d.]+ s of CPU on 2 threads, peak memory", output)


@pytest.fixture
def benchmark(monkeypatch):
    """The benchmark as a module."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "benchmarks"))
    yield importlib.import_module("mq2008")
    for name in ("mq2008", "training"):
        monkeypatch.delitem(sys.modules, name)


def test_benchmark_mq2008_goes_on_where_it_was_stopped(benchmark, five_parts, monkeypatch, capsys):
    command = ("benchmarks/mq2008.py", "--data", ".", "--losses", "softmax", "--best")
    command += ("--folds", "1", "2", "--seeds", "0", "--epochs", "1")
    output = run(*command, "--jobs", "2", cwd=five_parts)
    assert output.startswith("MQ2008: ")
    assert " 0 of them in mq2008.jsonl" in output
    results = five_parts / "mq2008.jsonl"
    records = [json.loads(line) for line in results.read_text().splitlines()]
    systems = {record["system"] for record in records}
    assert {"softmax", "best", "ridge"} <= systems <= {"softmax", "best", "ridge", "lightgbm"}
    assert len(records) == 2 * len(systems)
    assert all(0 < record["test"][name] <= 1 for record in records for name in ("ndcg@5", "ndcg@10", "map", "mrr"))
    for system in systems:
        mean = sum(record["test"]["ndcg@10"] for record in records if record["system"] == system) / 2
        assert re.search(rf"^{system} +\S+ ± \S+ +{mean:.4f} ± 0\.\d{{4}} ", output, flags=re.MULTILINE), output

    # As if stopped within a record: that one is made again, nothing else is.
    lines = results.read_text().splitlines(keepends=True)
    results.write_text("".join(lines[:-1]) + lines[-1][:20])
    made = []
    monkeypatch.setattr(benchmark, "perform", lambda run: made.append(run.key) or records[-1])
    monkeypatch.setattr(sys, "argv", list(command))
    monkeypatch.chdir(five_parts)
    benchmark.main()
    assert made == [records[-1]["key"]]
    assert results.read_text() == "".join(lines)
    again = capsys.readouterr().out
    assert f"{len(records)} runs, {len(records) - 1} of them" in again
    assert again.splitlines()[1:] == output.splitlines()[1:]


def test_benchmark_mq2008_mixes_no_settings_and_no_data(benchmark, five_parts):
    _, folds = benchmark.folds_of(str(five_parts))
    assert [Path(fold.test[0]).name for fold in folds] == ["S5.txt", "S1.txt", "S2.txt", "S3.txt", "S4.txt"]
    names = [Path(path).name for path in (*folds[3].train, *folds[3].val, *folds[3].test)]
    assert names == ["S4.txt", "S5.txt", "S1.txt", "S2.txt", "S3.txt"]
    run = benchmark.Run("softmax", folds[0], 0, benchmark.Recipe())
    others = [
        dataclasses.replace(run, **change)
        for change in (
            {"system": "listnet"},
            {"system": "best"},
            {"system": "ridge"},
            {"fold": folds[1]},
            {"seed": 1},
            {"recipe": benchmark.Recipe(dropout=0.1)},
        )
    ]
    keys = [run.key, *(other.key for other in others)]
    write_letor(five_parts / "S5.txt", 7, seed=5)
    assert len({*keys, run.key}) == len(keys) + 1


def test_benchmark_mq2008_takes_a_folder_of_one_fold(benchmark, tmp_path):
    with pytest.raises(SystemExit, match=r"it lacks train\.txt"):
        benchmark.folds_of(str(tmp_path))
    for name in ("train", "vali", "test"):
        write_letor(tmp_path / f"{name}.txt", 2)
    name, (fold,) = benchmark.folds_of(str(tmp_path))
    assert (name, fold.number) == ("MSLR", 1)
    assert [Path(path).name for path in (*fold.train, *fold.val, *fold.test)] == ["train.txt", "vali.txt", "test.txt"]


def test_benchmark_mq2008_takes_seeds_as_repetitions_and_folds_as_the_unit(benchmark):
    values = {(1, 0): 0.2, (1, 1): 0.4, (2, 0): 0.5, (2, 1): 0.5}
    records = [{"fold": f, "seed": s, "test": dict.fromkeys(benchmark.METRICS, v)} for (f, s), v in values.items()]
    table = benchmark.by_fold(records)
    assert table[:, 0].tolist() == pytest.approx([0.3, 0.5])
    # Two folds that differ by 0.2 from each other: their mean has the standard error 0.1.
    assert benchmark.with_error(table[:, 0]) == "0.4000 ± 0.1000"


PROGRAMS = [path for path in sorted(EXAMPLES.rglob("*.py")) if "__main__" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_every_example_is_covered_and_says_how_to_run_it(path):
    assert f"python examples/{path.relative_to(EXAMPLES).as_posix()}" in path.read_text(encoding="utf-8")
    assert path.relative_to(EXAMPLES).as_posix() in Path(__file__).read_text(encoding="utf-8")
