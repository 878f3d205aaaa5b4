"""Results as text: Markdown, LaTeX, JSON, and the lines that trec_eval prints."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

from lightning_rank.offline.evaluate import Evaluation
from lightning_rank.offline.measures import Measure

FORMATS = ("table", "markdown", "latex", "json", "trec_eval")


def trec_lines(result: Evaluation, *, per_query: bool = False) -> Iterator[str]:
    """The lines of trec_eval: measure, query or ``all``, value with four decimals; with ``per_query`` as by its ``-q``."""
    if per_query:
        for number, query in enumerate(result.query_ids):
            for measure in result.measures:
                value = result.values[measure.name][number]
                if measure.over_queries != "geometric" and measure.name != "num_q" and not np.isnan(value):
                    yield _trec_line(measure, query, value)
    yield f"{'runid':<22}\tall\t{result.tag}"
    for measure in result.measures:
        yield _trec_line(measure, "all", result[measure.name].value)


def _trec_line(measure: Measure, query: str, value: float) -> str:
    return f"{measure.trec_name:<22}\t{query}\t{f'{value:.0f}' if measure.is_count else f'{value:6.4f}'}"


def evaluations(results: Sequence[Evaluation], form: str, *, per_query: bool = False) -> str:
    """Some evaluations of the same measures as text, in one of ``FORMATS``."""
    if form == "trec_eval":
        return "\n".join(line for result in results for line in trec_lines(result, per_query=per_query))
    if form == "json":
        return json.dumps([result.to_dict() for result in results], indent=2, ensure_ascii=False)
    if form == "table":
        return "\n\n".join(map(str, results))
    header = ["measure", *(result.run or "run" for result in results)]
    rows = [
        [measure.name, *(_with_interval(result, measure, "--" if form == "latex" else "–") for result in results)]  # noqa: RUF001
        for measure in results[0].measures
    ]
    notes = [f"{result.run}: {line}" if len(results) > 1 else line for result in results for line in result.notes()]
    return (markdown if form == "markdown" else latex)(header, rows, notes)


def _with_interval(result: Evaluation, measure: Measure, dash: str) -> str:
    estimate = result[measure.name]
    value = f"{estimate.value:,.0f}" if measure.is_count else f"{estimate.value:.4f}"
    return value if math.isnan(estimate.low) else f"{value} ({estimate.low:.4f}{dash}{estimate.high:.4f})"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """A Markdown table with notes under it."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    cells = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join([*cells, "", *(f"* {note}" for note in notes)])


def latex(header: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """A LaTeX tabular for the package booktabs, the notes as comments."""
    body = [" & ".join([_tex(row[0]), *map(_tex_numbers, row[1:])]) + r" \\" for row in rows]
    return "\n".join(
        [
            *(f"% {note}" for note in notes),
            rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
            r"\toprule",
            " & ".join(map(_tex, header)) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


_TEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


def _tex(text: str) -> str:
    return text.translate(_TEX)


def _tex_numbers(text: str) -> str:
    """With arrows, and minus signs for the hyphens before numbers, but for the dashes of ``--``."""
    return re.sub(r"(?<![\w-])-(?=[\d.])|(?<=\de)-(?=\d)", "$-$", _tex(text).replace("->", r"$\to$"))
