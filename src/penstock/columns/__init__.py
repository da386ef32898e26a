"""Columns as features: the recipe that turns stored columns into rows of numbers, and the classes of a label.

`choose_features` settles which columns are features; the `Recipe` that it returns is saved with the model.
"""

from penstock.columns.choose import choose_features
from penstock.columns.labels import LabelMap
from penstock.columns.recipe import Recipe

__all__ = ["LabelMap", "Recipe", "choose_features"]
