"""Ranking metrics as torchmetrics ``Metric``s: streaming, exact across batches and processes, one sort for all of them."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from lightning_rank.conventions import check_number, options_of, sum_dtype, values_are_free
from lightning_rank.entries import SHARED_OPTIONS, Entry, odd_grades, one_cutoff, resolve, shared_options, values_of
from lightning_rank.extras import extra
from lightning_rank.functional.metrics import METRICS, MetricSpec, parse_name
from lightning_rank.functional.ranking import BLOCK, Ranking, check_judgements, rank, rank_in_blocks
from lightning_rank.lists import arrange, check_grades, check_scores
from lightning_rank.uncertainty import Interval, interval_of_mean


class _Sums(NamedTuple):
    """The constant state: of each metric a sum (or extreme) of values, their squares, queries with a value and without; queries
    with an invalid score or grade and updates with float64 scores."""

    value: Tensor
    squares: Tensor
    counts: Tensor
    seen: Tensor


_REDUCTION = {"mean": ("sum", 0.0), "min": ("min", float("inf")), "max": ("max", float("-inf"))}


class _Streaming(Metric):
    """State and arithmetic of several metrics over one stream of queries.

    Whole queries need two sums and two counts per metric. Ids need a row per query, and queries that may be spread over updates
    their items. Everything is merged when computed, so that neither batches nor processes change a value.
    """

    value: Tensor
    squares: Tensor
    counts: Tensor
    seen: Tensor
    query_ids: list[Tensor]
    query_rows: list[Tensor]
    anonymous_rows: list[Tensor]
    item_ids: list[Tensor]
    items: list[Tensor]
    _fill: Tensor
    _counts_empty: Tensor
    prefix: str

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    def __init__(self, metrics: Sequence[tuple[MetricSpec, int | None]], options: dict[str, Any]) -> None:
        entries, shared, rest = resolve(metrics, options, METRICS)
        super().__init__(**rest)
        self.entries = entries
        self.convention = shared["convention"]
        self.ties, self.aggregation, self.ignore_index = shared["ties"], shared["aggregation"], shared["ignore_index"]
        self.whole_queries, self.per_query = shared["whole_queries"], shared["per_query"]
        cutoffs = [entry.top_k for entry in entries]
        self._depth = None if None in cutoffs else max(cutoffs)  # type: ignore[type-var]  # no None left
        self._said_odd = self._said_repeated = False
        self._keeps_values = self.per_query or self.aggregation not in _REDUCTION
        actions = [entry.empty_target_action for entry in entries]
        self.register_buffer("_fill", torch.tensor([float(a == "pos") for a in actions]).double(), persistent=False)
        self.register_buffer("_counts_empty", torch.tensor([a != "skip" for a in actions]), persistent=False)

        reduction, start = _REDUCTION.get(self.aggregation, ("sum", 0.0))
        k = len(entries)
        # MetricCollection gives metrics one state if their states agree after the first update, which they may by chance;
        # torchmetrics before 1.6.2 looks at the first state alone. NaN agrees with nothing.
        self.add_state("apart", torch.full((), torch.nan, dtype=torch.float64), dist_reduce_fx="max")
        self.add_state("value", torch.full((k,), start, dtype=torch.float64), dist_reduce_fx=reduction)
        self.add_state("squares", torch.zeros(k, dtype=torch.float64), dist_reduce_fx="sum")
        # Of each metric: queries with a value, queries without.
        self.add_state("counts", torch.zeros(2, k, dtype=torch.int64), dist_reduce_fx="sum")
        # Queries with an invalid score or grade, updates with float64 scores.
        self.add_state("seen", torch.zeros(2, dtype=torch.int64), dist_reduce_fx="sum")
        # A row per query with an id, and per query without where rows must be kept; columns as `_rows` makes them.
        self.add_state("query_ids", [], dist_reduce_fx="cat")
        self.add_state("query_rows", [], dist_reduce_fx="cat")
        self.add_state("anonymous_rows", [], dist_reduce_fx="cat")
        # Items of queries that may be spread over updates; columns score, grade, judged.
        self.add_state("item_ids", [], dist_reduce_fx="cat")
        self.add_state("items", [], dist_reduce_fx="cat")

    def update(
        self,
        preds: Tensor,
        target: Tensor,
        indexes: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        offsets: Tensor | None = None,
        judged: Tensor | None = None,
        ideal: Tensor | None = None,
        ideal_mask: Tensor | None = None,
    ) -> None:
        """Add queries.

        Args:
            preds: scores ``[query, item]``, or flat ``[item]``; any real number, higher is better.
            target: grades like ``preds``; 0 or below is not relevant.
            indexes: for flat ``preds`` without ``offsets`` the query id of each item; the items of a query may come in
                several updates unless ``whole_queries``, so ids must not start anew in each. Else ``[query]``: an id counts once.
            mask: bool like 2-D ``preds``, False is padding.
            offsets: for flat ``preds``, ``[query + 1]``: query q is ``offsets[q]:offsets[q + 1]``.
            judged: bool like ``preds``; False is an item that nobody judged, and counts as not relevant.
            ideal: ``[query, M]`` grades of all judged items, where some were not retrieved; padded input only.
            ideal_mask: bool like ``ideal``, False is padding.

        Raises:
            ValueError: shapes do not fit; a NaN score (on the CPU; on a device ``compute`` raises).
            TypeError: a wrong dtype.
        """
        if isinstance(preds, Tensor) and isinstance(target, Tensor):
            preds, target = preds.detach(), target.detach()
            if self.ignore_index is not None:
                preds, target, indexes, mask, offsets, judged = self._without_ignored(
                    preds, target, indexes, mask, offsets, judged
                )
        by_item = indexes is not None and offsets is None and isinstance(preds, Tensor) and preds.ndim == 1
        if by_item and not self.whole_queries and ideal is None:
            check_judgements(judged, ideal, ideal_mask)
            self._keep_items(preds, target, indexes, mask, judged)  # type: ignore[arg-type]  # indexes is not None
            return
        max_items = BLOCK * -(-len(self.entries) // 12)  # a block has a cost of its own for each metric
        blocks = [
            (ranking.lists.ids, self._rows(ranking))
            for ranking in rank_in_blocks(
                preds, target, mask=mask, indexes=indexes, offsets=offsets, judged=judged, ideal=ideal, ideal_mask=ideal_mask,
                ties=self.ties, depth=self._depth, max_items=max_items,
            )
        ]  # fmt: skip
        self._note(preds, target, mask)
        rows = torch.cat([rows for _, rows in blocks]) if len(blocks) > 1 else blocks[0][1]
        if indexes is not None and (self.per_query or not by_item):
            self.query_ids.append(torch.cat([ids for ids, _ in blocks]))  # type: ignore[misc]  # ids were given
            self.query_rows.append(rows)
        elif self._keeps_values:
            self.anonymous_rows.append(rows)
        else:
            self.value, self.squares, self.counts, self.seen = self._with(rows)

    def _without_ignored(self, preds, target, indexes, mask, offsets, judged):  # type: ignore[no-untyped-def]  # as update
        arrange(preds, target, mask=mask, indexes=indexes, offsets=offsets, judged=judged)  # raises for what does not fit
        keep = target != self.ignore_index
        if preds.ndim == 2:
            return preds, target, indexes, keep if mask is None else mask & keep, offsets, judged
        if offsets is not None:
            offsets = torch.cat([offsets.new_zeros(1), keep.cumsum(0)])[offsets]
        elif indexes is not None:
            indexes = indexes[keep]
        return preds[keep], target[keep], indexes, mask, offsets, None if judged is None else judged[keep]

    def _keep_items(
        self, preds: Tensor, target: Tensor, indexes: Tensor, mask: Tensor | None, judged: Tensor | None
    ) -> None:
        lists, preds, target, extra = arrange(preds, target, mask=mask, indexes=indexes, judged=judged)
        if values_are_free(preds):
            check_scores(lists, preds)
            check_grades(lists, target)
        self._note(preds, target, None)
        dtype = sum_dtype(preds.device)
        known = torch.ones_like(preds, dtype=dtype) if extra["judged"] is None else extra["judged"].to(dtype)
        self.item_ids.append(lists.ids[lists.query])  # type: ignore[index, attr-defined]  # flat, with ids
        self.items.append(torch.stack([preds.to(dtype), target.to(dtype), known], dim=1))

    def _note(self, preds: Tensor, target: Tensor, mask: Tensor | None) -> None:
        """Remember float64 scores; say once which grades count as 0 that may not be meant to, where looking is free."""
        if not self._said_odd and values_are_free(target):
            grades = (target.float() if target.dtype == torch.bfloat16 else target).numpy(force=True)
            if odd := odd_grades(self.entries, grades, None if mask is None else mask.numpy()):
                warnings.warn(odd, stacklevel=4)
                self._said_odd = True
        if preds.dtype == torch.float64:
            self.seen = self.seen + torch.arange(2, device=self.seen.device)

    def _rows(self, ranking: Ranking) -> Tensor:
        """``[query, metric + 2]``: values, NaN where undefined; whether there is a query; whether a score or grade is invalid."""
        values = values_of(self.entries, ranking)
        is_query = ranking.is_query.to(values[0])
        invalid = torch.zeros_like(is_query) if ranking.invalid is None else ranking.invalid.to(values[0])
        # In memory metric by metric: that is how they come, and how they are summed.
        return torch.stack([*values, is_query, invalid]).t()

    def _with(self, rows: Tensor) -> _Sums:
        """The constant state with some queries added."""
        values, is_query, invalid = rows.split([len(self.entries), 1, 1], dim=1)
        usable = is_query > invalid
        defined = (values == values) & usable
        known = torch.where(defined, values, 0)
        with_value, without = defined.sum(0), (usable > defined).sum(0)
        value = self.value
        if self.aggregation == "mean":
            value = value + known.sum(0)
        elif self.aggregation == "min" and len(rows):
            value = value.minimum(torch.where(defined, values, torch.inf).amin(0))
        elif self.aggregation == "max" and len(rows):
            value = value.maximum(torch.where(defined, values, -torch.inf).amax(0))
        squares, counts = self.squares + known.square().sum(0), self.counts + torch.stack([with_value, without])
        return _Sums(value, squares, counts, self.seen + torch.nn.functional.pad(invalid.sum(0).long(), (0, 1)))

    def _with_empty(self, sums: _Sums) -> _Sums:
        """The same where queries without a value have the one that they count as; the first counts are of those that count."""
        value, squares, (with_value, without), seen = sums
        num_filled = torch.where(self._counts_empty, without, 0)
        fill = self._fill.to(value.dtype)
        if self.aggregation == "mean":
            value = value + num_filled * fill
        elif self.aggregation in _REDUCTION:
            filled = value.minimum(fill) if self.aggregation == "min" else value.maximum(fill)
            value = torch.where(num_filled > 0, filled, value)
        squares = squares + num_filled * fill.square()
        return _Sums(value, squares, torch.stack([with_value + num_filled, without]), seen)

    def _list_states(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """The states that grow: dtype, and shape of a row."""
        dtype, width = self.value.dtype, len(self.entries) + 2
        return {
            "query_ids": (torch.int64, ()),
            "query_rows": (dtype, (width,)),
            "anonymous_rows": (dtype, (width,)),
            "item_ids": (torch.int64, ()),
            "items": (dtype, (3,)),
        }

    def _joined(self, name: str) -> Tensor:
        """A list state, or the tensor that a sync has made of it, as one tensor."""
        state = getattr(self, name)
        if isinstance(state, Tensor):
            return state
        if state:
            return torch.cat(state)
        dtype, row = self._list_states()[name]
        return torch.empty((0, *row), dtype=dtype, device=self.value.device)

    # Merging and computing --------------------------------------------------------------------------------------------

    def _merged_rows(self) -> tuple[Tensor, Tensor | None, int]:
        """Rows of all queries whose rows or items were kept, each id once; their ids; how many repeats were dropped."""
        ids, rows, anonymous, item_ids, items = (self._joined(name) for name in self._list_states())
        # A fully masked row is no query, and must not take the id of one.
        ids, rows = ids[rows[:, -2] > 0], rows[rows[:, -2] > 0]
        total = len(ids)
        if total:
            # Stable, so that of equal ids the first one seen is kept.
            ids, order = torch.sort(ids, stable=True)
            first = torch.cat([torch.ones_like(ids[:1], dtype=torch.bool), ids[1:] != ids[:-1]])
            ids, rows = ids[first], rows[order][first]
        repeated = total - len(ids)
        if len(item_ids):
            preds, target, judged = items.unbind(1)
            ranking = rank(preds, target, indexes=item_ids, judged=judged > 0, ties=self.ties, depth=self._depth)
            rows = torch.cat([rows, self._rows(ranking)])
            ids = torch.cat([ids, ranking.lists.ids])  # type: ignore[list-item]  # flat indexes have ids
        if len(anonymous):
            return torch.cat([rows, anonymous]), None, repeated
        return rows, ids, repeated

    def _compute(self) -> Tensor:
        rows, ids, self._num_repeated = self._merged_rows()
        if self._num_repeated and not self._said_repeated and not self.distributed_available_fn():
            # Over processes that is what a padded distributed sampler does.
            warnings.warn(
                f"{self._num_repeated} queries had an id that had come before, and were left out: ids must not start anew in "
                "each batch. Without `indexes` every row is a query of its own.",
                stacklevel=4,
            )
            self._said_repeated = True
        if self.per_query:
            usable = rows[:, -2] > 0
            ids = torch.arange(len(rows), device=rows.device) if ids is None else ids
            values = rows[usable, :-2].to(torch.float64 if self.seen[1] > 0 else torch.float32)
            self._query_values = ids[usable], values.squeeze(1) if isinstance(self, RankingMetric) else values
        self._sums = self._with_empty(self._with(rows))
        value, _, counts, seen = self._sums
        if seen[0] > 0:
            raise ValueError(
                f"`preds` must not be NaN: {int(seen[0])} queries had a NaN score or grade, or a grade beyond the scale. Where "
                "scores are NaN, the model has diverged, or divides by zero."
            )
        for entry, empty in zip(self.entries, counts[1].tolist(), strict=True):
            if entry.empty_target_action == "error" and empty:
                raise ValueError(
                    f"{empty} of {int(counts[0].max())} queries have no relevant item, and "
                    f"`empty_target_action='error'` was set for {entry.name}. Remove them, or use 'skip', 'neg' or 'pos'."
                )
        if (counts[0] == 0).any():
            empty = int(counts[1].max())
            why = f"{empty} queries without a relevant item were skipped." if empty else "there was none."
            warnings.warn(f"No query has a value, so the metric is NaN: {why}", stacklevel=2)
        if self.aggregation == "mean":
            value = torch.where(counts[0] > 0, value / counts[0].clamp(min=1), torch.nan)
        elif self.aggregation in _REDUCTION:
            value = torch.where(counts[0] > 0, value, torch.nan)
        else:
            value = torch.stack([self._aggregate(column) for column in self._filled(rows)])
        return value.to(torch.float64 if seen[1] > 0 else torch.float32)

    def _filled(self, rows: Tensor) -> list[Tensor]:
        """For each metric the values of the queries that count."""
        columns = []
        for i, column in enumerate(rows[rows[:, -2] > 0, :-2].unbind(1)):
            empty = column.isnan()
            columns.append(torch.where(empty, self._fill[i], column)[~empty | self._counts_empty[i]])
        return columns

    def _aggregate(self, values: Tensor) -> Tensor:
        if len(values) == 0:
            return values.new_tensor(torch.nan)
        if callable(self.aggregation):
            return torch.as_tensor(self.aggregation(values), dtype=values.dtype, device=values.device).reshape(())
        ranked = values.sort().values
        return (ranked[(len(ranked) - 1) // 2] + ranked[len(ranked) // 2]) / 2

    def query_values(self) -> tuple[Tensor, Tensor]:
        """The value of each query over all processes, where ``per_query=True``.

        Returns:
            ids ``[query]``, 0, 1, ... where queries came without; values, ``[query]`` or ``[query, metric]``, NaN for a query
            without a relevant item.
        """
        if not self.per_query:
            raise ValueError("Values of single queries are kept only with `per_query=True`.")
        self.compute()
        return self._query_values

    def _intervals(self, level: float) -> list[Interval]:
        if self.aggregation != "mean":
            raise ValueError(f"An interval is that of the mean; the aggregation is {self.aggregation!r}.")
        check_number("level", level, above=0, below=1)
        self.compute()
        sums = zip(self._sums.value.tolist(), self._sums.squares.tolist(), self._sums.counts[0].tolist(), strict=True)
        return [interval_of_mean(total, squares, n, level) for total, squares, n in sums]

    @property
    def num_repeated(self) -> int:
        """Queries left out because their id had come before, over all processes."""
        self.compute()
        return self._num_repeated

    # Traps of torchmetrics --------------------------------------------------------------------------------------------

    def _sync_dist(self, *args: Any, **kwargs: Any) -> None:
        # A process without data would send an empty float32 tensor, whatever the others send.
        for name in self._list_states():
            setattr(self, name, [self._joined(name)])
        super()._sync_dist(*args, **kwargs)

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any) -> torch.nn.Module:
        # Sums stay float64 and counts whole numbers, whatever dtype the model around is moved to.
        def move(state: Tensor) -> Tensor:
            device = fn(torch.empty(0, dtype=torch.bool, device=state.device)).device
            if device != state.device:
                return state.to(device, sum_dtype(device) if state.dtype == torch.float64 else state.dtype)
            moved = fn(state)
            return moved if moved.dtype == state.dtype else state

        return super()._apply(move, *args)

    def reset(self) -> None:
        # Metric.reset empties lists in place, and `Running` holds on to them.
        self.__dict__.update({name: [] for name in self._list_states()})
        super().reset()

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        if isinstance(incoming_state, _Streaming) and self._meaning() != incoming_state._meaning():
            raise ValueError(
                f"Only a metric of the same names and options can be merged: {self!r} with {incoming_state!r}."
            )
        super().merge_state(incoming_state)
        self._computed = None  # torchmetrics keeps the value from before

    def _meaning(self) -> tuple[object, ...]:
        return self.entries, self.ties, self.aggregation, self.ignore_index, self.whole_queries, self.per_query

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._computed = None

    def _copy_state_dict(self) -> dict[str, Tensor | list[Any]]:
        # Tensors in the lists are never changed, so copying them, which `forward` would do at each step, is waste.
        states = self.metric_state.items()
        return {name: list(state) if isinstance(state, list) else state.clone() for name, state in states}

    def _options_text(self, entry: Entry) -> str:
        options = {**entry.options, "empty_target_action": entry.empty_target_action, "ties": self.ties}
        shared = {
            "aggregation": self.aggregation,
            "ignore_index": self.ignore_index,
            "whole_queries": self.whole_queries,
            "per_query": self.per_query,
            "convention": self.convention,
        }
        options |= {k: v for k, v in shared.items() if v != SHARED_OPTIONS[k]}
        return ", ".join(f"{k}={v!r}" for k, v in options.items())


class RankingMetric(_Streaming):
    """One ranking metric over a stream of queries. Use a named class (``NDCG(10)``) or ``metric("ndcg@10")``.

    Args:
        top_k: the cutoff; None takes the whole list.
        convention: the options of a tool by its name (``"trec_eval"``, ...; never its definitions: under ties MAP is not that
            of scikit-learn, which takes tied items as one rank); what is given beside it wins.
        ties: ``"average"`` is the exact expectation over all orders of tied items; ``"stable"`` keeps the input order,
            ``"optimistic"`` and ``"pessimistic"`` put the best, the worst of them first.
        empty_target_action: what a query without a relevant item counts: ``"neg"`` 0, ``"pos"`` 1, ``"skip"`` not at all,
            ``"error"`` raises when computed.
        ignore_index: a grade whose items are left out.
        aggregation: ``"mean"``, ``"median"``, ``"min"``, ``"max"`` of the per-query values, or a callable on them.
        whole_queries: promises that no query of flat ``indexes`` is spread over updates or processes: the state is then
            constant, and ids do not matter.
        per_query: keep the value of each query for ``query_values()``.
        kwargs: options of ``torchmetrics.Metric``.

    Raises:
        ValueError: an option means nothing for this metric, or its value is impossible.
        TypeError: an option of a wrong type.
    """

    name: ClassVar[str] = ""

    def __init__(self, top_k: int | None = None, **options: Any) -> None:
        if not self.name:
            raise TypeError("RankingMetric has no metric of its own; use a named class such as NDCG, or metric('ndcg@10').")
        super().__init__([(METRICS[self.name], top_k)], options)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # A signature that states the options of this metric, for help() and for configuration files.
        super().__init_subclass__(**kwargs)
        spec = METRICS[cls.name]
        cls.higher_is_better = spec.higher_is_better
        kinds = inspect.Parameter
        signature = inspect.Signature(
            [
                kinds("self", kinds.POSITIONAL_OR_KEYWORD),
                *([kinds("top_k", kinds.POSITIONAL_OR_KEYWORD, default=None, annotation=int | None)] * spec.takes_top_k),
                *options_of(spec.function),
                *options_of(shared_options),
                kinds("kwargs", kinds.VAR_KEYWORD, annotation=Any),
            ]
        )

        def __init__(self: RankingMetric, top_k: int | None = None, **options: Any) -> None:
            RankingMetric.__init__(self, top_k, **options)

        __init__.__signature__ = signature  # type: ignore[attr-defined]  # functions take any
        __init__.__doc__ = RankingMetric.__doc__
        cls.__init__ = __init__  # type: ignore[method-assign]  # made for this class

    def compute(self) -> Tensor:
        """The value over all queries so far, in all processes: a scalar, float64 if any score was, else float32."""
        return self._compute()[0]

    def interval(self, level: float = 0.95) -> Interval:
        """The mean with its standard error and confidence interval, over all processes.

        The interval is that of Student's t: it takes queries as a sample of independent ones. Means near 0 or 1 have intervals
        that may reach beyond.

        Args:
            level: how often such intervals hold the true mean.

        Raises:
            ValueError: the aggregation is not the mean, or the level not between 0 and 1.
        """
        return self._intervals(level)[0]

    def plot(self, val: Tensor | Sequence[Tensor] | None = None, ax: Any = None) -> Any:
        """Draw a value, or a sequence of them as a curve; without any, the present one. Returns the figure and the axes."""
        return self._plot(val, ax)

    @property
    def top_k(self) -> int | None:
        """The cutoff."""
        return self.entries[0].top_k

    @property
    def num_queries(self) -> int:
        """Queries that count, over all processes."""
        self.compute()
        return int(self._sums.counts[0][0])

    @property
    def num_empty(self) -> int:
        """Queries without a relevant item, over all processes, whatever they count."""
        self.compute()
        return int(self._sums.counts[1][0])

    def __str__(self) -> str:
        return self.entries[0].name

    def __repr__(self) -> str:
        return f"{type(self).__name__}(top_k={self.top_k}, {self._options_text(self.entries[0])})"


class RankingMetrics(_Streaming):
    """Several metrics from one sort.

    Args:
        metrics: names such as ``["ndcg@5", "ndcg@10", "map"]``.
        prefix: put before each name in the result.
        options: conventions for all that know them, as for the single classes (``gain="linear"``, ``convention="lightgbm"``).

    Raises:
        ValueError: an unknown name (the error has the nearest known ones), a name given twice, an option that means nothing for
            any of them.

    Example:
        >>> import torch
        >>> metrics = RankingMetrics(["ndcg@2", "map", "mrr"], prefix="val/")
        >>> metrics.update(torch.tensor([[-1.0, -2.0, -3.0]]), torch.tensor([[1, 0, 2]]))
        >>> {name: round(value.item(), 3) for name, value in metrics.compute().items()}
        {'val/ndcg@2': 0.275, 'val/map': 0.833, 'val/mrr': 1.0}
    """

    def __init__(self, metrics: Iterable[str], prefix: str = "", **options: Any) -> None:
        names = [metrics] if isinstance(metrics, str) else list(metrics)
        parsed = [parse_name(name) for name in names]
        if not parsed:
            raise ValueError("`metrics` must name at least one metric, as in ['ndcg@10', 'map'].")
        if len(set(parsed)) < len(parsed):
            raise ValueError(f"`metrics` must not name one twice, got {', '.join(names)}.")
        if not isinstance(prefix, str):
            raise TypeError(f"`prefix` must be text, got {prefix!r}.")
        ways = {spec.higher_is_better for spec, _ in parsed}
        # Before Metric.__init__, which `repr` may precede; past its check that a class never changes what is better.
        self.__dict__.update(prefix=prefix, higher_is_better=ways.pop() if len(ways) == 1 else None)
        super().__init__(parsed, options)

    def compute(self) -> dict[str, Tensor]:
        """``{prefix + name: value}`` over all queries so far, in all processes."""
        return dict(zip(self.names, self._compute().unbind(), strict=True))

    def interval(self, level: float = 0.95) -> dict[str, Interval]:
        """``{prefix + name: Interval}``, see ``RankingMetric.interval``."""
        return dict(zip(self.names, self._intervals(level), strict=True))

    def plot(self, val: dict[str, Tensor] | None = None, ax: Any = None) -> Any:
        """Draw each metric over its cutoffs; one without a cutoff is a dashed line. Needs matplotlib (the extra ``plot``).

        ``val`` are values by name, as ``compute`` returns them (None computes); the figure and the axes are returned.
        """
        plt = extra("matplotlib.pyplot", "Plots need", "plot")
        values = self.compute() if val is None else val
        figure, ax = plt.subplots(layout="constrained") if ax is None else (ax.get_figure(), ax)
        curves: dict[str, list[tuple[int | None, float]]] = {}
        for entry, name in zip(self.entries, self.names, strict=True):
            curves.setdefault(entry.spec.name, []).append((entry.top_k, float(values[name])))
        for i, (base, points) in enumerate(curves.items()):
            cut = sorted((k, value) for k, value in points if k is not None)
            if cut:
                ax.plot(*zip(*cut, strict=True), marker="o", color=f"C{i}", label=f"{base}@k")
            for value in (value for k, value in points if k is None):
                ax.axhline(value, linestyle="--", color=f"C{i}", label=base)
        ax.set(xlabel="cutoff k", ylabel="value")
        ax.legend()
        return figure, ax

    @property
    def names(self) -> list[str]:
        """Keys of the result, with the prefix."""
        return [self.prefix + entry.name for entry in self.entries]

    @property
    def num_queries(self) -> dict[str, int]:
        """Queries that count, for each metric, over all processes."""
        self.compute()
        return dict(zip(self.names, self._sums.counts[0].tolist(), strict=True))

    @property
    def num_empty(self) -> dict[str, int]:
        """Queries without a relevant item, for each metric, over all processes, whatever they count."""
        self.compute()
        return dict(zip(self.names, self._sums.counts[1].tolist(), strict=True))

    def __str__(self) -> str:
        return ", ".join(self.names)

    def __repr__(self) -> str:
        lines = [f"  {self.prefix}{entry.name}: {self._options_text(entry)}" for entry in self.entries]
        return "\n".join([f"{type(self).__name__}(", *lines, ")"])


class NDCG(RankingMetric):
    """Normalised discounted cumulative gain: graded relevance, many good answers, the top matters most.

    Takes ``gain``: ``"exp2"`` 2^g - 1 (default), ``"linear"``, a list of gains by grade, or a callable. The other arguments are
    those of ``RankingMetric``.

    Example:
        >>> import torch
        >>> ndcg = NDCG(top_k=10)
        >>> ndcg.update(torch.tensor([[0.3, -1.2, 2.0]]), torch.tensor([[0, 1, 3]]))
        >>> round(ndcg.compute().item(), 4)
        0.9828
    """

    name = "ndcg"


class DCG(RankingMetric):
    """Discounted cumulative gain, not normalised: the utility of a page in gains. Takes ``gain`` as ``NDCG`` does."""

    name = "dcg"


class MAP(RankingMetric):
    """Mean average precision: binary relevance, every relevant item should be found.

    Takes ``min_relevance`` and ``denominator``: ``"relevant"`` (default), ``"cutoff"`` min(R, k), ``"hits"``.
    """

    name = "map"


class MRR(RankingMetric):
    """Mean reciprocal rank: one good answer is enough. Takes ``min_relevance``."""

    name = "mrr"


class Precision(RankingMetric):
    """Share of the first k ranks that are relevant. Takes ``min_relevance``."""

    name = "precision"


class Recall(RankingMetric):
    """Share of the relevant items within the first k ranks. Takes ``min_relevance``."""

    name = "recall"


class HitRate(RankingMetric):
    """Share of the queries with a relevant item within the first k ranks. Takes ``min_relevance``."""

    name = "hit_rate"


class F1(RankingMetric):
    """Harmonic mean of precision and recall. Takes ``min_relevance``."""

    name = "f1"


class RPrecision(RankingMetric):
    """Precision at the number of relevant items. Takes ``min_relevance``, and no cutoff."""

    name = "r_precision"


class ERR(RankingMetric):
    """Expected reciprocal rank: graded relevance, one good answer is enough. Takes ``max_grade``, the best grade there is."""

    name = "err"


class RBP(RankingMetric):
    """Rank-biased precision: a user goes on with probability ``p``. Takes ``p`` and ``min_relevance``."""

    name = "rbp"


class BPref(RankingMetric):
    """Judged relevant items above judged others, where many are not judged. Takes ``min_relevance``, and no cutoff."""

    name = "bpref"


class AUC(RankingMetric):
    """Share of pairs in the right order. Takes ``min_relevance``, and no cutoff."""

    name = "auc"


class FallOut(RankingMetric):
    """Share of the items judged not relevant within the first k ranks; lower is better. Takes ``min_relevance``."""

    name = "fall_out"


NAMED_CLASSES: dict[str, type[RankingMetric]] = {
    cls.name: cls
    for cls in (NDCG, DCG, MAP, MRR, Precision, Recall, HitRate, F1, RPrecision, ERR, RBP, BPref, AUC, FallOut)
}


def metric(name: str, **options: Any) -> RankingMetric:
    """The metric of a name, in any case: ``metric("ndcg@10")`` is ``NDCG(10)``; ``str()`` gives the name back.

    Raises:
        ValueError: unknown name (the error has the nearest known ones), impossible cutoff, or two.

    Example:
        >>> str(metric("mrr@10", min_relevance=2))
        'mrr@10'
    """
    spec, top_k = parse_name(name)
    return NAMED_CLASSES[spec.name](one_cutoff(name, top_k, options), **options)
