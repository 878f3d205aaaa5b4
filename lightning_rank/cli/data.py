"""data convert and data inspect: files once into a memory-mapped data set, and what is in it."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Sequence
from typing import Any

from lightning_rank.cli.files import refuse_existing
from lightning_rank.data.cache import DTYPES, CachedDataset, convert, is_cache, open_cache
from lightning_rank.data.inspection import inspect
from lightning_rank.data.trec import writing


def run(args: Sequence[str]) -> None:
    """Run ``data convert`` or ``data inspect``.

    Raises:
        ValueError, OSError: bad input, a full disk, a damaged data set.
    """
    options = _parser().parse_args(args)
    if options.step == "inspect":
        refuse_existing(options.output, overwrite=options.overwrite, inputs=options.files)
    with warnings.catch_warnings():
        warnings.showwarning = _say  # type: ignore[assignment]  # it ignores where in the code it came from
        {"convert": _convert, "inspect": _inspect}[options.step](options)


def _convert(options: argparse.Namespace) -> None:
    data = open_cache(convert(options.files, options.cache, **_how(options)))
    facts = {"folder": str(data.folder), "queries": len(data), "items": len(data.grades), "features": data.num_features}
    if options.format == "json":
        print(json.dumps(facts))
    else:
        print(f"{data.folder}\n{len(data):,} queries, {len(data.grades):,} items, {data.num_features:,} features")


def _inspect(options: argparse.Namespace) -> None:
    if any(map(is_cache, options.files)):
        if len(options.files) > 1:
            raise ValueError("Of converted data sets one is inspected at a time; of files, several are one data set.")
        # Everything is read anyway, so everything is checked.
        _report(open_cache(options.files[0], verify="full"), options)
    elif options.cache is not None:
        _report(open_cache(convert(options.files, options.cache, **_how(options))), options)
    else:
        with tempfile.TemporaryDirectory() as folder:
            _report(open_cache(convert(options.files, folder, **_how(options))), options)


def _report(data: CachedDataset, options: argparse.Namespace) -> None:
    found = inspect(data, (data.manifest or {}).get("feature_names"))
    text = json.dumps(found.to_dict(), indent=1) if options.format == "json" else found.text()
    if options.output is None:
        print(text)
        return
    with writing(options.output, overwrite=options.overwrite) as file:
        file.write(f"{text}\n".encode())


def _how(options: argparse.Namespace) -> dict[str, Any]:
    columns = {part: value for part in ("query", "grade", "document") if (value := getattr(options, part)) is not None}
    if options.features is not None:
        columns["features"] = options.features.split(",")
    return {
        "num_features": options.num_features, "dtype": options.dtype, "columns": columns or None, "progress": True,
    }  # fmt: skip


def _say(message: Warning | str, *_: Any) -> None:
    print(f"lightning-rank: warning: {message}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lightning-rank")
    steps = parser.add_subparsers(dest="command", required=True).add_parser(
        "data", help="convert data sets, and look into them", description=__doc__
    ).add_subparsers(dest="step", required=True)  # fmt: skip
    convert = steps.add_parser("convert", help="into memory-mapped files, once", allow_abbrev=False)
    inspect = steps.add_parser(
        "inspect", help="queries, items, lengths, grades, features and queries that say nothing", allow_abbrev=False
    )
    for step in (convert, inspect):
        what = "; a folder that convert made" if step is inspect else ""
        step.add_argument(
            "files", nargs="+", help=f"LETOR text (also gzip), Parquet, CSV or TSV, several are read as one{what}"
        )
        step.add_argument(
            "--cache", required=step is convert, metavar="FOLDER", help="of converted data, as `cache` of LetorDataModule"
        )
        step.add_argument("--num-features", type=int, metavar="N", help="of LETOR text; the largest index in the files")
        step.add_argument("--dtype", choices=DTYPES, default="float32", help="of the features")
        for part in ("query", "grade", "document"):
            step.add_argument(f"--{part}", metavar="COLUMN", help="of tables; found by its usual names")
        step.add_argument("--features", metavar="COLUMN,...", help="of tables; all other columns of numbers")
        step.add_argument("--format", choices=("text", "json"), default="text")
    inspect.add_argument("--output", "-o", metavar="FILE", help="instead of printing")
    inspect.add_argument("--overwrite", action="store_true", help="replace a file that exists")
    return parser
