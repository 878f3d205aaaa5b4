"""Tables in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print text in columns, the first one aligned left and the others right; with rich where it is installed."""
    if find_spec("rich") is not None and sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(title=title, title_justify="left")
        for i, name in enumerate(header):
            table.add_column(name, justify="left" if i == 0 else "right")
        for row in rows:
            table.add_row(*row)
        Console().print(table)
        return
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    print(title)
    for row in (header, ["-" * width for width in widths], *rows):
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
