"""Tables, plots and pages of results."""

from lightning_rank.report.comparison import comparison_page

__all__ = ["comparison_page"]
