"""explain: a page on which rankings are reordered and their metrics move."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_rank.cli.files import refuse_existing
from lightning_rank.cli.offline import add_files, input_files, plain_warnings, read_inputs


def run(args: Sequence[str]) -> None:
    """Run ``explain``.

    Raises:
        ValueError, OSError: bad input, before anything is written.
    """
    options = _parser().parse_args(args[1:])
    with plain_warnings():
        _run(options)


def _run(options: argparse.Namespace) -> None:
    inputs = [*input_files(options), options.query_texts, options.document_texts]
    refuse_existing(options.output, overwrite=options.overwrite, inputs=inputs)
    judgements, runs = read_inputs(options)
    from lightning_rank.report.explain import explain_page

    given: dict[str, Any] = {name: getattr(options, name) for name in ("missing", "depth", "min_relevance")}
    given["convention"] = None if options.convention == "lightning_rank" else options.convention
    chosen = {name: getattr(options, name) for name in ("gain", "ties", "denominator")}
    page = explain_page(
        judgements, runs, options.measure, queries=options.query, documents=options.documents,
        query_texts=_texts(options.query_texts), document_texts=_texts(options.document_texts), lang=options.lang,
        max_bytes=options.max_kb * 1000, **given, **{name: value for name, value in chosen.items() if value is not None},
    )  # fmt: skip
    page.write(options.output, overwrite=options.overwrite)
    size = Path(options.output).stat().st_size / 1000
    print(f"{options.output}: {len(page.queries):,} of {page.total:,} queries, {size:.0f} kB")


def _texts(path: str | None) -> dict[str, str]:
    """Ids and what they stand for, separated by a tab."""
    texts: dict[str, str] = {}
    if path is None:
        return texts
    with Path(path).open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            name, tab, text = line.rstrip("\r\n").partition("\t")
            if line.strip() and not tab:
                raise ValueError(f"{path}:{number}: a line must be an id, a tab and a text, got {line.strip()[:60]!r}.")
            texts[name] = text
    return texts


def _parser() -> argparse.ArgumentParser:
    # Choices are checked where they mean something, which says more.
    parser = argparse.ArgumentParser(
        prog="lightning-rank explain", description=_DESCRIPTION, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    files = add_files(parser, baseline=True)
    files.add_argument("--query-texts", metavar="FILE", help="lines of an id, a tab, and what is shown beside it")
    files.add_argument("--document-texts", metavar="FILE", help="the same for documents")
    what = parser.add_argument_group("what is shown")
    what.add_argument("--query", action="append", metavar="ID", help="only this one; may be given several times")
    what.add_argument(
        "--measure", default="ndcg@10", help="by which queries are sorted; its cutoff is where the page begins (ndcg@10)"
    )
    what.add_argument("--documents", type=int, metavar="N", help="of each query; by default 20, or as many as the cutoff")
    what.add_argument("--convention", metavar="TOOL", help="options of a tool, such as trec_eval")
    what.add_argument("--missing", default="zero", metavar="zero|skip|error", help="what a query counts that a run misses")
    what.add_argument("--depth", "-M", type=int, metavar="N", help="documents of each query that count, after sorting")
    what.add_argument("--min-relevance", "-l", type=float, default=1, metavar="GRADE", help="relevant from this grade on")
    what.add_argument("--gain", metavar="exp2|linear")
    what.add_argument("--ties", metavar="average|stable|optimistic|pessimistic")
    what.add_argument("--denominator", metavar="relevant|cutoff|hits")
    out = parser.add_argument_group("output")
    out.add_argument("--output", "-o", default="explain.html", metavar="FILE", help="the page (explain.html)")
    out.add_argument("--lang", default="en", metavar="en|zh", help="language of the page (en)")
    out.add_argument("--max-kb", type=int, default=400, metavar="KB", help="of the page; queries beyond are left out (400)")
    out.add_argument("--overwrite", action="store_true", help="replace a file that exists")
    return parser


_DESCRIPTION = """One page of HTML, for any browser and without network, on which rankings are reordered, grades edited, and
every metric moves.

  lightning-rank explain --qrels qrels.txt --run baseline=bm25.txt --run candidate=dense.txt --output page.html
"""
