"""Ranking metrics, losses and callbacks for PyTorch Lightning and torchmetrics.

Names are loaded when first used, so that the import is light. What belongs to Lightning (``RankingMonitor``, ``RankingModule``, the
data modules) comes from ``lightning_rank.lightning`` where ``lightning.pytorch`` has been imported and ``pytorch_lightning`` has
not, else from ``lightning_rank.pytorch_lightning``.
"""

from __future__ import annotations

import importlib
import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lightning_rank.advise import Advice
    from lightning_rank.data.batches import QueryBatchSampler, RankingDataset
    from lightning_rank.data.letor import read_letor
    from lightning_rank.data.synthetic import BayesOptimalScorer, make_ranking
    from lightning_rank.explain import Explanation
    from lightning_rank.losses import (
        ApproxMAPLoss,
        ApproxMRRLoss,
        ApproxNDCGLoss,
        InBatchSoftmaxLoss,
        LambdaLoss,
        LambdaRankLoss,
        ListMLELoss,
        ListNetLoss,
        NeuralNDCGLoss,
        OrdinalLoss,
        PairwiseHingeLoss,
        PListMLELoss,
        PLRankLoss,
        PointwiseBCELoss,
        PointwiseMSELoss,
        RankingLoss,
        RankNetLoss,
        SmoothLoss,
        SoftmaxLoss,
        UniqueSoftmaxLoss,
        XENDCGLoss,
        loss,
    )
    from lightning_rank.metrics import (
        AUC,
        DCG,
        ERR,
        F1,
        MAP,
        MRR,
        NDCG,
        RBP,
        BPref,
        FallOut,
        HitRate,
        Interval,
        Precision,
        RankingMetric,
        RankingMetrics,
        Recall,
        RPrecision,
        metric,
    )
    from lightning_rank.models import FeatureTransform, LinearScorer, MLPScorer, SelfAttentionScorer
    from lightning_rank.pytorch_lightning import (
        LetorDataModule,
        PredictionWriter,
        RankingModule,
        RankingMonitor,
        RankingReport,
        ReleaseGate,
        RetrievalMonitor,
        SafeCheckpointIO,
        SyntheticDataModule,
        TerminateOnNaN,
    )

_WHERE = {
    "lightning_rank.metrics": (
        "AUC", "DCG", "ERR", "F1", "MAP", "MRR", "NDCG", "RBP", "BPref", "FallOut",
        "HitRate", "Interval", "Precision", "RankingMetric", "RankingMetrics", "Recall", "RPrecision", "metric",
    ),
    "lightning_rank.losses": (
        "ApproxMAPLoss", "ApproxMRRLoss", "ApproxNDCGLoss", "InBatchSoftmaxLoss", "LambdaLoss",
        "LambdaRankLoss", "ListMLELoss", "ListNetLoss", "NeuralNDCGLoss", "OrdinalLoss", "PLRankLoss",
        "PListMLELoss", "PairwiseHingeLoss", "PointwiseBCELoss", "PointwiseMSELoss", "RankNetLoss",
        "RankingLoss", "SmoothLoss", "SoftmaxLoss", "UniqueSoftmaxLoss", "XENDCGLoss", "loss",
    ),
    "lightning_rank.advise": ("Advice",),
    "lightning_rank.explain": ("Explanation",),
    "lightning_rank.models": ("FeatureTransform", "LinearScorer", "MLPScorer", "SelfAttentionScorer"),
    "lightning_rank.data.batches": ("QueryBatchSampler", "RankingDataset"),
    "lightning_rank.data.letor": ("read_letor",),
    "lightning_rank.data.synthetic": ("BayesOptimalScorer", "make_ranking"),
    "": (
        "LetorDataModule", "PredictionWriter", "RankingModule", "RankingMonitor", "RankingReport", "ReleaseGate",
        "RetrievalMonitor", "SafeCheckpointIO", "SyntheticDataModule", "TerminateOnNaN",
    ),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        near = get_close_matches(name, __all__, n=1) if not name.startswith("_") else []
        hint = f". Did you mean {near[0]!r}?" if near else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    module = _MODULE_OF[name]
    if not module:
        only_lightning = "lightning.pytorch" in sys.modules and "pytorch_lightning" not in sys.modules
        module = "lightning_rank.lightning" if only_lightning else "lightning_rank.pytorch_lightning"
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
