"""evaluate and compare: runs in files against judgements in a file."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_rank.cli.files import refuse_existing
from lightning_rank.data.runs import Judgements, Run, polars
from lightning_rank.data.tables import (
    JUDGEMENT_FORMATS,
    RUN_FORMATS,
    file_kind,
    lists_of,
    read_judgements,
    read_run,
    table_kind,
    write_table,
)
from lightning_rank.data.trec import writing

if TYPE_CHECKING:
    from lightning_rank.data.batches import RankingDataset
    from lightning_rank.offline.compare import Comparison

_DEFAULT = "ndcg@10 map mrr@10 recall@100"


def run(args: Sequence[str]) -> None:
    """Run ``evaluate`` or ``compare``.

    Raises:
        ValueError, OSError: bad input, before anything is written.
    """
    options = _parser().parse_args(args)
    with plain_warnings():
        _run(options)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Within, a warning is one line on stderr."""
    with warnings.catch_warnings():
        warnings.showwarning = _say  # type: ignore[assignment]  # it ignores where in the code it came from
        yield


def _run(options: argparse.Namespace) -> None:
    refuse_existing(options.output, options.per_query, overwrite=options.overwrite, inputs=input_files(options))
    if options.per_query is not None:
        table_kind(options.per_query)
    if options.command == "evaluate" and options.q and options.format != "trec_eval":
        raise ValueError("-q prints lines as trec_eval does: add --format trec_eval, or name a file by --per-query.")
    (_evaluate if options.command == "evaluate" else _compare)(options)


def input_files(options: argparse.Namespace) -> list[str]:
    """The files that the options of ``add_files`` name."""
    return [options.qrels, *(_name_and_path(text)[1] for text in options.run)]


def read_inputs(options: argparse.Namespace) -> tuple[Judgements, dict[str, Run]]:
    """What the options of ``add_files`` name."""
    columns = _columns(options.qrels_columns)
    if file_kind(options.qrels, options.qrels_format, named=bool(columns)) == "letor":
        from lightning_rank.data.letor import read_letor

        # Kept, as a file of scores says nothing but the scores of these items.
        items = read_letor(options.qrels)
        return lists_of(items, name=Path(options.qrels).name.removesuffix(".gz"))[0], _runs(options, items)
    judgements = read_judgements(options.qrels, form=options.qrels_format, columns=columns, strict=options.strict)
    return judgements, _runs(options)


def _evaluate(options: argparse.Namespace) -> None:
    judgements, runs = read_inputs(options)
    from lightning_rank.offline.evaluate import evaluate
    from lightning_rank.offline.text import evaluations

    asked = dict(_asked(options), level=options.level)
    if options.format == "trec_eval" and options.convention is None:
        asked["convention"] = "trec_eval"
    results = [evaluate(judgements, run, options.metrics, **asked) for run in runs.values()]
    if options.per_query is not None:
        write_table(options.per_query, polars().concat([r.to_polars() for r in results]), overwrite=options.overwrite)
    _put(evaluations(results, options.format, per_query=options.q), options)


def compared(options: argparse.Namespace) -> Comparison:
    """The comparison that the options of ``add_inputs`` ask for."""
    judgements, runs = read_inputs(options)
    from lightning_rank.offline.compare import compare

    return compare(
        judgements, runs, options.metrics, test=options.test, correction=options.correction,
        alpha=round(1 - options.level, 12),  # of 0.95: 0.05, and not 0.050000000000000044
        resamples=options.resamples, seed=options.seed, **_asked(options),
    )  # fmt: skip


def _compare(options: argparse.Namespace) -> None:
    result = compared(options)
    if options.per_query is not None:
        rows = polars().concat([r.to_polars() for r in result.evaluations.values()])
        write_table(options.per_query, rows, overwrite=options.overwrite)
    text = result.text(options.format)
    if options.format == "table":
        for agreement in result.agreements:
            worst = result.worst(options.worst, candidate=agreement.candidate, shown=options.shown)
            text += "".join(f"\n\n{agreement.candidate}, lost: {change}" for change in worst)
    _put(text, options)


def _asked(options: argparse.Namespace) -> dict[str, Any]:
    convention = None if options.convention == "lightning_rank" else options.convention
    asked = {name: getattr(options, name) for name in ("missing", "depth", "min_relevance")} | {"convention": convention}
    given = {
        name: getattr(options, name) for name in ("gain", "ties", "p", "denominator", "max_grade", "empty_target_action")
    }
    return asked | {name: value for name, value in given.items() if value is not None}


def _runs(options: argparse.Namespace, items: RankingDataset | None = None) -> dict[str, Run]:
    columns = _columns(options.run_columns)
    runs: dict[str, Run] = {}
    for text in options.run:
        name, path = _name_and_path(text)
        if name is None and Path(path).name.removesuffix(".gz") in runs:
            name = path
        run = read_run(path, form=options.run_format, columns=columns, name=name, strict=options.strict, items=items)
        if run.name in runs:
            raise ValueError(f"Two runs are called {run.name!r}: give each a name of its own, --run NAME=FILE.")
        runs[run.name] = run
    return runs


def _name_and_path(text: str) -> tuple[str | None, str]:
    if "=" not in text or Path(text).exists():
        return None, text
    name, _, path = text.partition("=")
    return name, path


def _columns(text: str | None) -> dict[str, str]:
    if not text:
        return {}
    pairs = [part.partition("=") for part in text.split(",")]
    if bad := [part for part, equals, column in pairs if not equals or not column]:
        raise ValueError(f"Columns are named as query=q,document=d, got {bad[0]!r} in {text!r}.")
    return {part.strip(): column.strip() for part, _, column in pairs}


