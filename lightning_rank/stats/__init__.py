"""Statistics of A/B tests and of rankers compared on the same queries; numpy and scipy only.

a is the control (the old ranker), b the treatment (the new one): every difference is b - a, every lift b / a - 1. Results are
immutable, print in one line and turn into plain Python by ``to_dict``. NaN means undefined, such as the lift over nothing. Bad
input is a ValueError that says what must hold and what came.

=====================================  ===============================================================================
question                               function
=====================================  ===============================================================================
How sure is this rate?                 ``wilson``
Do the rates of two arms differ?       ``two_proportions``
Is b not worse than a by a margin?     ``non_inferior``
Do the means per user differ?          ``welch``, ``welch_from_moments``
… ratios of sums, such as CTR?         ``ratio_of_means``, ``ratio_from_moments``
… given what users did before?         ``cuped``, ``cuped_from_moments``
Did the arms get the planned users?    ``sample_ratio``
How many users, how long?              ``sample_size_proportions``, ``power_proportions``, ``min_detectable_effect``, ``duration``
Several tests at once?                 ``adjust``
May I look before the end?             ``always_valid``, ``group_sequential_bounds``
Which ranker is better, by query?      ``paired``
How alike are two rankings?            ``rank_biased_overlap``, ``kendall_tau``
=====================================  ===============================================================================
"""

from lightning_rank.stats.agreement import kendall_tau, rank_biased_overlap
from lightning_rank.stats.comparison import PairedComparison, paired
from lightning_rank.stats.corrections import adjust
from lightning_rank.stats.means import (
    CupedDifference,
    MeanDifference,
    Moments,
    cuped,
    cuped_from_moments,
    ratio_from_moments,
    ratio_of_means,
    welch,
    welch_from_moments,
)
from lightning_rank.stats.power import (
    Duration,
    duration,
    min_detectable_effect,
    power_proportions,
    sample_size_proportions,
)
from lightning_rank.stats.proportions import (
    NonInferiority,
    Proportion,
    SampleRatio,
    TwoProportions,
    non_inferior,
    sample_ratio,
    two_proportions,
    wilson,
)
from lightning_rank.stats.results import Result
from lightning_rank.stats.sequential import AlwaysValid, GroupSequentialBounds, always_valid, group_sequential_bounds

__all__ = [
    "AlwaysValid",
    "CupedDifference",
    "Duration",
    "GroupSequentialBounds",
    "MeanDifference",
    "Moments",
    "NonInferiority",
    "PairedComparison",
    "Proportion",
    "Result",
    "SampleRatio",
    "TwoProportions",
    "adjust",
    "always_valid",
    "cuped",
    "cuped_from_moments",
    "duration",
    "group_sequential_bounds",
    "kendall_tau",
    "min_detectable_effect",
    "non_inferior",
    "paired",
    "power_proportions",
    "rank_biased_overlap",
    "ratio_from_moments",
    "ratio_of_means",
    "sample_ratio",
    "sample_size_proportions",
    "two_proportions",
    "welch",
    "welch_from_moments",
    "wilson",
]
