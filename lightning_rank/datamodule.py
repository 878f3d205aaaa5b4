"""LightningDataModules for ranking data: LETOR files and generated queries."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from lightning_rank.conventions import check_choice
from lightning_rank.data.batches import LAYOUTS, QueryBatchSampler, QueryLoader, RankingDataset
from lightning_rank.data.cache import DTYPES, CachedDataset, convert, is_cache, open_cache
from lightning_rank.data.features import source_items
from lightning_rank.data.items import assembled
from lightning_rank.data.synthetic import BayesOptimalScorer, make_ranking

_STAGES = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("predict",)}


class RankingData:
    """Batches of whole queries from data sets, one for each split."""

    def __init__(
        self,
        batch_size: int | None,
        max_items: int | None = None,
        shuffle: bool = True,
        num_workers: int = 0,
        num_features: int | None = None,
        seed: int = 0,
        batch_items: int | None = None,
        layout: str = "padded",
    ) -> None:
        super().__init__()
        numbers = {
            "batch_size": batch_size,
            "max_items": max_items,
            "num_features": num_features,
            "batch_items": batch_items,
        }
        for name, value in numbers.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"`{name}` must be a whole number >= 1, got {value!r}.")
        if batch_size is None and batch_items is None:
            raise ValueError("`batch_size` (queries) or `batch_items` must say how large a batch is; both are None.")
        check_choice("layout", layout, LAYOUTS)
        self.batch_size, self.batch_items, self.max_items, self.shuffle = batch_size, batch_items, max_items, shuffle
        self.num_workers, self.num_features, self.seed, self.layout = num_workers, num_features, seed, layout
        self.splits: dict[str, RankingDataset] = {}

    def load(self, split: str) -> RankingDataset:
        """The data of ``"train"``, ``"val"``, ``"test"`` or ``"predict"``."""
        raise NotImplementedError

    def has(self, split: str) -> bool:
        """Whether there is data for a split."""
        raise NotImplementedError

    def setup(self, stage: str) -> None:
        for split in _STAGES[stage]:
            if split not in self.splits and (self.has(split) or split != "val"):
                self.splits[split] = self.load(split)
                _say_nan(split, self.splits[split])
        if stage == "fit" and self.num_features is None:
            self.num_features = self.splits["train"].num_features

    def train_features(self) -> Tensor:
        """``[item, feature]`` of the training data, for what is learnt from it before training."""
        return self._data("train").features

    def _data(self, split: str) -> RankingDataset:
        data = self.splits[split]
        return data if self.num_features is None else data.widened(self.num_features)

    def _loader(self, split: str) -> DataLoader:
        data = self._data(split)
        shuffle = split == "train" and self.shuffle
        lengths = data.lengths
        if split == "train" and self.max_items is not None:
            data = replace(data, max_items=self.max_items)
            lengths = lengths.clamp(max=self.max_items)
        if split != "predict":  # what writes predictions reads padded ones
            data = replace(data, layout=self.layout)
        sampler = QueryBatchSampler(lengths, self.batch_size, shuffle=shuffle, seed=self.seed, batch_items=self.batch_items)
        # The sampler gives whole batches, which the data set looks up at once.
        return QueryLoader(
            data,
            sampler=sampler,
            batch_size=None,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
        )

    def train_dataloader(self) -> DataLoader:
        return self._loader("train")

    def val_dataloader(self) -> DataLoader | list:
        return self._loader("val") if "val" in self.splits else []

    def test_dataloader(self) -> DataLoader:
        return self._loader("test")

    def predict_dataloader(self) -> DataLoader:
        return self._loader("predict")

    def state_dict(self) -> dict[str, Any]:
        return {"num_features": self.num_features}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # Files with fewer features than the training data had (sparse ones leave out zeros) are widened to it.
        self.num_features = state_dict["num_features"]


def _say_nan(split: str, data: RankingDataset) -> None:
    """Warn of features that are NaN somewhere: what the scorers here make of one is NaN, which loss and metrics refuse."""
    if isinstance(data, CachedDataset):
        counts = dict((data.manifest or {}).get("nan_features", {}))  # counted when converted: data is not read for it
    else:
        number = data.features.isnan().sum(0)
        counts = {str(i + 1): int(number[i]) for i in number.nonzero().flatten().tolist()}
    if counts:
        shown = ", ".join(f"{name} in {count:,} items" for name, count in list(counts.items())[:8])
        more = f" and {len(counts) - 8} more" if len(counts) > 8 else ""
        warnings.warn(
            f"The {split} data has features that are NaN (an empty cell of a table is): {shown}{more}. Scores of those items "
            "will be NaN, which losses and metrics refuse: fill them in the files, or leave such features out by "
            "`columns={'features': [...]}`, unless your scorer knows what to do with NaN.",
            stacklevel=3,
        )


class LetorDataModuleMixin(RankingData):
    """LETOR files (``grade qid:id feature:value ... # comment``, also gzip), or tables, for training and evaluation.

    Files that end in ``.parquet``, ``.pq``, ``.csv`` or ``.tsv`` are tables with a row per item. With ``cache`` all are converted
    once into memory-mapped files, see ``convert``: they need not fit in memory, and are there at once the next time. A folder that
    ``convert`` made can be named instead of files.

    Args:
        root: folder that file names are relative to; where no file is named, its ``train.txt``, ``vali.txt`` and ``test.txt``,
            or those with ``.gz``.
        train, val, test, predict: a file, or a list of files that are read as one; ``predict`` is ``test`` if not given.
        batch_size: queries per batch; batches hold lists of similar length. None: as many as ``batch_items`` lets in.
        max_items: cut longer lists, in training only: the items graded above 0 are kept first, then others at random, anew
            in each epoch.
        shuffle: another order of the training queries in each epoch.
        num_workers: processes that make batches; 0 is fastest for data in memory.
        num_features: the declared number of features; None takes it from the training data.
        seed: of the order.
        batch_items: items per batch at most, padding included, so that long lists do not fill memory.
        layout: of batches, ``"padded"`` or ``"jagged"`` (items end to end, no padding), except in ``predict``.
        cache: folder for converted data; None reads the files into memory.
        dtype: of features in the cache, ``"float32"`` or ``"float16"``; batches are float32.
        columns: of tables: ``query``, ``grade``, ``document``, ``features`` (a list); what is left out is found by its usual
            names, and the features are all other columns of numbers.

    Raises:
        ValueError: a split is needed and has no file, a malformed line (named), or a number is out of its range.
        FileNotFoundError: no such file.

    Example:
        >>> from lightning_rank.pytorch_lightning import LetorDataModule
        >>> fold1 = LetorDataModule("MQ2008", train=["S1.txt", "S2.txt", "S3.txt"], val="S4.txt", test="S5.txt")
    """

    def __init__(
        self,
        root: str | None = None,
        train: str | list[str] | None = None,
        val: str | list[str] | None = None,
        test: str | list[str] | None = None,
        predict: str | list[str] | None = None,
        batch_size: int | None = 64,
        max_items: int | None = None,
        shuffle: bool = True,
        num_workers: int = 0,
        num_features: int | None = None,
        seed: int = 0,
        batch_items: int | None = None,
        layout: str = "padded",
        cache: str | None = None,
        dtype: str = "float32",
        columns: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(batch_size, max_items, shuffle, num_workers, num_features, seed, batch_items, layout)
        check_choice("dtype", dtype, DTYPES)
        if dtype != "float32" and cache is None:
            raise ValueError(f"`dtype` is of the features in a `cache`, and there is none; got {dtype!r}.")
        self.root, self.cache, self.dtype, self.columns = root, cache, dtype, columns
        self._declared = num_features
        named = {"train": train, "val": val, "test": test, "predict": predict}
        if root is None and not any(named.values()):
            raise ValueError("LetorDataModule needs `root`, or files for `train`, `val`, `test` or `predict`.")
        self.files = {split: self._paths(files) for split, files in named.items()}
        if root is not None and not any(named.values()):
            # A missing one is found out when it is needed: a fold may have no test file.
            if not Path(root).is_dir():
                raise FileNotFoundError(f"`root` must be a folder, and {Path(root).resolve()} is none.")
            for split, name in {"train": "train.txt", "val": "vali.txt", "test": "test.txt"}.items():
                there = [path for path in (Path(root, name), Path(root, f"{name}.gz")) if path.exists()]
                self.files[split] = there[:1]
        if not self.files["predict"]:
            self.files["predict"] = self.files["test"]

    def _paths(self, files: str | Sequence[str] | None) -> list[Path]:
        names = [files] if isinstance(files, str | Path) else list(files or [])
        return [Path(self.root or "", name) for name in names]

    def has(self, split: str) -> bool:
        return bool(self.files[split])

    def load(self, split: str) -> RankingDataset:
        if not self.files[split]:
            place = ""
            if self.root is not None:
                held = ", ".join(sorted(path.name for path in Path(self.root).iterdir())[:10]) or "nothing"
                place = (
                    f" None is named as usual (train.txt, vali.txt, test.txt, or .gz) in {self.root}, which holds {held}."
                )
            raise ValueError(f"LetorDataModule has no `{split}` file.{place} Give one, as `{split}: FILE`.")
        return self._read(self.files[split])

    def _read(self, files: list[Path]) -> RankingDataset:
        if any(map(is_cache, files)):
            if len(files) > 1:
                raise ValueError(f"A converted data set is a whole split; got {', '.join(map(str, files))}.")
            return open_cache(files[0])
        if self.cache is not None:
            # With the number that was declared, which is the same whichever split comes first.
            return self._converted(files, self._declared)
        return assembled(source_items(files, self.num_features, self.columns), self.num_features)

    def _converted(self, files: list[Path], num_features: int | None) -> CachedDataset:
        folder = convert(
            files, self.cache or "", num_features=num_features, dtype=self.dtype, columns=self.columns, progress=True
        )
        return open_cache(folder)

    def _data(self, split: str) -> RankingDataset:
        data = self.splits[split]
        if isinstance(data, CachedDataset) and self.cache is not None and data.num_features < (self.num_features or 0):
            # A file that lacks the last features is converted as wide as the training data, not widened in memory.
            self.splits[split] = self._converted(self.files[split], self.num_features)
        return super()._data(split)


class SyntheticDataModuleMixin(RankingData):
    """Generated queries of a stated difficulty, for which the best possible scorer is known.

    Args:
        num_train, num_val, num_test: queries per split.
        min_items, max_items: range of list lengths.
        num_features: number of features.
        difficulty: share of what makes a grade that no scorer can know, in [0, 1).
        batch_size: queries per batch.
        seed: of the data and their order.

    Raises:
        ValueError: a number is out of its range.

    Example:
        >>> from lightning_rank.pytorch_lightning import SyntheticDataModule
        >>> data = SyntheticDataModule(num_train=10, difficulty=0.2)
        >>> data.setup("fit")
        >>> len(data.splits["train"])
        10
    """

    def __init__(
        self,
        num_train: int = 1000,
        num_val: int = 300,
        num_test: int = 300,
        min_items: int = 10,
        max_items: int = 40,
        num_features: int = 16,
        difficulty: float = 0.3,
        batch_size: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size, num_features=num_features, seed=seed)
        self.sizes = {"train": num_train, "val": num_val, "test": num_test, "predict": num_test}
        self.min_items, self.longest, self.difficulty = min_items, max_items, difficulty
        self.optimal_scorer = BayesOptimalScorer(num_features, seed)

    def has(self, split: str) -> bool:
        return True

    def load(self, split: str) -> RankingDataset:
        return make_ranking(
            self.sizes[split],
            min_items=self.min_items,
            max_items=self.longest,
            num_features=self.optimal_scorer.weight.numel(),
            difficulty=self.difficulty,
            seed=self.seed,
            split=("train", "val", "test", "predict").index("test" if split == "predict" else split),
        )
