"""report: a comparison of runs in files as one page, and as a figure."""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from pathlib import Path

from lightning_rank.cli.files import refuse_existing
from lightning_rank.cli.offline import add_inputs, compared, input_files, plain_warnings
from lightning_rank.data.trec import writing
from lightning_rank.offline.per_query import read_attributes
from lightning_rank.report import comparison_page

FIGURES = (".pdf", ".png", ".svg")


def run(args: Sequence[str]) -> None:
    """Run ``report``.

    Raises:
        ValueError, OSError: bad input, before anything is written.
    """
    options = _parser().parse_args(args)
    with plain_warnings():
        _run(options)


def _run(options: argparse.Namespace) -> None:
    inputs = [*input_files(options), options.queries]
    refuse_existing(options.output, options.figure, overwrite=options.overwrite, inputs=inputs)
    if options.figure is not None and Path(options.figure).suffix.lower() not in FIGURES:
        raise ValueError(f"{options.figure}: the name of a figure must end in {', '.join(FIGURES)}.")
    result = compared(options)
    attributes = None
    if options.queries is not None:
        attributes = read_attributes(options.queries, result.evaluations[result.baseline].query_ids)
    page = comparison_page(result, attributes=attributes, worst=options.worst, shown=options.shown, title=options.title)
    # Both are made before either is written.
    drawn = None if options.figure is None else _drawn(result.plot(), Path(options.figure).suffix.lower())
    with writing(options.output, overwrite=options.overwrite) as file:
        # An id that is no valid text must not end in an error.
        file.write(page.encode(errors="replace"))
    if drawn is not None:
        with writing(options.figure, overwrite=options.overwrite) as file:
            file.write(drawn)


def _drawn(figure: object, suffix: str) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=suffix.removeprefix("."), dpi=200)  # type: ignore[attr-defined]  # of matplotlib
    return buffer.getvalue()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lightning-rank report", description=_REPORT, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )  # fmt: skip
    add_inputs(parser, baseline=True)
    page = parser.add_argument_group("page")
    page.add_argument(
        "--queries", metavar="FILE", help="a table of queries: their ids, and columns to slice by or their text"
    )
    page.add_argument("--worst", type=int, default=5, metavar="N", help="queries shown that lost most")
    page.add_argument("--shown", type=int, default=10, metavar="K", help="ranks shown of each")
    page.add_argument("--title", help="of the page; by default it names the runs")
    out = parser.add_argument_group("output")
    out.add_argument("--output", "-o", required=True, metavar="FILE", help="the page")
    out.add_argument(
        "--figure", metavar="FILE", help="the differences by query, a panel per candidate, for papers: .pdf, .png or .svg"
    )
    out.add_argument("--overwrite", action="store_true", help="replace files that exist")
    return parser


_REPORT = """One self-contained HTML page for a comparison: the verdict in words, the measures with intervals and corrected p,
the difference on each query, slices, the queries that lost most side by side, conventions and counts.

  lightning-rank report --qrels qrels.txt --run baseline=bm25.txt --run candidate=dense.txt -o report.html
  lightning-rank report --qrels qrels.txt --run bm25.txt --run dense.txt --queries queries.csv -o report.html --figure bars.pdf
"""
