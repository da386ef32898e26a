"""Loader: windows of an order, read and shuffled ahead of their use, under a memory budget."""

from penstock.loader.loader import Loader

__all__ = ["Loader"]
