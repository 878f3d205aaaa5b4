"""Ratings of users, split into a past and the held-out items that a recommender should find."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_rank.data.runs import Judgements, polars, text_column

if TYPE_CHECKING:
    import polars as pl

_COLUMNS: dict[str, tuple[str, ...]] = {
    "user": ("user", "user_id", "userid"),
    "item": ("item", "item_id", "itemid", "movie", "movie_id", "movieid"),
    "rating": ("rating", "grade", "score"),
    "time": ("time", "timestamp"),
}


@dataclass(frozen=True, eq=False, repr=False)
class Ratings:
    """Who rated what, how, and when.

    Attributes:
        frame: a polars DataFrame with the columns ``user``, ``item`` (text), ``rating`` and ``time`` (numbers; time may be
            missing).

    Example:
        >>> ratings = Ratings.from_columns(["u1", "u1", "u2"], ["a", "b", "a"], [5, 3, 4], [10, 20, 15])
        >>> past, held_out = ratings.leave_last_out()
        >>> held_out.to_dict()
        {'u1': {'b': 3.0}}
    """

    frame: pl.DataFrame

    @classmethod
    def from_columns(
        cls, user: Iterable[Any], item: Iterable[Any], rating: Iterable[float], time: Iterable[float] | None = None
    ) -> Ratings:
        """From columns of equal length; ids may be whole numbers, and become text.

        Raises:
            ValueError: lengths differ, an id is missing, a rating or time is no finite number.
        """
        pl = polars()
        columns = {"user": text_column("user", user), "item": text_column("item", item)}
        for name, values in (("rating", rating), ("time", time)):
            if values is not None:
                numbers = np.asarray(values if hasattr(values, "__array__") else list(values), dtype=np.float64)
                if not np.isfinite(numbers).all():
                    raise ValueError(f"A {name} must be a finite number, got {numbers[~np.isfinite(numbers)][0]}.")
                columns[name] = pl.Series(numbers)
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"The columns must be of one length, got {lengths}.")
        if not lengths["user"]:
            raise ValueError("There is no rating.")
        return cls(pl.DataFrame(columns))

    def __len__(self) -> int:
        return len(self.frame)

    def __repr__(self) -> str:
        users, items = self.frame["user"].n_unique(), self.frame["item"].n_unique()
        return f"<Ratings: {len(self):,} of {users:,} users on {items:,} items>"

    def leave_last_out(self, number: int = 1) -> tuple[Ratings, Judgements]:
        """Hold out the last ``number`` ratings of each user; the items must be found from those before.

        Users with no more than ``number`` ratings stay in the past alone. Of ratings at the same time, the later row is later.

        Raises:
            ValueError: there is no time.
        """
        self._needs_time("leave_last_out")
        pl = polars()
        place = pl.int_range(pl.len(), dtype=pl.Int64).over("user")
        ordered = self.frame.sort("time", maintain_order=True).with_columns(
            place.alias("place"), pl.len().over("user").alias("of")
        )
        held_out = (pl.col("place") >= pl.col("of") - number) & (pl.col("of") > number)
        return self._split(ordered, held_out)

    def after(self, time: float) -> tuple[Ratings, Judgements]:
        """Hold out the ratings at or after ``time``: what a system that was trained before it would meet.

        Raises:
            ValueError: there is no time, or nothing on one side of it.
        """
        self._needs_time("after")
        return self._split(self.frame, polars().col("time") >= time)

    def random(self, share: float = 0.2, *, seed: int = 0) -> tuple[Ratings, Judgements]:
        """Hold out this share of each user's ratings, drawn at random, rounded down; it looks into the future of the past.

        Raises:
            ValueError: the share is not between 0 and 1.
        """
        if not 0 < share < 1:
            raise ValueError(f"`share` must be between 0 and 1, got {share!r}.")
        pl = polars()
        drawn = pl.Series("drawn", np.random.default_rng(seed).random(len(self)))
        rank = pl.col("drawn").rank("ordinal").over("user")
        return self._split(self.frame.with_columns(drawn), rank <= (pl.len().over("user") * share).floor())

    def _needs_time(self, what: str) -> None:
        if "time" not in self.frame.columns:
            raise ValueError(f"`{what}` needs the time of each rating, and there is none; see `random`.")

    def _split(self, frame: pl.DataFrame, held_out: pl.Expr) -> tuple[Ratings, Judgements]:
        pl = polars()
        marked = frame.with_columns(held_out.alias("held out"))
        test = marked.filter(pl.col("held out"))
        past = marked.filter(~pl.col("held out")).select(self.frame.columns)
        if not len(test) or not len(past):
            raise ValueError(f"Of {len(frame):,} ratings {len(test):,} were held out: there must be some on both sides.")
        # Rated twice, the last rating is what the user thinks.
        test = test.unique(["user", "item"], keep="last", maintain_order=True)
        return Ratings(past), Judgements.from_columns(test["user"], test["item"], test["rating"])


def read_ratings(path: str | Path, *, columns: Mapping[str, str] | None = None) -> Ratings:
    """Read ratings from a CSV, TSV, Parquet or JSON lines file with a header.

    Args:
        path: the file; anything that does not end in ``.tsv``, ``.parquet`` or ``.jsonl`` is taken for CSV.
        columns: which column is the ``user``, ``item``, ``rating``, ``time``; what is left out is found by its usual names.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a column is missing (but time), a rating is no number.
    """
    pl = polars()
    path, columns = Path(path), columns or {}
    if not path.is_file():
        raise FileNotFoundError(f"There is no file at '{path}'.")
    try:
        if path.suffix == ".parquet":
            frame = pl.read_parquet(path)
        elif path.suffix in (".jsonl", ".ndjson"):
            frame = pl.read_ndjson(path)
        else:
            frame = pl.read_csv(path, separator="\t" if path.suffix == ".tsv" else ",", infer_schema=False)
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"{path}: cannot be read: {str(error).splitlines()[0]}.") from None
    lower = {name.strip().lower(): name for name in reversed(frame.columns)}
    found = {part: next((lower[name] for name in names if name in lower), None) for part, names in _COLUMNS.items()} | dict(
        columns
    )
    for part, name in found.items():
        if name not in frame.columns and (part != "time" or part in columns):
            raise ValueError(f"{path}: there is no column for the {part}; there is {', '.join(frame.columns)}.")
    numbers = {}
    for part in ("rating", "time"):
        name = found[part]
        if name is None:
            continue
        numbers[part] = frame[name].cast(pl.Float64, strict=False)
        if numbers[part].null_count():
            row = numbers[part].is_null().arg_max()
            raise ValueError(f"{path}:{row + 2}: the {part} must be a number, got {frame[name][row]!r}.")
    return Ratings.from_columns(frame[found["user"]], frame[found["item"]], numbers["rating"], numbers.get("time"))
