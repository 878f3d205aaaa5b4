"""The callbacks and modules for programs that import ``lightning.pytorch``."""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.fabric.plugins import TorchCheckpointIO

from lightning_rank.callbacks import PredictionWriterMixin, RankingMonitorMixin
from lightning_rank.callbacks_divergence import TerminateOnNaNMixin
from lightning_rank.callbacks_gate import ReleaseGateMixin
from lightning_rank.callbacks_report import RankingReportMixin
from lightning_rank.callbacks_retrieval import RetrievalMonitorMixin
from lightning_rank.checkpoints import SafeCheckpointIOMixin
from lightning_rank.datamodule import LetorDataModuleMixin, SyntheticDataModuleMixin
from lightning_rank.module import RankingModuleMixin

__all__ = [
    "LetorDataModule",
    "PredictionWriter",
    "RankingModule",
    "RankingMonitor",
    "RankingReport",
    "ReleaseGate",
    "RetrievalMonitor",
    "SafeCheckpointIO",
    "SyntheticDataModule",
    "TerminateOnNaN",
]


class RankingMonitor(RankingMonitorMixin, pl.Callback):
    __doc__ = RankingMonitorMixin.__doc__


class RankingReport(RankingReportMixin, pl.Callback):
    __doc__ = RankingReportMixin.__doc__


class PredictionWriter(PredictionWriterMixin, pl.Callback):
    __doc__ = PredictionWriterMixin.__doc__


class ReleaseGate(ReleaseGateMixin, pl.Callback):
    __doc__ = ReleaseGateMixin.__doc__


class RetrievalMonitor(RetrievalMonitorMixin, pl.Callback):
    __doc__ = RetrievalMonitorMixin.__doc__


class TerminateOnNaN(TerminateOnNaNMixin, pl.Callback):
    __doc__ = TerminateOnNaNMixin.__doc__


class SafeCheckpointIO(SafeCheckpointIOMixin, TorchCheckpointIO):
    __doc__ = SafeCheckpointIOMixin.__doc__


class RankingModule(RankingModuleMixin, pl.LightningModule):
    __doc__ = RankingModuleMixin.__doc__


class LetorDataModule(LetorDataModuleMixin, pl.LightningDataModule):
    __doc__ = LetorDataModuleMixin.__doc__


class SyntheticDataModule(SyntheticDataModuleMixin, pl.LightningDataModule):
    __doc__ = SyntheticDataModuleMixin.__doc__
