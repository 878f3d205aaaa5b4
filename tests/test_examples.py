"""Each example runs, at a small size, and prints what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_benchmark_mq2008_prints_folds_and_mean(tmp_path):
    for i in range(1, 6):
        write_letor(tmp_path / f"S{i}.txt", 6, seed=i)
    output = run("benchmarks/mq2008.py", "--data", ".", "--epochs", "1", "--folds", "1", "2", cwd=tmp_path)
    assert re.search(r"fold 2: test ndcg@10 MLP, ApproxNDCG 0\.\d+", output)
    assert re.search(r"MLP, ApproxNDCG +0\.\d{4} ± 0\.\d{4}", output)


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


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: path.name)
def test_every_example_is_covered_and_says_how_to_run_it(path):
    assert f"python examples/{path.relative_to(EXAMPLES).as_posix()}" in path.read_text(encoding="utf-8")
    assert path.relative_to(EXAMPLES).as_posix() in Path(__file__).read_text(encoding="utf-8")
