"""signals, experiment plan and evaluate, gate: from a search log to a verdict."""

from __future__ import annotations

import argparse
import glob
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_rank.cli.files import refuse_existing
from lightning_rank.data.trec import writing
from lightning_rank.gate import decide_from_files
from lightning_rank.online.events import NEEDED, load_polars, scan
from lightning_rank.online.experiment import user_table
from lightning_rank.online.plans import evaluate_files, plan_from_file, read_yaml
from lightning_rank.online.signals import Signals
from lightning_rank.stats.results import Result, jsonable

PARTS = ("arm", "unit", "day")
KINDS = ("json", "markdown", "html")


def run(args: Sequence[str]) -> int:
    """Run a command; returns the exit status, which for ``gate`` is that of its decision.

    Raises:
        ValueError, OSError: bad input, or an output that exists or is an input, before anything is written.
    """
    options = _parser().parse_args(args)
    if options.command != "experiment" or options.step != "plan":
        written = (getattr(options, name, None) for name in ("output", "units", *KINDS))
        refuse_existing(*written, overwrite=options.overwrite, inputs=_inputs(options))
    commands = {"signals": _signals, "plan": _plan, "evaluate": _evaluate, "gate": _gate}
    return commands[getattr(options, "step", options.command)](options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lightning-rank")
    commands = parser.add_subparsers(dest="command", required=True)
    signals = commands.add_parser("signals", help="behaviour and satisfaction from a search log, in all and by arm")
    signals.add_argument("log", nargs="+", help="CSV, Parquet or JSONL, or a glob of them, in the order of time")
    signals.add_argument("--only", nargs="+", metavar="NAME", help=f"some of {', '.join(Signals().signals)}")
    signals.add_argument("--order", choices=("time", "any"), default="time", help="any: the log is not sorted by time")
    signals.add_argument("--session-gap", type=float, default=1800, metavar="S", help="a longer pause starts a session")
    signals.add_argument("--mixed", choices=("refuse", "exclude", "keep"), default="refuse", help="users in two arms")
    signals.add_argument("--alpha", type=float, default=0.05)
    signals.add_argument("--output", metavar="JSON", help="write everything as JSON")
    signals.add_argument("--units", metavar="FILE", help="write a row per user, CSV or Parquet, for `experiment evaluate`")

    signals.add_argument(
        "--by-day", action="store_true", help="with --units: a row per user and day (UTC), as whole weeks need"
    )

    experiment = commands.add_parser("experiment", help="plan an experiment, and evaluate it by its plan")
    steps = experiment.add_subparsers(dest="step", required=True)
    plan = steps.add_parser("plan", help="how many users and days")
    plan.add_argument("--config", required=True, metavar="YAML", help="the arguments of lightning_rank.online.plan")
    plan.add_argument("--output", metavar="JSON", help="the plan, for `evaluate`; an existing one is never overwritten")
    evaluate = steps.add_parser(
        "evaluate",
        help="sample ratio, primary metric, guardrails, novelty",
        description="Exit status: 0, with a PROBLEM too, as the verdict is that of `lightning-rank gate`; 1 and 2 are errors.",
    )
    evaluate.add_argument("--plan", required=True, metavar="JSON", help="what `plan --output` wrote")
    evaluate.add_argument("data", nargs="+", help="CSV or Parquet with a row per user (and day): arm, unit, day, columns")
    for part in PARTS:
        evaluate.add_argument(f"--{part}-column", metavar="COLUMN", help=f"what `{part}` is called in the data")
    evaluate.add_argument("--days", type=float, help="how long it ran, where the data have no day")
    evaluate.add_argument("--look", type=int, help="which of the planned looks this is")
    evaluate.add_argument("--mixed", choices=("refuse", "exclude"), default="refuse", help="users in two arms")
    evaluate.add_argument("--output", metavar="JSON", help="the report, for `lightning-rank gate --experiment`")

    gate = commands.add_parser(
        "gate",
        help="ship, hold, reject or invalid, by rules and evidence",
        description="Exit status: 0 ship, 10 hold, 11 reject, 12 invalid; 1 and 2 are errors.",
    )
    gate.add_argument("--config", required=True, metavar="YAML", help="options of the gate, and evidence or files of it")
    gate.add_argument(
        "--offline", metavar="JSON", help="what `lightning-rank compare --format json` wrote, or low and high"
    )
    gate.add_argument("--experiment", metavar="JSON", help="the report of `lightning-rank experiment evaluate --output`")
    gate.add_argument("--arm", help="the treatment, where the experiment has several")
    gate.add_argument("--metric", help="the metric, where the comparison has several")
    for kind in KINDS:
        gate.add_argument(f"--{kind}", metavar="FILE", help=f"write the decision as {kind}")
    for command in (signals, evaluate, gate):
        command.add_argument("--overwrite", action="store_true", help="replace files that exist")
    return parser


def _signals(options: argparse.Namespace) -> int:
    if options.by_day and not options.units:
        raise ValueError("--by-day is of the rows that --units FILE writes; give that too.")
    signals = Signals(session_gap=options.session_gap)
    chosen = options.only or list(signals.signals)
    chosen_signals = {name: signals[name] for name in chosen}
    if not options.only:
        have = set.intersection(*(set(scan(path, _COLUMNS).collect_schema().names()) for path in options.log))
        lacking = {name: set(signal.needed) - have for name, signal in chosen_signals.items()}
        for name, columns in lacking.items():
            if columns and have >= set(NEEDED):
                print(f"without {name}: the log has no {', '.join(sorted(columns))}", file=sys.stderr)
                del chosen_signals[name]
    signals = Signals(chosen_signals, session_gap=options.session_gap, by_day=options.by_day)
    if left_out := [name for name in chosen_signals if options.by_day and not signals[name].adds_up]:
        print(f"without {', '.join(left_out)} in {options.units}: it does not add up over days", file=sys.stderr)
    signals.read(*options.log, order=options.order)
    # Users in two arms are an error here, before anything is printed.
    by_arm = signals.by_arm(alpha=options.alpha, mixed=options.mixed)
    values = {"all": signals.compute(alpha=options.alpha), **by_arm}
    print(signals.counts())
    for arm, results in values.items():
        print(f"\n{'all users' if arm == 'all' else f'arm {arm}'}")
        for name, result in results.items():
            print(f"  {name}: {result}")
    if options.output:
        arms = {arm: _plain(results) for arm, results in by_arm.items()}
        found = {"counts": signals.counts().to_dict(), "all": _plain(values["all"]), "arms": arms}
        _write(options.output, _json(found), options.overwrite)
    if options.units:
        pl = load_polars()
        tables = [{"arm": arm, **user_table(signals, arm, mixed=options.mixed)} for arm in by_arm]
        if not tables:
            raise ValueError("A row per user needs the `arm` of the users, but the log has none.")
        frame = pl.concat([pl.DataFrame(table) for table in tables])
        if options.by_day:
            frame = frame.with_columns(pl.col("day").cast(pl.Int32).cast(pl.Date))
        with writing(options.units, overwrite=options.overwrite) as file:
            frame.write_parquet(file) if options.units.endswith(".parquet") else frame.write_csv(file)
    return 0


def _plan(options: argparse.Namespace) -> int:
    made = plan_from_file(options.config)
    if options.output:
        if Path(options.output).exists():
            raise FileExistsError(f"{options.output} exists: a plan that an experiment has begun with must stay.")
        made.save(options.output)
    print(made)
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    columns = {part: column for part in PARTS if (column := getattr(options, f"{part}_column"))}
    report = evaluate_files(
        options.plan, *options.data, days=options.days, look=options.look, mixed=options.mixed, columns=columns
    )
    if options.output:
        _write(options.output, _json(report.to_dict()), options.overwrite)
    print(report)
    return 0


def _gate(options: argparse.Namespace) -> int:
    given = {name: getattr(options, name) for name in ("offline", "experiment", "arm", "metric")}
    decision = decide_from_files(options.config, **given)
    for kind in KINDS:
        if file := getattr(options, kind):
            _write(file, getattr(decision, f"to_{kind}")(), options.overwrite)
    print(decision)
    return decision.exit_code


def _inputs(options: argparse.Namespace) -> list[str]:
    """The files that a command reads."""
    if options.command == "signals":
        return [path for log in options.log for path in (log, *glob.glob(log, recursive=True))]
    if options.command == "experiment":
        return [options.plan, *options.data]
    texts, found = [read_yaml(options.config).get("evidence")], []
    while texts:
        text = texts.pop()
        texts += text.values() if isinstance(text, Mapping) else []
        found += [str(Path(options.config).parent / text)] if isinstance(text, str) else []
    return [options.config, *(path for path in (options.offline, options.experiment) if path), *found]


def _plain(results: dict[str, Result]) -> dict[str, Any]:
    return {name: result.to_dict() for name, result in results.items()}


def _json(value: Any) -> str:
    return json.dumps(jsonable(value), indent=2, allow_nan=False) + "\n"


def _write(path: str, text: str, overwrite: bool) -> None:
    with writing(path, overwrite=overwrite) as file:
        file.write(text.encode())


_COLUMNS = (*NEEDED, *sorted({name for signal in Signals().signals.values() for name in signal.needed}))
