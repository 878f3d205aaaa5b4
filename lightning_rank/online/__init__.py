"""Evaluation with real users."""

from lightning_rank.online.score import CompositeScore, composite_score, relative_score

__all__ = ["CompositeScore", "composite_score", "relative_score"]
