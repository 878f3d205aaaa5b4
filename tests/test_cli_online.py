"""The commands signals, experiment and gate, from a log to a verdict."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from lightning_rank import cli
from lightning_rank.online import Experiment, ExperimentPlan, Signals, evaluate_plan
from tests.online.logs import row

PLAN = """
arms: [old, new]
primary: {numerator: ctr_per_search_sum, denominator: ctr_per_search_n}
effect: 0.1
sd: 0.47
eligible_per_day: 60
guardrails: {quick: {numerator: quick_back_sum, denominator: quick_back_n, margin: 0.05, lower_is_better: true}}
"""
GATE = "epsilon: 0.01\ntolerance: 0.01\nevidence: {offline: {low: 0.001, high: 0.03}}\n"


def log(users=800, days=14, seed=0):
    generator = np.random.default_rng(seed)
    rows = []
    for i in range(users):
        at = {"user": f"u{i}", "arm": "new" if i % 2 else "old", "search": "q"}
        time = float(generator.integers(0, days * 86400))
        rows.append(row(timestamp=time, event="search", query="x", **at))
        for position in range(1, 4):
            rows.append(row(timestamp=time, event="impression", document=f"d{position}", position=position, **at))
        if generator.random() < 0.3 + 0.2 * (i % 2):
            rows.append(row(timestamp=time + 9, event="click", document="d1", position=1, **at))
    return sorted(rows, key=lambda r: r["timestamp"])


def run(command):
    return cli.main(command.split())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = log()
    frame = pl.DataFrame(rows, infer_schema_length=None).drop("rating")
    frame.write_parquet("log.parquet")
    (tmp_path / "plan.yaml").write_text(PLAN)
    (tmp_path / "gate.yaml").write_text(GATE)
    return tmp_path


def test_units_by_day_give_the_length_of_the_experiment(folder, capsys):
    run("experiment plan --config plan.yaml --output plan.json")
    assert run("signals log.parquet --by-day") == 1
    assert "--by-day is of the rows that --units FILE writes" in capsys.readouterr().err
    reports = {}
    for name, how in (("users.csv", ""), ("days.csv", "--by-day"), ("days.parquet", "--by-day")):
        assert run(f"signals log.parquet --units {name} {how}") == 0
        assert ("without ctr_per_user in days" in capsys.readouterr().err) == bool(how)
        assert run(f"experiment evaluate --plan plan.json {name} --output {name}.json") == 0
        reports[name] = json.loads((folder / f"{name}.json").read_text())
    assert pl.read_parquet("days.parquet")["day"].dtype == pl.Date
    assert [report["days"] for report in reports.values()] == [None, 14, 14]
    values = [report["primary"]["new"]["pvalue"] for report in reports.values()]
    assert values == pytest.approx([values[0]] * 3)


def test_from_a_log_to_a_verdict(folder, capsys):
    assert run("experiment plan --config plan.yaml --output plan.json") == 0
    assert "694 users (347 in the smallest of 2 arms), 14 days" in capsys.readouterr().out
    assert run("signals log.parquet --units users.csv --output signals.json") == 0
    said = capsys.readouterr()
    assert "without satisfaction: the log has no rating" in said.err
    assert "arm new\n  ctr: 0.16" in said.out
    signals = Signals()
    signals.update(log())
    written = json.loads((folder / "signals.json").read_text())
    assert written["arms"]["new"]["bounce"] == signals.by_arm()["new"]["bounce"].to_dict()
    assert written["counts"]["rows"] == len(log())
    assert written["all"]["dwell"]["median"] == "NaN"

    assert run("experiment evaluate --plan plan.json users.csv --days 14 --output report.json") == 0
    assert "ctr_per_search_sum / ctr_per_search_n, new: 0.2625 -> 0.49" in capsys.readouterr().out
    experiment = Experiment(["old", "new"])
    experiment.update_from(signals)
    expected = evaluate_plan(ExperimentPlan.load("plan.json"), experiment, days=14)
    report = json.loads((folder / "report.json").read_text())
    assert report["primary"]["new"]["pvalue"] == expected.primary["new"].pvalue
    assert report["problems"] == []

    assert run("gate --config gate.yaml --experiment report.json --json g.json --markdown g.md --html g.html") == 0
    assert capsys.readouterr().out.startswith("SHIP\n")
    assert json.loads((folder / "g.json").read_text())["options"]["planned_n"] == 347
    assert (folder / "g.md").read_text().startswith("## Release gate: ship")
    assert (folder / "g.html").read_text().startswith("<!doctype html>")


def test_a_comparison_of_runs_is_the_offline_evidence(folder, capsys):
    generator = np.random.default_rng(0)
    lines = {"qrels": [], "old": [], "new": []}
    for query in range(30):
        lines["qrels"] += [f"{query} 0 d{i} {int(i == 0)}" for i in range(5)]
        for name, noise in (("old", 2.0), ("new", 0.2)):
            scores = (np.arange(5) == 0) + noise * generator.normal(size=5)
            order = np.argsort(-scores)
            lines[name] += [f"{query} Q0 d{i} {rank} {scores[i]} {name}" for rank, i in enumerate(order, 1)]
    for name, text in lines.items():
        (folder / f"{name}.txt").write_text("\n".join(text) + "\n")
    command = "compare --qrels qrels.txt --run old=old.txt --run new=new.txt --metrics ndcg@10 map --format json"
    assert run(f"{command} --output offline.json") == 0
    expected = json.loads((folder / "offline.json").read_text())["differences"][1]["test"]
    (folder / "gate.yaml").write_text("tolerance: 0.01")
    assert run("gate --config gate.yaml --offline offline.json --metric map --json g.json") == 10
    checks = {check["name"]: check for check in json.loads((folder / "g.json").read_text())["checks"]}
    assert checks["offline"]["verdict"] == "pass"
    assert checks["offline"]["numbers"] == {"low": expected["low"], "high": expected["high"]}
    capsys.readouterr()
    for metric, message in (
        ("", "has the metrics ndcg@10, map: name the one that decides, by --metric"),
        (" --metric mrr", "must be one of ndcg@10, map, which the comparison has, got 'mrr'"),
    ):
        assert run(f"gate --config gate.yaml --offline offline.json{metric}") == 1
        assert message in capsys.readouterr().err
    (folder / "newer.txt").write_text((folder / "old.txt").read_text())
    assert run(f"{command} --run newer.txt --output three.json") == 0
    assert run("gate --config gate.yaml --offline three.json --metric map") == 1
    assert "of one new ranker with the old one, got new, newer.txt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ("epsilon: 0.5", 10),
        ("evidence: {offline: {low: -0.3, high: -0.2}}", 11),
        ("evidence: {offline: {low: 0.001, high: 0.03}, days: 10}", 12),
        ("epsilonn: 0.5", 1),
    ],
)
def test_the_exit_status_of_the_gate_is_its_verdict(folder, change, status, capsys):
    for command in (
        "experiment plan --config plan.yaml --output plan.json",
        "signals log.parquet --units users.parquet",
        "experiment evaluate --plan plan.json users.parquet --days 14 --output report.json",
    ):
        assert run(command) == 0
    name = change.partition(":")[0]
    kept = [line for line in GATE.splitlines() if not line.startswith(f"{name}:")]
    (folder / "gate.yaml").write_text("\n".join([*kept, change]))
    assert run("gate --config gate.yaml --experiment report.json") == status


def test_columns_of_other_names(folder, capsys):
    (folder / "plan.yaml").write_text("{arms: [old, new], primary: clicks, effect: 1, sd: 1}")
    assert run("experiment plan --config plan.yaml --output plan.json") == 0
    table = {"arm": ["old", "new"] * 40, "unit": [f"u{i}" for i in range(80)], "day": [i // 8 for i in range(80)]}
    table["clicks"] = [i % 7 for i in range(80)]
    pl.DataFrame(table).write_csv("own.csv")
    pl.DataFrame(table).rename({"arm": "version", "unit": "id", "day": "date"}).write_csv("other.csv")
    assert run("experiment evaluate --plan plan.json own.csv --output own.json") == 0
    named = "experiment evaluate --plan plan.json other.csv --arm-column version --unit-column id"
    assert run(f"{named} --day-column date --output other.json") == 0
    assert (folder / "own.json").read_text() == (folder / "other.json").read_text()
    assert json.loads((folder / "own.json").read_text())["days"] == 10
    capsys.readouterr()
    assert run("experiment evaluate --plan plan.json other.csv") == 1
    assert "other.csv must have the column 'arm'" in (said := capsys.readouterr().err)
    assert "--arm-column" in said
    assert run(f"{named} --day-column when") == 1
    assert "must have the column 'when'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("signals none.parquet", "none.parquet"),
        ("signals log.parquet --only satisfaction", "has no column `rating`"),
        ("signals log.parquet --only ctrr", "got 'ctrr'"),
        ("signals plan.yaml", "must be a CSV"),
        ("signals bad.csv", "has no column `user`"),
        ("signals mixed.parquet", "1 are in several"),
        ("experiment plan --config none.yaml", "none.yaml"),
        ("experiment evaluate --plan none.json users.csv", "none.json"),
        ("gate --config none.yaml", "none.yaml"),
    ],
)
def test_bad_input_is_one_line_and_status_1(folder, capsys, command, message):
    (folder / "bad.csv").write_text("timestamp,event\n1,search\n")
    rows = [
        row(timestamp=i, user="ann", event="search", search="q", query="x", arm=a) for i, a in enumerate(("old", "new"))
    ]
    pl.DataFrame(rows, infer_schema_length=None).write_parquet("mixed.parquet")
    assert run(command) == 1
    said = capsys.readouterr()
    assert message in said.err
    assert "Traceback" not in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    "command",
    [
        "signals log.parquet --output kept",
        "signals log.parquet --units kept",
        "experiment evaluate --plan plan.json users.csv --days 14 --output kept",
        *(f"gate --config gate.yaml --{kind} kept" for kind in ("json", "markdown", "html")),
    ],
)
def test_a_file_is_replaced_by_overwrite_only(folder, capsys, command):
    assert run("experiment plan --config plan.yaml --output plan.json") == 0
    assert run("signals log.parquet --units users.csv") == 0
    status = run(command.replace("kept", "new"))
    (folder / "kept").write_text("kept")
    capsys.readouterr()
    assert run(command) == 1
    said = capsys.readouterr()
    assert "kept exists: choose another name, or give --overwrite" in said.err
    assert said.out == ""
    assert (folder / "kept").read_text() == "kept"
    assert run(f"{command} --overwrite") == status
    assert (folder / "kept").read_bytes() == (folder / "new").read_bytes()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("signals log.csv --only ctr --units log.csv", "log.csv is read by this command"),
        ("signals lo*.csv --only ctr --output log.csv", "log.csv is read"),
        ("signals log.parquet --units out --output ./out", "out is to be written twice"),
        ("experiment evaluate --plan plan.json users.csv --output plan.json", "plan.json is read"),
        ("experiment evaluate --plan plan.json users.csv --output users.csv", "users.csv is read"),
        ("gate --config gate.yaml --html gate.yaml", "gate.yaml is read"),
        ("gate --config gate.yaml --offline users.csv --json users.csv", "users.csv is read"),
        ("gate --config gate.yaml --experiment users.csv --json users.csv", "users.csv is read"),
        ("gate --config gate.yaml --markdown days.json", "days.json is read"),
        ("gate --config gate.yaml --json out --html out", "out is to be written twice"),
    ],
)
def test_what_is_read_is_never_replaced(folder, capsys, command, message):
    for name in ("log.csv", "plan.json", "users.csv", "days.json"):
        (folder / name).write_text("kept")
    (folder / "gate.yaml").write_text("evidence: {days: days.json}")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert run(f"{command} --overwrite") == 1
    assert message in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_plan_is_never_overwritten(folder, capsys):
    command = "experiment plan --config plan.yaml --output plan.json"
    assert run(command) == 0
    assert run(command) == 1
    assert "must stay" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["signals", "experiment", "experiment plan", "gate", "signals log.csv --order up"])
def test_a_usage_error_is_no_verdict(command, capsys):
    with pytest.raises(SystemExit) as error:
        run(command)
    assert error.value.code == 2
