"""Evaluation with real users: assignment, signals from the log, experiments, interleaving, one score of several, clicks as labels.

Without torch. a is the control (the old ranker), b the treatment: every difference is b - a. Statistics are those of
``lightning_rank.stats``. Event logs need polars (the extra ``online``).

========================================  ============================================================================
question                                  name
========================================  ============================================================================
Which arm is a user in?                   ``assign``
How many users, how long?                 ``plan``, ``duration``
What do users do?                         ``Signals``, or single ones: ``ClickThroughRate``, ``MeanClickPosition``, ``DwellTime``,
                                          ``QuickBack``, ``BounceRate``, ``Abandonment``, ``RequeryRate``
What do they say?                         ``Satisfaction``
Is the new ranker better?                 ``Experiment``, ``evaluate_plan``
Does the lift fade?                       ``novelty``
Which of two rankers, with few users?     ``team_draft``, ``credit``, ``interleaving_outcome``
One number of several?                    ``composite_score``, ``relative_score``
What do clicks teach the ranker?          ``swap_propensities``, ``PositionBasedModel``, ``click_targets``
========================================  ============================================================================
"""

from lightning_rank.online.clicks import (
    ClickTargets,
    PositionBasedModel,
    Propensities,
    click_targets,
    swap_propensities,
)
from lightning_rank.online.events import LogCounts
from lightning_rank.online.experiment import Comparison, Experiment, Novelty, assign, novelty
from lightning_rank.online.interleaving import (
    Interleaved,
    InterleavingOutcome,
    credit,
    interleaving_outcome,
    team_draft,
)
from lightning_rank.online.plans import ExperimentPlan, ExperimentReport, evaluate_files, evaluate_plan, plan
from lightning_rank.online.satisfaction import CustomerSatisfaction, Satisfaction
from lightning_rank.online.score import CompositeScore, composite_score, relative_score
from lightning_rank.online.signals import (
    Abandonment,
    BounceRate,
    ClickPosition,
    ClickThroughRate,
    Dwell,
    DwellTime,
    MeanClickPosition,
    QuickBack,
    Rate,
    RequeryRate,
    Signal,
    Signals,
    Units,
)
from lightning_rank.stats import Duration, duration

__all__ = [
    "Abandonment",
    "BounceRate",
    "ClickPosition",
    "ClickTargets",
    "ClickThroughRate",
    "Comparison",
    "CompositeScore",
    "CustomerSatisfaction",
    "Duration",
    "Dwell",
    "DwellTime",
    "Experiment",
    "ExperimentPlan",
    "ExperimentReport",
    "Interleaved",
    "InterleavingOutcome",
    "LogCounts",
    "MeanClickPosition",
    "Novelty",
    "PositionBasedModel",
    "Propensities",
    "QuickBack",
    "Rate",
    "RequeryRate",
    "Satisfaction",
    "Signal",
    "Signals",
    "Units",
    "assign",
    "click_targets",
    "composite_score",
    "credit",
    "duration",
    "evaluate_files",
    "evaluate_plan",
    "interleaving_outcome",
    "novelty",
    "plan",
    "relative_score",
    "swap_propensities",
    "team_draft",
]
