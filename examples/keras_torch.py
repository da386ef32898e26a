"""Keras 3 on its torch backend, fed by `penstock.torch.DataLoader`.

Run `python examples/keras_torch.py`, with keras and torch installed. `fit` takes a generator of batches and the number of
them that make an epoch; both come from the loader. (Keras's other backends take the NumPy batches of `penstock.batches` in
the same way.)
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa

import penstock

os.environ["KERAS_BACKEND"] = "torch"  # read when keras is imported
try:
    import keras
    import torch
except ImportError as missing:
    print(f"{missing.name} is not installed, so there is nothing to show: pip install keras torch")
    sys.exit()

from penstock.torch import DataLoader


def write_rows(path: Path, count: int, *, seed: int) -> None:
    """Write images of 8 by 8 pixels, with a bright patch that tells the class, sorted by class."""
    chance = np.random.default_rng(seed)
    label = np.arange(count) * 4 // count
    images = chance.integers(0, 160, (count, 8, 8, 1)).astype(np.uint8)
    for quarter in range(4):
        row, column = 4 * (quarter // 2), 4 * (quarter % 2)
        images[label == quarter, row : row + 4, column : column + 4] += 60
    pixels = pa.FixedSizeListArray.from_arrays(pa.array(images.reshape(-1)), 64)
    column = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.uint8(), (8, 8, 1)), pixels)
    penstock.convert(pa.table({"image": column, "label": label}), path)


def floats(batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Cast pixels, which are stored as uint8, to what layers compute with."""
    images, labels = batch
    return images.float() / 255, labels


def endless(loader: DataLoader) -> Generator[tuple[torch.Tensor, torch.Tensor], None, None]:
    """Yield the batches of one epoch after another, each in an order of its own."""
    while True:
        yield from loader


def main(*, rows: int = 2000, epochs: int = 3) -> None:
    """Run the example in a folder of its own."""
    keras.utils.set_random_seed(0)
    with tempfile.TemporaryDirectory() as own:
        train, test = Path(own, "train.arrow"), Path(own, "test.arrow")
        write_rows(train, rows, seed=1)
        write_rows(test, rows // 10, seed=2)
        model = keras.Sequential(
            [keras.layers.Conv2D(8, 3, activation="relu"), keras.layers.Flatten(), keras.layers.Dense(4)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
        wanted = ("image", "label")
        with (
            DataLoader(train, 32, shuffle="corgipile", columns=wanted, transform=floats) as loader,
            closing(endless(loader)) as stream,
        ):
            told = model.fit(stream, steps_per_epoch=len(loader), epochs=epochs, shuffle=False, verbose=0)
        with (
            DataLoader(test, 100, shuffle="none", columns=wanted, transform=floats) as loader,
            closing(endless(loader)) as stream,
        ):
            measured = model.evaluate(stream, steps=len(loader), verbose=0, return_dict=True)
        print("training loss by epoch:", " ".join(f"{value:.3f}" for value in told.history["loss"]))
        print(f"test accuracy {measured['accuracy']:.3f}")


if __name__ == "__main__":
    main()
