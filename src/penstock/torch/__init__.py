"""PyTorch: `DataLoader` for Penstock's sources, `CorgiPileDataset` and `UnorderedDataLoader` for torch's own world."""

from penstock.torch.dataset import CorgiPileDataset
from penstock.torch.loader import DataLoader
from penstock.torch.unordered import UnorderedDataLoader

__all__ = ["CorgiPileDataset", "DataLoader", "UnorderedDataLoader"]
