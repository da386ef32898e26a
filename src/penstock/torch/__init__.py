"""PyTorch: `DataLoader` for Penstock's sources, `CorgiPileDataset` and `UnorderedDataLoader` for torch's own world."""

from penstock.errors import MissingExtraError

try:
    import torch  # noqa: F401 - asked for first, to say what is missing and how to get it
except ImportError as error:
    raise MissingExtraError.of("torch", "torch", "penstock.torch") from error

from penstock.torch.dataset import CorgiPileDataset
from penstock.torch.loader import DataLoader
from penstock.torch.unordered import UnorderedDataLoader

__all__ = ["CorgiPileDataset", "DataLoader", "UnorderedDataLoader"]
