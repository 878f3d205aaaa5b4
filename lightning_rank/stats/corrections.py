"""Several tests at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_rank.stats.checks import check_choice

METHODS = ("holm", "bonferroni", "hochberg", "bh", "by")


def adjust(pvalues: Any, method: str = "holm") -> np.ndarray:
    """p-values corrected for being looked at together; all metrics, arms and segments of a decision are one family.

    ``holm``, ``bonferroni`` and ``hochberg`` keep the probability of any false alarm (Hochberg's for independent tests),
    ``bh`` and ``by`` the expected share of false alarms among the alarms (Benjamini and Yekutieli's under any dependence).

    Args:
        pvalues: any shape; one family. NaN (no test) stays NaN and is not counted.
        method: ``"holm"``, ``"bonferroni"``, ``"hochberg"``, ``"bh"`` or ``"by"``.

    Returns:
        Of the same shape and order, at most 1.

    Raises:
        ValueError: a p-value outside [0, 1], an unknown method.

    Source: Holm, Scandinavian Journal of Statistics 1979; Hochberg, Biometrika 1988; Benjamini and Hochberg, JRSS B 1995;
        Benjamini and Yekutieli, Annals of Statistics 2001.

    Example:
        >>> adjust([0.01, 0.04, 0.03, 0.005, 0.2]).round(6).tolist()
        [0.04, 0.09, 0.09, 0.025, 0.2]
    """
    check_choice("method", method, METHODS)
    try:
        given = np.asarray(pvalues if hasattr(pvalues, "__array__") else list(pvalues), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`pvalues` must be a sequence of numbers: {error}.") from error
    counts = np.logical_not(np.isnan(given))
    p = given[counts]
    if ((p < 0) | (p > 1)).any():
        raise ValueError(f"`pvalues` must be within [0, 1], got {p[(p < 0) | (p > 1)][0]:g}.")
    m = len(p)
    order = np.argsort(p, kind="stable")
    position = np.arange(1, m + 1)
    factor = {
        "bonferroni": np.full(m, float(m)),
        "holm": m - position + 1.0,
        "hochberg": m - position + 1.0,
        "bh": m / position,
        "by": m / position * np.sum(1 / position),
    }[method]
    raised = p[order] * factor
    # A larger p never has the smaller correction: Holm goes up from the smallest p, the others down from the largest.
    raised = np.maximum.accumulate(raised) if method == "holm" else np.minimum.accumulate(raised[::-1])[::-1]
    corrected = np.empty(m)
    corrected[order] = np.minimum(raised, 1)
    result = np.full(given.shape, np.nan)
    result[counts] = corrected
    return result
