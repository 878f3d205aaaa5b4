"""fit, validate, test and predict from a configuration file, on LightningCLI."""

from __future__ import annotations

import errno
import operator
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from lightning_utilities.core.imports import compare_version
from lightning_utilities.core.overrides import is_overridden
from pytorch_lightning import LightningDataModule
from pytorch_lightning.callbacks import Callback, ModelCheckpoint, ProgressBar, RichProgressBar
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.plugins.io import TorchCheckpointIO
from pytorch_lightning.strategies import DDPStrategy, SingleDeviceStrategy
from pytorch_lightning.utilities import rank_zero_info, rank_zero_only
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.nn import LazyLinear
from torch.nn.parameter import is_lazy

from lightning_rank import __version__
from lightning_rank.checkpoints import check_checkpoint, is_local, shapes_in
from lightning_rank.data.batches import QueryBatchSampler, RankingDataset
from lightning_rank.datamodule import RankingData
from lightning_rank.divergence import last_checkpoint
from lightning_rank.metrics import RankingMetrics
from lightning_rank.pytorch_lightning import PredictionWriter, RankingModule, RankingMonitor, SafeCheckpointIO
from lightning_rank.report.curves import plot_curves
from lightning_rank.report.tables import print_table


class RankingCLI(LightningCLI):
    """LightningCLI for rankers: monitors, keeps the best checkpoint by the first metric, and tests it after ``fit``."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_class_arguments(PredictionWriter, "predictions")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        super().parse_arguments(parser, args)
        if (path := self._checkpoint()) is not None:  # before anything is read from it, or made
            check_checkpoint(path)
            self._shapes = shapes_in(path)

    def _checkpoint(self) -> Path | None:
        """The file that ``--ckpt_path`` names, if it names one and not ``best``, ``last`` or a URL."""
        path = self.config[self.config["subcommand"]].get("ckpt_path")
        if path is None or not is_local(path) or path in ("best", "last", "hpc") or str(path).startswith("registry"):
            return None
        return Path(path)

    def instantiate_classes(self) -> None:
        super().instantiate_classes()
        self._refuse_another_model()  # before data are read; Lightning before 2.5 has no hook for it

    def _refuse_another_model(self) -> None:
        """Raise if the checkpoint is one of another model."""
        path = self._checkpoint()
        if path is None or path.is_dir() or not self.model.strict_loading:
            return
        model, kept = self.model.state_dict(), self._shapes
        wrong = [f"{name} is missing" for name in model if name not in kept]
        wrong += [f"{name} is not of this model" for name in kept if name not in model]
        # Buffers may take another shape when they are loaded, as those that are learnt from data do.
        wrong += [
            f"{name} is {list(kept[name])}, that of the model {list(weight.shape)}"
            for name, weight in self.model.named_parameters()
            if name in kept and not is_lazy(weight) and kept[name] != weight.shape
        ]
        # Of a layer that takes its inputs from the first data, the outputs are known.
        wrong += [
            f"{name}.weight has {kept[f'{name}.weight'][0]} outputs, that of the model {layer.out_features}"
            for name, layer in self.model.named_modules()
            if isinstance(layer, LazyLinear) and kept.get(f"{name}.weight", [layer.out_features])[0] != layer.out_features
        ]
        if wrong:
            more = f", and {len(wrong) - 4} more" if len(wrong) > 4 else ""
            raise ValueError(
                f"The checkpoint {path} is one of another model than {type(self.model).__name__} with "
                f"{type(getattr(self.model, 'scorer', self.model)).__name__} as configured: {'; '.join(wrong[:4])}{more}. Give the "
                "config.yaml that was written beside it."
            )

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        callbacks: list[Callback] = list(self._get(self.config_init, "trainer.callbacks") or [])

        def has(kind: type) -> bool:
            return any(isinstance(callback, kind) for callback in callbacks)

        if not has(RankingMonitor):
            callbacks.append(RankingMonitor())
        trainer = self._get(self.config_init, "trainer")
        if not has(ModelCheckpoint) and trainer.get("enable_checkpointing") is not False:
            chosen_by = self._monitor(callbacks).logged_keys("val")[0]
            callbacks.append(
                ModelCheckpoint(
                    monitor=chosen_by,
                    mode="max",
                    filename="best-epoch={epoch}",
                    auto_insert_metric_name=False,
                )
            )
            # Of each epoch: `save_last` of the one above writes with the best ones alone.
            callbacks.append(ModelCheckpoint(filename="last", enable_version_counter=False))
        shows_progress = trainer.get("enable_progress_bar") is not False
        if shows_progress and not has(ProgressBar) and find_spec("rich") is not None:
            callbacks.append(_RichProgressBar(leave=False))
        if self.subcommand == "predict":
            callbacks.append(self._get(self.config_init, "predictions"))
        logger = trainer.get("logger")
        if logger is None or logger is True:
            logger = CSVLogger(trainer.get("default_root_dir") or ".")
        made: Any = super().instantiate_trainer(callbacks=callbacks, logger=logger, **kwargs)
        # Strategies that spread a checkpoint over files write them in their own way.
        if (
            isinstance(made.strategy, SingleDeviceStrategy | DDPStrategy)
            and type(made.strategy.checkpoint_io) is TorchCheckpointIO
        ):
            made.strategy.checkpoint_io = SafeCheckpointIO()
        return made

    @staticmethod
    def _monitor(callbacks: list[Callback]) -> RankingMonitor:
        return next(callback for callback in callbacks if isinstance(callback, RankingMonitor))

    def _run_subcommand(self, subcommand: str) -> None:
        try:
            super()._run_subcommand(subcommand)
        except SystemExit:  # how Lightning ends at Ctrl-C
            if getattr(self, "trainer", None) is not None and (how := self._says_how_to_go_on()):
                rank_zero_info(f"Interrupted.{how}")
            raise
        except RuntimeError as error:
            # PyTorch raises it wherever the main process is when it hears of it.
            if "DataLoader worker" not in str(error):
                raise
            what = str(error).strip().splitlines()[0].rstrip(". ")
            raise ChildProcessError(
                f"A process that makes batches has died: {what}. Out of memory? Take fewer or none (--data.num_workers 0)."
                f"{self._says_how_to_go_on()}"
            ) from error
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise OSError(error.errno, f"{error.strerror}.{self._says_how_to_go_on()}") from error

    def _says_how_to_go_on(self) -> str:
        kept = last_checkpoint(self.trainer) if self.subcommand == "fit" else None
        return f" Go on with --ckpt_path {kept}" if kept else ""

    def before_validate(self) -> None:
        self._needs_checkpoint()

    def before_test(self) -> None:
        self._needs_checkpoint()

    def before_predict(self) -> None:
        self._needs_checkpoint()
        writer = self._get(self.config_init, "predictions")
        if writer.run is None and writer.scores is None:
            raise ValueError("predict needs a file to write: --predictions.run RUN.txt or --predictions.scores SCORES.txt.")

    def _needs_checkpoint(self) -> None:
        if self._get(self.config, "ckpt_path") is None:
            raise ValueError(f"{self.subcommand} needs a trained model: --ckpt_path FILE.ckpt, as fit names it at its end.")

    def after_fit(self) -> None:
        """Test the best checkpoint, and say how good it is, where everything lies and what comes next."""
        trainer: Any = self.trainer
        data = self.datamodule
        if trainer.interrupted or trainer.fast_dev_run:
            return
        is_ours = isinstance(data, RankingData)
        has_test = data.has("test") if is_ours else is_overridden("test_dataloader", data, LightningDataModule)
        best = getattr(trainer.checkpoint_callback, "best_model_path", "")
        if has_test:
            # The table of a data module of one's own is Lightning's.
            trainer.test(self.model, datamodule=data, ckpt_path=best or None, verbose=not is_ours)
        self._say_results(best, has_test, trainer.log_dir)  # all processes agree on the folder, so each must ask

    @rank_zero_only
    def _say_results(self, best: str, has_test: bool, log_dir: str | None) -> None:
        if has_test and isinstance(self.datamodule, RankingData):
            self._print_test_table()
        elif not has_test:
            print("There is no test data, so nothing was tested; a file is given as --data.test FILE.")
        print(f"\ncheckpoint  {best or 'none was kept'}")
        if log_dir is not None and Path(log_dir, "metrics.csv").exists():
            print(f"curves      {self._draw_curves(Path(log_dir, 'metrics.csv'))}")
        if best and log_dir is not None and isinstance(self.datamodule, RankingData):
            config = f"--config {Path(log_dir, 'config.yaml')} --ckpt_path {best}"
            print(f"next        lightning-rank predict {config} --predictions.run run.txt")

    def _draw_curves(self, path: Path) -> str:
        if find_spec("matplotlib") is None:
            return f"{path} (a picture too with: pip install 'lightning-rank[plot]')"
        chosen_by = getattr(self.trainer.checkpoint_callback, "monitor", None) or "val/ndcg@10"
        try:
            plot_curves(path, chosen_by=chosen_by).savefig(path.with_name("curves.png"), dpi=120)
        except ValueError:  # no validation metric was logged, as without a validation file
            return str(path)
        return f"{path}, {path.with_name('curves.png')}"

    def _print_test_table(self) -> None:
        trainer: Any = self.trainer
        monitor = self._monitor(trainer.callbacks)
        data = self.datamodule.splits["test"]
        metrics = monitor.new_metrics()
        metrics.distributed_available_fn = lambda: False  # this process alone looks at the whole of the data
        keys = dict(zip(metrics.names, monitor.logged_keys("test"), strict=False))
        columns = {
            "random order": evaluate(data, lambda batch: torch.zeros_like(batch["target"]), metrics),
            "this model": {name: trainer.callback_metrics[key].item() for name, key in keys.items()},
        }
        optimal = getattr(self.datamodule, "optimal_scorer", None)
        if optimal is not None:
            columns["best possible"] = evaluate(data, lambda batch: optimal(batch["features"]), metrics)
        columns["ideal order"] = evaluate(data, lambda batch: batch["target"], metrics)
        empty = max(metrics.num_empty.values())
        counted = {"skip": "are skipped", "neg": "count 0", "pos": "count 1"}.get(
            metrics.entries[0].empty_target_action, ""
        )
        title = f"Test: {len(data)} queries" + (f", of which {empty} without a relevant item {counted}" if empty else "")
        print()
        print_table(title, ["", *columns], [[name, *(f"{c[name]:.4f}" for c in columns.values())] for name in keys])


class _SaveConfig(SaveConfigCallback):
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        # Without a logger the folder is that of work, where only what a checkpoint is used with is worth a file.
        if trainer.logger is None and stage != "fit":
            return
        try:
            super().setup(trainer, pl_module, stage)
        except RuntimeError as error:
            if "to NOT exist" not in str(error):
                raise
            folder = Path(trainer.log_dir).absolute()
            raise FileExistsError(
                f"The configuration of a run is written beside its results, and {folder / self.config_filename} is there already: "
                "move it away, or give another folder (--trainer.default_root_dir FOLDER, or another version of the logger)."
            ) from error


class _RichProgressBar(RichProgressBar):
    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        # Lightning before 2.5.4 fails where there is nothing to validate on.
        if self.val_sanity_progress_bar_id is not None:
            super().on_sanity_check_end(trainer, pl_module)


@torch.no_grad()
def evaluate(
    data: RankingDataset, score: Callable[[dict[str, Tensor]], Tensor], metrics: RankingMetrics
) -> dict[str, float]:
    """Metrics of what ``score`` makes of each batch of a data set; they keep the state."""
    metrics.reset()
    for queries in QueryBatchSampler(data.lengths, 256, num_replicas=1, rank=0):
        batch = data[queries]
        metrics.update(score(batch), batch["target"], mask=batch["mask"])
    return {name: value.item() for name, value in metrics.compute().items()}


def run(args: list[str] | None) -> None:
    """Run a subcommand of LightningCLI; None takes those of the process.

    Raises:
        ValueError: also for what Lightning finds wrong with the configuration.
    """
    # Advice on speed that is wrong for data in memory, and a deprecation inside Lightning that no user can act on.
    for advice in (
        ".*does not have many workers.*",
        "The number of training batches.*",
        ".*isinstance.treespec, LeafSpec.*",
    ):
        warnings.filterwarnings("ignore", advice)
    try:
        RankingCLI(
            RankingModule,
            LightningDataModule,
            subclass_mode_data=True,
            seed_everything_default=0,
            save_config_callback=_SaveConfig,
            trainer_defaults={"max_epochs": 50},
            parser_kwargs={
                "version": __version__,
                "prog": "lightning-rank",
                "description": "Train and evaluate rankers with PyTorch Lightning. Files of results are judged by "
                "'lightning-rank evaluate' and 'lightning-rank compare' and shown by 'lightning-rank explain' and "
                "'lightning-rank report', experiments by 'lightning-rank signals', 'lightning-rank experiment' and 'lightning-rank "
                "gate', data sets are looked into by 'lightning-rank data'; each has a --help.",
            },
            args=args,
        )
    except MisconfigurationException as error:
        raise ValueError(str(error)) from error
    # Else threads of gloo may abort the process as Python ends; with PyTorch 2.4 this may wait for them for ever.
    if (
        torch.distributed.is_available()
        and torch.distributed.is_initialized()
        and compare_version("torch", operator.ge, "2.13.0", use_base_version=True)
    ):
        torch.distributed.destroy_process_group()
