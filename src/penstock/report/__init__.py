"""Self-contained HTML pages: one for a comparison of shuffling strategies, one for a search over groups, one for an
evaluation of a model.

Plain data in, text out: no script, no font, no network, nothing beside the file. The plots are inline SVG drawn
here, legible on a phone, on paper and in the dark. Nothing is measured or computed from data sets in this room.
"""

from penstock.report.comparison_data import Comparison, OrderPicture, StrategyRun
from penstock.report.drawing import Labels
from penstock.report.evaluation_page import Evaluation
from penstock.report.group_data import GroupPage
from penstock.report.orders import order_plot
from penstock.report.plot import Axes, Series, line_plot
from penstock.report.writing import render, write_report

__all__ = [
    "Axes",
    "Comparison",
    "Evaluation",
    "GroupPage",
    "Labels",
    "OrderPicture",
    "Series",
    "StrategyRun",
    "line_plot",
    "order_plot",
    "render",
    "write_report",
]
