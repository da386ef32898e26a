"""PyTorch: `DataLoader` for Penstock's sources, `CorgiPileDataset` and `UnorderedDataLoader` for torch's own world.

`TorchModel` is for learning over groups.
"""

from typing import Any

from penstock.errors import MissingExtraError

try:
    import torch  # noqa: F401 - asked for first, to say what is missing and how to get it
except ImportError as error:
    raise MissingExtraError.of("torch", "torch", "penstock.torch") from error

from penstock.torch.dataset import CorgiPileDataset
from penstock.torch.images import Image
from penstock.torch.loader import DataLoader
from penstock.torch.unordered import UnorderedDataLoader

__all__ = ["CorgiPileDataset", "DataLoader", "Image", "TorchModel", "UnorderedDataLoader"]


def __getattr__(name: str) -> Any:
    if name == "TorchModel":  # those who load batches need nothing of groups
        from penstock.torch.groups import TorchModel

        return TorchModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
