"""The event log: one row per search, impression, click, conversion or survey, brought into one form and read in pieces."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lightning_rank.extras import extra
from lightning_rank.stats.checks import check_choice, listed, number, whole
from lightning_rank.stats.results import Result

if TYPE_CHECKING:
    import polars

SEARCH, IMPRESSION, CLICK, CONVERSION, SURVEY = range(5)
"""Kinds of events, in the order of those of one time."""
EVENTS = ("search", "impression", "click", "conversion", "survey")
TEXTS = ("user", "session", "search", "query", "document", "arm")
NEEDED = ("timestamp", "user", "event")
SECOND = 1_000_000
"""Times are whole microseconds, so that a window of 30 seconds is one."""
OTHER = "event "
"""Of the counts by name, before the name of an event that is ignored."""
LATEST = 100_000_000_000
"""Seconds that no log has: the year 5138. A log in milliseconds has them."""


def load_polars() -> Any:
    """polars, imported when first needed.

    Raises:
        ModuleNotFoundError: it is not installed (the extra ``online``).
    """
    return extra("polars", "Event logs need", "online")


@dataclass(frozen=True)
class LogCounts(Result):
    """What was found in a log, and what was left out.

    Attributes:
        rows: rows read.
        ignored: rows with other names of events, left out; ``ignored_events``: their number by name.
        duplicates: copies of an event (same user, time, event, search and result) and second ``search`` rows of a search, left
            out.
        repeated_impressions: impressions of a result that its search had shown already; a result counts once.
        before_search: impressions and clicks more than ``clock_skew`` before their search, left out.
        skewed: impressions and clicks less than that before their search, taken to be at its time.
        without_search: searches that have impressions or clicks but no ``search`` row; they count as searches.
        never_shown: clicked results without an impression; a click implies one.
        mixed_users: users in two arms.
    """

    rows: int = 0
    ignored: int = 0
    duplicates: int = 0
    repeated_impressions: int = 0
    before_search: int = 0
    skewed: int = 0
    without_search: int = 0
    never_shown: int = 0
    mixed_users: int = 0
    ignored_events: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> LogCounts:
        """From counts by name, those of ignored events after ``OTHER``."""
        others = {name.removeprefix(OTHER): n for name, n in counts.items() if name.startswith(OTHER)}
        known = {name: n for name, n in counts.items() if not name.startswith(OTHER)}
        return cls(**known, ignored_events=dict(sorted(others.items(), key=lambda pair: (-pair[1], pair[0]))))

    def __str__(self) -> str:
        found = []
        for name, value in self.to_dict().items():
            if name != "ignored_events" and (value or name == "rows"):
                events = f" ({self._others()})" if name == "ignored" and self.ignored_events else ""
                found.append(f"{value:,} {name.replace('_', ' ')}{events}")
        return ", ".join(found)

    def _others(self) -> str:
        shown = []
        for name, n in list(self.ignored_events.items())[:5]:
            near = get_close_matches(name.strip().lower(), EVENTS, n=1, cutoff=0.75)
            shown.append(f"{name!r} {n:,}{f', is it {near[0]!r}?' if near else ''}")
        rest = len(self.ignored_events) - len(shown)
        return "; ".join(shown) + (f"; {rest:,} more" if rest else "")


def frame_of(events: Any) -> polars.DataFrame:
    """Events as a frame: a DataFrame of polars or pandas, a mapping of columns, or a list of rows."""
    pl = load_polars()
    if isinstance(events, pl.DataFrame):
        return events
    if isinstance(events, Mapping):
        return pl.DataFrame({str(name): _entries(pl, column) for name, column in events.items()}, strict=False)
    if isinstance(events, (str, bytes)):
        raise ValueError(f"`events` must be a table; to read the file {events!r} see `Signals.read`.")
    if isinstance(events, Sequence):
        if not events:
            raise ValueError("`events` must have columns; an empty list has none. Leave it out.")
        if strange := [row for row in events if not isinstance(row, Mapping)]:
            raise ValueError(
                f"`events` must be a table; a list must have a mapping per row, got {strange[0]!r}. Ratings alone are for "
                "`Satisfaction.update`."
            )
        names = dict.fromkeys(name for row in events for name in row)
        return pl.DataFrame({name: _entries(pl, [row.get(name) for row in events]) for name in names}, strict=False)
    if hasattr(events, "columns") and hasattr(events, "to_dict"):
        return pl.DataFrame({str(name): _of_pandas(pl, events[name]) for name in events.columns}, strict=False)
    raise ValueError(f"`events` must be a DataFrame, a mapping of columns or a list of rows, got {type(events).__name__}.")


def _of_pandas(pl: ModuleType, column: Any) -> Any:
    if column.dtype.kind in "biufM" and hasattr(column.dtype, "itemsize") and not hasattr(column.dtype, "tz"):
        return column.to_numpy()
    return _entries(pl, column.astype(object).where(column.notna(), None).tolist())


def _entries(pl: ModuleType, column: Any) -> Any:
    """A column that polars takes: whole numbers among floats are floats, and numbers among texts are texts."""
    entries = list(column) if not isinstance(column, pl.Series) else column
    if isinstance(entries, list):
        kinds = {type(entry) for entry in entries if entry is not None}
        if str in kinds and len(kinds) > 1:
            return [entry if entry is None else str(entry) for entry in entries]
        if bool in kinds and len(kinds) > 1:
            raise ValueError("A column must not have both booleans and other values.")
    return entries


def normalised(frame: polars.DataFrame, needed: Sequence[str] = ()) -> tuple[polars.DataFrame, Counter[str]]:
    """The events in one form: texts, microseconds, kinds as numbers; rows with other events left out and counted.

    Raises:
        ValueError: a column that is missing, a time or a user that is, a position below 1.
    """
    pl = load_polars()
    missing = [name for name in (*NEEDED, *needed) if name not in frame.columns]
    if missing:
        raise ValueError(f"The log has no column {listed(missing)}; it has {listed(frame.columns)}.")
    counts = Counter(rows=frame.height)
    kind = frame["event"].cast(pl.String).replace_strict(list(EVENTS), list(range(5)), default=None, return_dtype=pl.UInt8)
    frame = frame.with_columns(kind.alias("kind"))
    if kind.null_count():
        counts["ignored"] = kind.null_count()
        names = frame["event"].cast(pl.String).filter(kind.is_null()).fill_null("").value_counts()
        counts.update({f"{OTHER}{name}": n for name, n in names.iter_rows()})
        frame = frame.filter(pl.col("kind").is_not_null())
    times = _microseconds(pl, frame["timestamp"])
    columns = [times.alias("t"), frame["kind"]]
    for name in TEXTS:
        if name in frame.columns:
            column = frame[name]
            if column.dtype.is_float() and (column.drop_nulls() % 1 == 0).all():
                column = column.cast(pl.Int64)  # 7.0 is what a reader makes of 7 beside an empty field
            columns.append(column.cast(pl.String))
        else:
            columns.append(pl.Series(name, [None], dtype=pl.String).new_from_index(0, frame.height))
    if columns[2].null_count():
        raise ValueError(f"Every event must have a `user`, got {columns[2].null_count():,} without.")
    columns.append(_positions(pl, frame))
    columns.append(_ratings(pl, frame))
    return pl.DataFrame(columns), counts


def _microseconds(pl: ModuleType, times: polars.Series) -> polars.Series:
    if times.dtype == pl.String:
        parsed = times.str.to_datetime(time_unit="us", time_zone="UTC", strict=False)
        times = parsed if parsed.null_count() == times.null_count() else times.cast(pl.Float64, strict=False)
    if isinstance(times.dtype, pl.Datetime):
        times = times.dt.convert_time_zone("UTC") if times.dtype.time_zone else times
        result = times.dt.timestamp("us")
    elif times.dtype.is_numeric() or times.dtype == pl.Null:
        seconds = times.cast(pl.Float64).fill_nan(None)
        largest = seconds.abs().max()
        if largest is not None and largest > LATEST:
            raise ValueError(f"`timestamp` must be in seconds, got {largest:.0f}: that looks like milliseconds or less.")
        result = (seconds * SECOND).round().cast(pl.Int64)
    else:
        raise ValueError(f"`timestamp` must be seconds, a date with time or ISO 8601, got {times.dtype}.")
    if result.null_count():
        raise ValueError(
            f"Every event must have a `timestamp`, got {result.null_count():,} that are empty, NaN or no time."
        )
    return result


def _positions(pl: ModuleType, frame: polars.DataFrame) -> polars.Series:
    if "position" not in frame.columns:
        return pl.Series("position", [None], dtype=pl.Int64).new_from_index(0, frame.height)
    positions = frame["position"]
    if positions.dtype.is_float():
        positions = positions.fill_nan(None)
    positions = positions.cast(pl.Int64)
    lowest = positions.min()
    if lowest is not None and lowest < 1:
        raise ValueError(f"`position` must count from 1, got {lowest}. A log that counts from 0 needs 1 added.")
    return positions.alias("position")


def _ratings(pl: ModuleType, frame: polars.DataFrame) -> polars.Series:
    """Ratings; of booleans 0 and 1, to which 2^32 is added, as no scale has them."""
    if "rating" not in frame.columns:
        return pl.Series("rating", [None], dtype=pl.Float64).new_from_index(0, frame.height)
    ratings = frame["rating"]
    if ratings.dtype == pl.Boolean:
        return (ratings.cast(pl.Float64) + BOOLEAN).alias("rating")
    return ratings.cast(pl.Float64).fill_nan(None).alias("rating")


BOOLEAN = 2.0**32


def scan(path: str | Path, limit: Sequence[str]) -> polars.LazyFrame:
    """A file or a glob of CSV, Parquet or JSONL, not read yet, with those of the columns that it has."""
    pl = load_polars()
    suffix = Path(path).name.partition(".")[2].lower()
    kind = next((kind for kind in ("parquet", "jsonl", "ndjson", "csv", "tsv") if kind in suffix.split(".")), None)
    if kind == "parquet":
        frame = pl.scan_parquet(path)
    elif kind in ("jsonl", "ndjson"):
        frame = pl.scan_ndjson(path, infer_schema_length=10_000)
    elif kind in ("csv", "tsv"):
        separator = "\t" if kind == "tsv" else ","
        found = pl.scan_csv(path, separator=separator, infer_schema_length=10_000).collect_schema()
        types = {name: pl.String for name in (*TEXTS, "event") if name in found}
        # Numbers that are whole in the first rows need not be in the later ones.
        types |= {
            name: pl.Float64 for name in ("timestamp", "rating", "position") if name in found and found[name].is_numeric()
        }
        frame = pl.scan_csv(path, separator=separator, schema_overrides=types)
    else:
        raise ValueError(f"{path} must be a CSV, TSV, Parquet or JSONL file by its name.")
    have = frame.collect_schema().names()
    return frame.select([name for name in limit if name in have])


def read_pieces(
    sources: Sequence[str | Path], needed: Sequence[str], *, order: str, idle: float, chunk: int
) -> Iterator[tuple[polars.DataFrame, Counter[str], bool]]:
    """Normalised pieces of a log, and whether all sessions in a piece are whole.

    By ``order="time"`` rows come sorted by time (but for a disorder shorter than ``idle``), and the users that were idle for
    longer than that and the disorder are let go. What is within ``idle`` of the ends comes last and need not be whole, so that
    the next day can be merged to it. By ``"any"`` the rows are first spread over files by user, each of which fits the memory.

    Raises:
        ValueError: rows that are older than what has been let go.
    """
    check_choice("order", order, ("time", "any"))
    idle_us = round(number("idle", idle, above=0) * SECOND)
    whole("chunk", chunk, least=1)
    limit = tuple(dict.fromkeys((*NEEDED, *TEXTS, "position", "rating")))
    chunks = (normalised(batch, needed) for source in sources for batch in _batches(source, limit, chunk))
    yield from _by_time(chunks, idle_us, chunk) if order == "time" else _by_user(chunks, idle_us)


def _batches(source: str | Path, limit: Sequence[str], chunk: int) -> Iterator[polars.DataFrame]:
    pl = load_polars()
    try:
        rows = scan(source, limit)
        batches: Iterable[polars.DataFrame]
        if Path(source).suffix.lower() == ".parquet":
            # Slices need half the memory of a stream, which reads ahead.
            starts = range(0, rows.select(pl.len()).collect().item(), chunk)
            batches = (rows.slice(start, chunk).collect() for start in starts)
        else:
            batches = rows.collect_batches(chunk_size=chunk, maintain_order=True)
        yield from (batch for batch in batches if batch.height)
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"{source} must be a table of events, but cannot be read: {error}.") from error


def _span(piece: polars.DataFrame) -> tuple[int, int]:
    times = piece["t"].to_numpy()
    return int(times.min()), int(times.max())


OPEN, EDGE, CLOSED = range(3)
"""Users who may go on, who may have begun before the log, and who are over."""


def _by_time(
    chunks: Iterator[tuple[polars.DataFrame, Counter[str]]], idle: int, chunk: int
) -> Iterator[tuple[polars.DataFrame, Counter[str], bool]]:
    pl = load_polars()
    pool: list[polars.DataFrame] = []
    edges: list[polars.DataFrame] = []
    start = latest = 0
    oldest = None  # no row may be older; the users that were let go have ended at least `idle` before
    kept = 0
    for piece, counts in chunks:
        yield piece.clear(), counts, True
        if not piece.height:
            continue
        first, last = _span(piece)
        if oldest is None:
            start, latest, oldest = first, last, first - idle
        if first < oldest:
            raise ValueError(
                f"A log read by order='time' must be sorted by time, got an event {(oldest - first) / SECOND:,.0f} s older than "
                "what has been let go. Read it by order='any'."
            )
        start, latest = min(start, first), max(latest, last)
        pool.append(piece)
        # Looked through when it has grown by half, so that every row is looked at a few times only.
        if sum(part.height for part in pool) < max(3 * kept // 2, chunk):
            continue
        # By a hash, which is faster; two users of one hash are let go together.
        everyone = pl.concat(pool).with_columns(pl.col("user").hash().alias("u"))
        oldest = latest - idle
        seen = everyone.group_by("u").agg(pl.col("t").min().alias("first"), pl.col("t").max().alias("last"))
        is_gone, is_edge = pl.col("last") < oldest - idle, pl.col("first") <= start + idle
        place = pl.when(~is_gone).then(OPEN).when(is_edge).then(EDGE).otherwise(CLOSED).cast(pl.UInt8).alias("place")
        parts = everyone.join(seen.select("u", place), on="u", how="left").drop("u").partition_by("place", as_dict=True)
        split = {place: part.drop("place") for (place,), part in parts.items()}
        del everyone, parts
        pool = [split[OPEN]] if OPEN in split else []
        kept = sum(part.height for part in pool)
        if EDGE in split:
            edges.append(split[EDGE])
        if CLOSED in split:
            yield split[CLOSED], Counter(), True
    rest = [part for part in (*edges, *pool) if part.height]
    if rest:
        yield pl.concat(rest), Counter(), False


def _by_user(
    chunks: Iterator[tuple[polars.DataFrame, Counter[str]]], idle: int
) -> Iterator[tuple[polars.DataFrame, Counter[str], bool]]:
    pl = load_polars()
    parts = 64
    spans: list[tuple[int, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        for i, (piece, counts) in enumerate(chunks):
            yield piece.clear(), counts, True
            if not piece.height:
                continue
            spans.append(_span(piece))
            group = (piece["user"].hash(seed=0) % parts).cast(pl.UInt32).alias("part")
            for (part,), rows in piece.with_columns(group).partition_by("part", as_dict=True, include_key=False).items():
                target = Path(folder, str(part))
                target.mkdir(exist_ok=True)
                rows.write_ipc(target / f"{i}.arrow", compression="lz4")
        start, end = min((first for first, _ in spans), default=0), max((last for _, last in spans), default=0)
        for target in sorted(Path(folder).iterdir()):
            rows = pl.concat([pl.read_ipc(path) for path in sorted(target.iterdir())]).sort("user", "t")
            # Stretches of a user's events without a pause longer than `idle`; those near the ends may go on in another log.
            pause = (pl.col("t").diff() > idle) | (pl.col("user") != pl.col("user").shift())
            rows = rows.with_columns(pause.fill_null(value=True).cum_sum().alias("run"))
            ends = rows.group_by("run").agg(pl.col("t").min().alias("first"), pl.col("t").max().alias("last"))
            edge = ends.filter((pl.col("first") <= start + idle) | (pl.col("last") >= end - idle)).select("run")
            yield rows.join(edge, on="run", how="anti").drop("run"), Counter(), True
            yield rows.join(edge, on="run", how="semi").drop("run"), Counter(), False
