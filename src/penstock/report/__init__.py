"""Self-contained HTML pages: one for a comparison of shuffling strategies, one for a search over groups.

Plain data in, text out: no script, no font, no network, nothing beside the file. The plots are inline SVG drawn
here, legible on a phone, on paper and in the dark. Nothing is measured or computed from data sets in this room.
"""

from penstock.report.data import Comparison, OrderPicture, Run
from penstock.report.groupdata import Forest
from penstock.report.groups import write_groups
from penstock.report.orders import order_plot
from penstock.report.page import render, write_report
from penstock.report.plot import Axes, Series, line_plot, svg_file

__all__ = [
    "Axes",
    "Comparison",
    "Forest",
    "OrderPicture",
    "Run",
    "Series",
    "line_plot",
    "order_plot",
    "render",
    "svg_file",
    "write_groups",
    "write_report",
]
