"""Whether one query is a rewording of another: shared words, or few edits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lightning_rank.online.events import load_polars

if TYPE_CHECKING:
    import polars

LONGEST = 256
"""Characters of a query that are compared."""


def folded(queries: polars.Series) -> polars.Series:
    """Lower case, and single spaces."""
    # Characters that fold to several (ß) are few, and Python knows them; texts are folded once each.
    pl = load_polars()
    distinct = queries.drop_nulls().unique()
    texts = [" ".join(text.casefold().split()) for text in distinct.to_list()]
    return queries.replace_strict(distinct, pl.Series(texts, dtype=pl.String), default=None, return_dtype=pl.String)


def similar(first: polars.Series, second: polars.Series) -> np.ndarray:
    """Whether folded texts share half the words of the shorter one, or differ by edits of at most half the longer one.

    The edits are what serves languages without spaces.
    """
    pl = load_polars()
    pairs = pl.DataFrame({"a": first, "b": second})
    distinct = pairs.unique(maintain_order=True)
    words = distinct.select(pl.col("a", "b").str.split(" ").list.unique())
    shared = words.select(pl.col("a").list.set_intersection("b").list.len())["a"]
    fewer = words.select(pl.min_horizontal(pl.col("a").list.len(), pl.col("b").list.len()))["a"]
    is_similar = (2 * shared.cast(pl.Int64) >= fewer.cast(pl.Int64)).to_numpy().copy()
    others = np.flatnonzero(~is_similar)
    rest = distinct[others]
    is_similar[others] = _close(rest["a"].to_list(), rest["b"].to_list())
    return pairs.join(
        distinct.with_columns(pl.Series("similar", is_similar)), on=["a", "b"], how="left", maintain_order="left"
    )["similar"].to_numpy()


def _close(first: list[str], second: list[str]) -> np.ndarray:
    """Edit distance / longer length <= 1/2, for pairs of texts."""
    a, b = ([text[:LONGEST] for text in texts] for texts in (first, second))
    lengths = np.array([[len(x), len(y)] for x, y in zip(a, b, strict=True)], dtype=np.int64).reshape(-1, 2)
    close = np.zeros(len(a), dtype=bool)
    # Texts of about the same lengths together, so that little of the tables is padding.
    order = np.lexsort((lengths[:, 1], lengths[:, 0]))
    for start in range(0, len(order), 4096):
        block = order[start : start + 4096]
        distance = _edit_distances([a[i] for i in block], [b[i] for i in block], lengths[block])
        close[block] = 2 * distance <= lengths[block].max(axis=1)
    return close


def _edit_distances(a: list[str], b: list[str], lengths: np.ndarray) -> np.ndarray:
    """Levenshtein's distance of pairs, a row of the table at a time for all pairs together."""
    x, y = _characters(a), _characters(b)
    column = np.arange(y.shape[1] + 1, dtype=np.int32)
    row = np.tile(column, (len(a), 1))
    answer = lengths[:, 1].astype(np.int32)
    for i in range(x.shape[1]):
        changed = np.empty_like(row)
        changed[:, 0] = i + 1
        changed[:, 1:] = np.minimum(row[:, 1:] + 1, row[:, :-1] + (x[:, i : i + 1] != y))
        # Insertions: the smallest entry to the left plus the way from there.
        row = np.minimum.accumulate(changed - column, axis=1) + column
        ends = lengths[:, 0] == i + 1
        answer[ends] = row[ends, lengths[ends, 1]]
    return answer


def _characters(texts: list[str]) -> np.ndarray:
    """[text, place] code points, 0 behind the end."""
    width = max(map(len, texts), default=0)
    array = np.array(texts, dtype=f"<U{max(width, 1)}")
    return array.view(np.uint32).reshape(len(texts), -1)[:, :width]
