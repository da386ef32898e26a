"""A model for every group of rows: GROUP BY for training, with a search over hyper-parameters in each group."""

from __future__ import annotations

from penstock.groups.boosting import Boosting
from penstock.groups.group_by import GroupBy
from penstock.groups.grouped import Grouped
from penstock.groups.results import GroupModels
from penstock.groups.search_space import Search

__all__ = ["Boosting", "GroupBy", "GroupModels", "Grouped", "Search"]
