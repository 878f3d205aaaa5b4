"""Runs and judgements: what a system retrieved for each query, and how relevant documents are to it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from lightning_rank.extras import extra

if TYPE_CHECKING:
    import polars as pl

T = TypeVar("T", bound="DocumentLists")

# Odd, so that queries of the same document get different keys.
_MIX = np.uint64(0x9E3779B97F4A7C15)
# Documents that are looked at together for repeats: what fits the processor's cache sorts fastest.
_BLOCK = 1 << 16


def polars() -> Any:
    """The module polars, imported when first used.

    Raises:
        ModuleNotFoundError: it is not installed (the extra ``files``).
    """
    return extra("polars", "Runs and judgements need", "files")


def pandas() -> Any:
    """The module pandas, imported when first used.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "A pandas DataFrame needs pandas: pip install pandas. `to_polars` does without."
        ) from error
    return pandas


@dataclass(frozen=True, eq=False, repr=False)
class DocumentLists:
    """Documents of each query, each with a number. Ids are text: ``007`` is not ``7``.

    Attributes:
        query_ids: the queries, in the order in which they first came.
        offsets: ``[query + 1]`` int64: query q is ``offsets[q]:offsets[q + 1]``.
        documents: ``[document]`` ids, a polars Series of text, in the order in which they came within the query.
        values: ``[document]`` float64.
        name: what tables call it.
        tag: what a run calls itself in its file.
    """

    query_ids: list[str]
    offsets: np.ndarray
    documents: pl.Series
    values: np.ndarray
    name: str = ""
    tag: str = ""

    _kind: ClassVar[str] = "list"
    _value: ClassVar[str] = "value"
    _may_be_infinite: ClassVar[bool] = False

    @classmethod
    def from_columns(
        cls: type[T],
        query: Iterable[Any],
        document: Iterable[Any],
        value: Iterable[float],
        *,
        name: str = "",
        strict: bool = False,
    ) -> T:
        """From three columns of equal length: lists, arrays or Series; ids may be whole numbers, and become text.

        Raises:
            ValueError: lengths differ, no rows, an id that is missing or a fraction, a value that is NaN, an infinite
                grade; judgements that contradict one another; with ``strict``, a repeated document.
        """
        queries, documents = text_column("query", query), text_column("document", document)
        numbers = np.asarray(list(value) if not hasattr(value, "__array__") else value, dtype=np.float64)
        lengths = (len(queries), len(documents), len(numbers))
        if len(set(lengths)) > 1:
            raise ValueError(f"The columns query, document and {cls._value} must be of one length, got {lengths}.")
        runs = queries.rle().struct.unnest()
        return cls.from_pieces([(runs, documents, numbers)], name=name, strict=strict)

    @classmethod
    def from_pieces(
        cls: type[T], pieces: Sequence[tuple[pl.DataFrame, pl.Series, np.ndarray]], *, name: str = "", strict: bool = False
    ) -> T:
        """From pieces of a table: the runs of equal query ids (``len``, ``value``), document ids, values.

        Raises:
            ValueError: as ``from_columns``.
        """
        pl = polars()
        if not pieces or not sum(len(documents) for _, documents, _ in pieces):
            raise ValueError(f"{name or 'The ' + cls._kind}: there is no line in it, so there is nothing to evaluate.")
        runs = pl.concat([piece[0] for piece in pieces])
        documents = pl.concat([piece[1] for piece in pieces], rechunk=False)
        values = np.concatenate([piece[2] for piece in pieces])
        bad = np.isnan(values) if cls._may_be_infinite else ~np.isfinite(values)
        if bad.any():
            row = int(bad.argmax())
            raise ValueError(
                f"{name or 'The ' + cls._kind}: a {cls._value} must be a {'' if cls._may_be_infinite else 'finite '}number, got "
                f"{values[row]:g} for the document {documents[row]!r} (row {row + 1})."
            )
        queries = runs["value"].unique(maintain_order=True)
        lengths = runs["len"].to_numpy().astype(np.int64)
        if len(queries) == len(runs):
            counts, order = lengths, None
        else:
            numbered = pl.DataFrame({"value": queries, "number": np.arange(len(queries))})
            number = runs.select("value").join(numbered, on="value", how="left", maintain_order="left")["number"].to_numpy()
            counts = np.bincount(number, weights=lengths, minlength=len(queries)).astype(np.int64)
            # Neighbouring runs of one query, as where two pieces of a file meet, need no sort.
            order = None if (np.diff(number) >= 0).all() else np.argsort(np.repeat(number, lengths), kind="stable")
        if order is not None:
            documents, values = documents.gather(order), values[order]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        lists = cls(queries.to_list(), offsets, documents, values, name)
        return lists._without_repeats(strict)

    @classmethod
    def from_dict(cls: type[T], lists: Mapping[Any, Mapping[Any, float]], *, name: str = "", strict: bool = False) -> T:
        """From ``{query: {document: value}}``; a query without documents is left out.

        Raises:
            TypeError: it is no such mapping.
            ValueError: as ``from_columns``.
        """
        wrong = None if isinstance(lists, Mapping) else f"got {type(lists).__name__}"
        for query, of_query in lists.items() if wrong is None else ():
            if not isinstance(of_query, Mapping):
                wrong = f"got {type(of_query).__name__} for the query {query!r}"
        if wrong is not None:
            raise TypeError(f"{cls.__name__}.from_dict takes {{query: {{document: {cls._value}}}}}, {wrong}.")
        return cls.from_columns(
            [query for query, of_query in lists.items() for _ in of_query],
            [document for of_query in lists.values() for document in of_query],
            np.array([value for of_query in lists.values() for value in of_query.values()], dtype=np.float64),
            name=name, strict=strict,
        )  # fmt: skip

    def to_dict(self) -> dict[str, dict[str, float]]:
        """``{query: {document: value}}``."""
        documents, values, bounds = self.documents.to_list(), self.values.tolist(), self.offsets.tolist()
        return {
            query: dict(zip(documents[start:end], values[start:end], strict=True))
            for query, start, end in zip(self.query_ids, bounds, bounds[1:], strict=False)
        }

    def to_polars(self) -> pl.DataFrame:
        """A row per document: query, document and the number."""
        pl = polars()
        queries = pl.Series("query", self.query_ids, dtype=pl.String).gather(self.query_of_row)
        return pl.DataFrame({"query": queries, "document": self.documents, self._value: self.values})

    def to_pandas(self) -> Any:
        """The same as a pandas DataFrame."""
        return pandas().DataFrame({name: column.to_list() for name, column in self.to_polars().to_dict().items()})

    @property
    def query_of_row(self) -> np.ndarray:
        """``[document]`` the number of the query."""
        return np.repeat(np.arange(len(self.query_ids)), self.lengths)

    @property
    def lengths(self) -> np.ndarray:
        """``[query]`` documents of each query."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.query_ids)

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"<{type(self).__name__}{name}: {len(self):,} queries, {len(self.documents):,} documents>"

    def _repr_html_(self) -> str:
        frame = self.to_polars()
        return f"<p>{escape(repr(self)[1:-1])}</p>{frame.head(10)._repr_html_()}"

    # Repeated documents -----------------------------------------------------------------------------------------------

    def _repeats(self) -> pl.DataFrame | None:
        """Rows of documents that stand several times in a query; None where there are none."""
        pl = polars()
        # Rows of different keys differ; of equal keys the ids decide.
        of_query = np.arange(1, len(self) + 1, dtype=np.uint64) * _MIX
        bounds = self.offsets
        firsts = np.unique(np.searchsorted(bounds, np.arange(0, bounds[-1], _BLOCK), "right") - 1)
        found = []
        for first, last in zip(firsts, [*firsts[1:], len(self)], strict=True):
            start, end = bounds[first], bounds[last]
            hashes = self.documents.slice(start, end - start).hash().to_numpy()
            keys = hashes + np.repeat(of_query[first:last], np.diff(bounds[first : last + 1]))
            in_order = np.sort(keys)
            twice = in_order[1:][in_order[1:] == in_order[:-1]]
            if len(twice):
                found.append(start + np.flatnonzero(np.isin(keys, twice)))
        if not found:
            return None
        row = np.concatenate(found)
        rows = pl.DataFrame(
            {"query": self.query_of_row[row], "document": self.documents.gather(row), "value": self.values[row], "row": row}
        )
        rows = rows.filter(pl.struct("query", "document").is_duplicated())
        return rows if len(rows) else None

    def _without_repeats(self: T, strict: bool) -> T:
        repeats = self._repeats()
        if repeats is None:
            return self
        pl = polars()
        kept = self._kept(repeats)["row"]
        dropped = np.setdiff1d(repeats["row"].to_numpy(), kept.to_numpy())
        row = int(dropped[0])
        query = self.query_ids[int(np.searchsorted(self.offsets, row, "right")) - 1]
        found = (
            f"{self.name or 'The ' + self._kind}: {len(dropped):,} {self._repeated(len(dropped))}, "
            f"for example {self.documents[row]!r} of the query {query!r}"
        )
        if strict:
            raise ValueError(f"{found}. Without `strict` {self._rule}.")
        warnings.warn(f"{found}; {self._rule}.", stacklevel=4)
        keep = np.ones(len(self.documents), bool)
        keep[dropped] = False
        counts = np.add.reduceat(keep, self.offsets[:-1].clip(max=len(keep) - 1)) * (self.lengths > 0)
        return type(self)(
            self.query_ids, np.concatenate([[0], np.cumsum(counts)]), self.documents.filter(pl.Series(keep)),
            self.values[keep], self.name,
        )  # fmt: skip

    _rule: ClassVar[str] = ""

    def _kept(self, repeats: pl.DataFrame) -> pl.DataFrame:
        raise NotImplementedError

    @staticmethod
    def _repeated(number: int) -> str:
        raise NotImplementedError


class Run(DocumentLists):
    """What a system retrieved: documents of each query with scores, higher is better. The order is that of the scores.

    A repeated document of a query counts once, at its best rank.

    Example:
        >>> run = Run.from_dict({"q1": {"d1": 0.3, "d2": 0.8}, "q2": {"d7": 1.0}}, name="bm25")
        >>> run
        <Run 'bm25': 2 queries, 3 documents>
        >>> run.top("q1", 1)
        [('d2', 0.8)]
    """

    _kind, _value, _may_be_infinite = "run", "score", True
    _rule = "a repeated document of a query counts once, at its best rank"

    @property
    def scores(self) -> np.ndarray:
        """``[document]`` scores."""
        return self.values

    def _kept(self, repeats: pl.DataFrame) -> pl.DataFrame:
        pl = polars()
        best_first = repeats.sort(["value", "row"], descending=[True, False])
        return best_first.unique(["query", "document"], keep="first", maintain_order=True).select(pl.col("row").sort())

    @staticmethod
    def _repeated(number: int) -> str:
        return "repeated documents" if number > 1 else "repeated document"

    def order(self, ties: str = "document") -> np.ndarray | None:
        """The rows in rank order, query by query; None where they already are.

        Args:
            ties: documents of equal score come by ``"document"``, the larger id first (by its bytes, as trec_eval has it), or
                in the order of ``"arrival"``.
        """
        scores, starts = self.values, self.offsets[:-1]
        inside = np.ones(len(scores), bool)
        inside[starts[starts < len(scores)]] = False
        rising = scores[1:] > scores[:-1]
        rising &= inside[1:]
        same = self.tied_with_above(None)
        if not rising.any() and not same.any():
            return None
        order = None
        if rising.any():
            order = np.lexsort((-scores, self.query_of_row))
            same = self.tied_with_above(order)
        if ties == "document" and same.any():
            order = np.arange(len(scores)) if order is None else order
            # Only tied rows: an id is slow to compare.
            tied = same.copy()
            tied[:-1] |= same[1:]
            at = np.flatnonzero(tied)
            group = np.cumsum(~same[at])
            pl = polars()
            by_id = pl.DataFrame({"group": group, "document": self.documents.gather(order[at])})
            by_id = by_id.select(pl.arg_sort_by("group", "document", descending=[False, True]))
            order[at] = order[at][by_id.to_series().to_numpy()]
        return order

    def tied_with_above(self, order: np.ndarray | None) -> np.ndarray:
        """``[document]`` bool in rank order: the score is that of the document above it in the query."""
        scores = self.values if order is None else self.values[order]
        same = np.zeros(len(scores), bool)
        np.equal(scores[1:], scores[:-1], out=same[1:])
        starts = self.offsets[:-1]
        same[starts[starts < len(scores)]] = False
        return same

    def top(self, query: str, k: int) -> list[tuple[str, float]]:
        """The first ``k`` documents of a query and their scores; none where the run has no such query."""
        if query not in self.query_ids:
            return []
        number = self.query_ids.index(query)
        start, end = self.offsets[number : number + 2].tolist()
        part = Run([query], np.array([0, end - start]), self.documents.slice(start, end - start), self.values[start:end])
        rows = part.order()
        rows = (np.arange(end - start) if rows is None else rows)[:k]
        return list(zip(part.documents.gather(rows).to_list(), part.values[rows].tolist(), strict=True))


class Judgements(DocumentLists):
    """Relevance of documents to queries (qrels): grades, 0 or below is not relevant.

    Example:
        >>> Judgements.from_dict({"q1": {"d1": 1, "d2": 0}})
        <Judgements: 1 queries, 2 documents>
    """

    _kind, _value = "judgements", "grade"
    _rule = "a repeated judgement counts once"

    @property
    def grades(self) -> np.ndarray:
        """``[document]`` grades."""
        return self.values

    def _kept(self, repeats: pl.DataFrame) -> pl.DataFrame:
        pl = polars()
        differing = repeats.filter((pl.col("value").n_unique() > 1).over("query", "document"))
        if len(differing):
            query, document = differing["query"][0], differing["document"][0]
            grades = differing.filter((pl.col("query") == query) & (pl.col("document") == document))["value"].to_list()
            number = differing.select(pl.struct("query", "document").n_unique()).item()
            raise ValueError(
                f"{self.name or 'The judgements'}: {number:,} documents have judgements that contradict one another, for "
                f"example {document!r} of the query {self.query_ids[query]!r}: {', '.join(f'{g:g}' for g in grades)}. Keep one."
            )
        return repeats.unique(["query", "document"], keep="first", maintain_order=True).select(pl.col("row").sort())

    @staticmethod
    def _repeated(number: int) -> str:
        return "repeated judgements" if number > 1 else "repeated judgement"


def check_lists(what: str, lists: object, cls: type[DocumentLists]) -> None:
    """Raise unless it is a ``Run``, or ``Judgements``, whichever is asked for.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(lists, cls):
        hint = f": {cls.__name__}.from_dict makes one of a dictionary" if isinstance(lists, Mapping) else ""
        if isinstance(lists, DocumentLists):
            hint = ": the judgements come first, then what is judged"
        raise TypeError(f"`{what}` must be {cls.__name__}, got {type(lists).__name__}{hint}.")


def text_column(name: str, ids: Iterable[Any]) -> pl.Series:
    """Ids as a Series of text; whole numbers are written as such.

    Raises:
        ValueError: an id is missing, or no text and no whole number: a fraction such as 7.0 once was another id.
    """
    pl = polars()
    try:
        series = ids if isinstance(ids, pl.Series) else pl.Series(name, ids if hasattr(ids, "__array__") else list(ids))
    except TypeError as error:
        raise ValueError(
            f"The ids of the column {name} must be of one type, all text or all whole numbers: {error}."
        ) from None
    if not (series.dtype in (pl.String, pl.Categorical, pl.Enum) or series.dtype.is_integer()):
        if series.dtype == pl.Null or not len(series):
            return series.cast(pl.String)
        raise ValueError(
            f"The ids of the column {name} must be text or whole numbers, got {series.dtype}, for example {series[0]!r}: "
            "write them as they stand in the other file."
        )
    if series.null_count():
        row = series.is_null().arg_max() + 1
        raise ValueError(f"The column {name} lacks an id in {series.null_count():,} rows, first in row {row}.")
    return series.cast(pl.String)