def _put(text: str, options: argparse.Namespace) -> None:
    if options.output is None:
        print(text)
        return
    with writing(options.output, overwrite=options.overwrite) as file:
        file.write(f"{text}\n".encode())


def _say(message: Warning | str, *_: Any) -> None:
    print(f"lightning-rank: warning: {message}", file=sys.stderr)


def add_files(command: argparse.ArgumentParser, *, baseline: bool) -> argparse._ArgumentGroup:
    """Add the options that name files."""
    files = command.add_argument_group("files")
    files.add_argument("--qrels", required=True, metavar="FILE", help="the judgements")
    files.add_argument(
        "--run", required=True, action="append", metavar="[NAME=]FILE",
        help="a run; again for another" + (" (the first is the baseline)" if baseline else ""),
    )  # fmt: skip
    files.add_argument(
        "--qrels-format", choices=JUDGEMENT_FORMATS, help="kind of the judgements; by the file's name and first line"
    )
    files.add_argument(
        "--run-format", choices=RUN_FORMATS,
        help="kind of the runs; by the file's name and first line. Three columns without a header are query, document and rank "
        "(msmarco) unless scores is given",
    )  # fmt: skip
    files.add_argument("--qrels-columns", metavar="PART=COLUMN,...", help="query=, document=, grade= of a table")
    files.add_argument("--run-columns", metavar="PART=COLUMN,...", help="query=, document=, score= (or rank=) of a table")
    files.add_argument("--strict", action="store_true", help="refuse repeated documents and judgements")
    return files


def add_inputs(command: argparse.ArgumentParser, *, baseline: bool) -> None:
    """Add the options that name files, measures and, with a baseline, the test."""
    add_files(command, baseline=baseline)
    what = command.add_argument_group("measures")
    what.add_argument("--metrics", nargs="+", default=[_DEFAULT], metavar="NAME", help=f"by default {_DEFAULT}")
    what.add_argument("--convention", metavar="TOOL", help="options of a tool, such as trec_eval")
    what.add_argument("--missing", default="zero", metavar="zero|skip|error", help="what a query counts that a run misses")
    what.add_argument("--depth", "-M", type=int, metavar="N", help="documents of each query that count, after sorting")
    what.add_argument("--min-relevance", "-l", type=float, default=1, metavar="GRADE", help="relevant from this grade on")
    what.add_argument("--level", type=float, default=0.95, help="of the intervals")
    for name, values in (
        ("gain", "exp2|linear"), ("ties", "average|stable|optimistic|pessimistic"), ("denominator", "relevant|cutoff|hits"),
        ("empty-target-action", "neg|pos|skip|error"),
    ):  # fmt: skip
        what.add_argument(f"--{name}", metavar=values)
    what.add_argument("--p", type=float, help="persistence of rbp")
    what.add_argument("--max-grade", type=float, help="best grade there is, for err")
    if baseline:
        test = command.add_argument_group("test")
        test.add_argument("--test", default="t", metavar="t|randomization|bootstrap|wilcoxon")
        test.add_argument("--correction", default="holm", metavar="holm|bonferroni|hochberg|bh|by")
        test.add_argument("--resamples", type=int, default=9999)
        test.add_argument("--seed", type=int, default=0)


def _parser() -> argparse.ArgumentParser:
    # Choices are checked where they mean something, which says more; their lists would need torch here.
    parser = argparse.ArgumentParser(prog="lightning-rank", description="Judge runs in files.")
    commands = parser.add_subparsers(dest="command", required=True)
    how: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    evaluate = commands.add_parser("evaluate", help="measures of runs", description=_EVALUATE, **how)
    compare = commands.add_parser("compare", help="runs against a baseline", description=_COMPARE, **how)
    for command, formats in (
        (evaluate, ("table", "markdown", "latex", "json", "trec_eval")),
        (compare, ("table", "markdown", "latex", "json")),
    ):
        add_inputs(command, baseline=command is compare)
        out = command.add_argument_group("output")
        trec = "; trec_eval prints as that tool, and computes so: by --convention trec_eval, of which ndcg has linear gain, unless "
        trec += "another is given"
        out.add_argument("--format", choices=formats, default="table", help="table" + trec * (command is evaluate))
        out.add_argument("--output", "-o", metavar="FILE", help="instead of printing")
        out.add_argument("--per-query", metavar="FILE", help="values of each query, as .csv, .tsv, .parquet or .jsonl")
        out.add_argument("--overwrite", action="store_true", help="replace files that exist")
        if command is compare:
            out.add_argument("--worst", type=int, default=3, metavar="N", help="queries shown that lost most")
            out.add_argument("--shown", type=int, default=10, metavar="K", help="ranks shown of each")
        else:
            out.add_argument("-q", action="store_true", help="lines of each query too, with --format trec_eval")
    return parser


_FILES = """
Files are TREC runs and qrels, MS MARCO runs, CSV, TSV, Parquet or JSON lines, plain or gzip; LETOR files serve as
judgements, beside which a run may also be a file with a score for each of their lines.
"""
_EVALUATE = f"""Measures of runs, with intervals and the counts that must be known to read them.
{_FILES}
  lightning-rank evaluate --qrels qrels.txt --run bm25.txt --metrics ndcg@10 map
  lightning-rank evaluate --qrels qrels.txt --run bm25.txt --metrics all_trec --format trec_eval -q
"""
_COMPARE = f"""Runs against a baseline: differences with intervals, corrected p, and the queries that lost most.
{_FILES}
  lightning-rank compare --qrels qrels.txt --run baseline=bm25.txt --run candidate=dense.txt
"""
