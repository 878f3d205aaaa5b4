"""Shared by the tests: batches of queries in every layout, strategies that draw them, golden values."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

# Threads cost more than they save on a handful of items.
torch.set_num_threads(1)

# No deadline: the first call of a torch operation is slow. `--hypothesis-profile=thorough` looks for rare failures. Under CI
# both build on hypothesis's own profile "ci", which is deterministic.
settings.register_profile("quick", parent=settings.default, deadline=None, max_examples=12)
settings.register_profile("thorough", parent=settings.default, deadline=None, max_examples=1000)
settings.load_profile("quick")

Query = dict[str, list[float]]
"""Columns of a query, a number per item: ``preds``, ``target``, and ``weight`` or ``judged`` where a test needs them."""

LAYOUTS = ("padded", "offsets", "indexes")
TIES = ("average", "stable", "optimistic", "pessimistic")
RTOL = {torch.float64: 1e-9}
"""Relative accuracy by dtype of the scores; 1e-5 for all others."""


def lay_out(
    queries: Sequence[Query],
    layout: str,
    *,
    dtypes: dict[str, torch.dtype] | None = None,
    seed: int = 0,
    ids: Sequence[int] | None = None,
) -> dict[str, Tensor]:
    """Queries as the arguments of a metric or a loss; columns are float64 unless ``dtypes`` says otherwise.

    ``padded`` has garbage in the padding and holes between the items, ``indexes`` mixes the items of all queries; the items
    of a query stay in order. ``single`` is flat, for one query.
    """
    rng = random.Random(seed)
    names = list(queries[0]) if queries else ["preds", "target"]
    types = dict.fromkeys(names, torch.float64) | (dtypes or {})
    sizes = [len(query["preds"]) for query in queries]
    if layout == "padded":
        width = max(sizes, default=0) + rng.randint(0, 2)
        slots = [sorted(rng.sample(range(width), size)) for size in sizes]
        mask = torch.zeros(len(queries), width, dtype=torch.bool)
        for row, places in enumerate(slots):
            mask[row, places] = True
        rows = {name: [query[name] for query in queries] for name in names}
        return {name: scatter(rows[name], slots, width, types[name], rng) for name in names} | {"mask": mask}
    order = [(q, i) for q, size in enumerate(sizes) for i in range(size)]
    if layout == "indexes":
        # Queries in random order, the items of each in their own.
        mixed = [q for q, _ in order]
        rng.shuffle(mixed)
        unread = {q: iter(range(size)) for q, size in enumerate(sizes)}
        order = [(q, next(unread[q])) for q in mixed]
    flat = {name: torch.tensor([queries[q][name][i] for q, i in order], dtype=types[name]) for name in names}
    if layout == "single":
        assert len(queries) == 1
        return flat
    if layout == "offsets":
        return flat | {"offsets": torch.tensor([0, *sizes]).cumsum(0)}
    if ids is None:
        ids = sorted(rng.sample(range(-5, 2**62), len(queries)))
    return flat | {"indexes": torch.tensor([ids[q] for q, _ in order], dtype=torch.long)}


def scatter(
    rows: Sequence[Sequence[float]], slots: Sequence[Sequence[int]], width: int, dtype: torch.dtype, rng: random.Random
) -> Tensor:
    """``[row, width]``: the values of each row in its slots, garbage elsewhere."""
    garbage = (float("nan"), float("inf"), float("-inf"), 1e30, -3.0) if dtype.is_floating_point else (99, -7, 1)
    table = [[rng.choice(garbage) for _ in range(width)] for _ in rows]
    for values, places, cells in zip(rows, slots, table, strict=True):
        for value, place in zip(values, places, strict=True):
            cells[place] = value
    return torch.tensor(table, dtype=dtype).reshape(len(rows), width)


def ideal_of(rows: Sequence[Sequence[float]], *, dtype: torch.dtype = torch.float64, seed: int = 0) -> dict[str, Tensor]:
    """``ideal`` and ``ideal_mask`` of the judged grades of each query."""
    padded = lay_out([{"preds": list(row)} for row in rows], "padded", dtypes={"preds": dtype}, seed=seed)
    return {"ideal": padded["preds"], "ideal_mask": padded["mask"]}


def with_items(queries: Sequence[Query]) -> list[Query]:
    """The queries that flat indexes can tell of."""
    return [query for query in queries if query["preds"]]


def reordered(query: Query, order: Sequence[int]) -> Query:
    return {name: [values[i] for i in order] for name, values in query.items()}


def assert_close(
    actual: Tensor, expected: Any, *, rtol: float = 1e-9, atol: float | None = None, where: object = ""
) -> None:
    """Equal in float64 within ``rtol``; NaN equals NaN. ``where`` is told when not."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    atol = rtol * 1e-3 if atol is None else atol
    torch.testing.assert_close(
        actual.detach().double(), expected, rtol=rtol, atol=atol, equal_nan=True, msg=lambda message: f"{where} {message}"
    )


def golden(name: str) -> dict[str, Any]:
    return json.loads((Path(__file__).parent / "golden" / f"{name}.json").read_text())


# Strategies -----------------------------------------------------------------------------------------------------------

INF = float("inf")
SCORES = st.sampled_from((-INF, -2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 3.0, INF))
FINITE_SCORES = st.sampled_from((-2.5, -1.0, -0.0, 0.0, 0.3, 0.5, 1.0, 3.0))
GRADES = st.sampled_from((0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 4.0, -1.0, 0.5))
SEEDS = st.integers(0, 2**16)
CUTOFFS = st.none() | st.integers(1, 7)
OPTION_VALUES = {
    # Also a gain that is not 0 for grade 0, as padding must not have one.
    "gain": st.sampled_from(("exp2", "linear", lambda grade: grade + 1)),
    "min_relevance": st.sampled_from((1, 2, 0.5)),
    "denominator": st.sampled_from(("relevant", "cutoff", "hits")),
    "max_grade": st.sampled_from((4, 5)),
    "p": st.sampled_from((0.8, 0.3)),
    "temperature": st.sampled_from((1.0, 0.2, 3.0)),
    "top_k": CUTOFFS,
}


@st.composite
def queries(
    draw: st.DrawFn,
    scores: st.SearchStrategy[float] = SCORES,
    grades: st.SearchStrategy[float] = GRADES,
    min_items: int = 0,
    max_items: int = 6,
    **columns: st.SearchStrategy[float],
) -> Query:
    strategies = {"preds": scores, "target": grades, **columns}
    items = draw(st.lists(st.tuples(*strategies.values()), min_size=min_items, max_size=max_items))
    return {name: [item[column] for item in items] for column, name in enumerate(strategies)}


def batches(*, max_queries: int = 4, **kwargs: Any) -> st.SearchStrategy[list[Query]]:
    return st.lists(queries(**kwargs), min_size=1, max_size=max_queries)


def options_of(spec: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Values of the options that a metric or loss takes, a metric's cutoff aside."""
    return st.fixed_dictionaries({name: OPTION_VALUES[name] for name in spec.options if name in OPTION_VALUES})


def cutoffs_of(spec: Any) -> st.SearchStrategy[int | None]:
    """Cutoffs of a metric; None alone where it uses the whole list."""
    return CUTOFFS if spec.takes_top_k else st.none()
