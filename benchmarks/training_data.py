"""The samples of `benchmarks.training` and everyone who loads them: rows of tokens, and JPEG files in class folders.

Tokens are rows of 512 int32, as tokenisers write them, in the Arrow stream that Hugging Face datasets keep; they are
masked for RoBERTa batch by batch (dynamic masking). Images are JPEGs of 256 × 256 pixels, 20 to 30 kB each; each is
decoded, cropped at random to 224 × 224, flipped at random and normalised. The same functions do that for every loader.
"""

from __future__ import annotations

import importlib.util
import io
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import DataLoader, Dataset

import penstock
from penstock.torch import DataLoader as Penstock
from penstock.torch import UnorderedDataLoader

LENGTH, CLASSES, SIDE, CROP = 512, 100, 256, 224
MASK, FIRST_WORD = 4, 5
"""Numbers below `FIRST_WORD` are special tokens, `MASK` among them."""
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DIFFERENT = 256
"""Pictures drawn; every file has one of them, which costs a reader as much as if all were different."""

Batch = tuple[torch.Tensor, torch.Tensor]
"""Inputs and targets."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a loader is asked for."""

    folder: Path
    batch: int
    nbytes: int
    seed: int = 0
    pin: bool = False
    latency: float = 0.0
    """Seconds that a file system far away takes to answer for a file; slept in the dataset."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A loader in one setting; ``mapped`` says that it reads through a memory map, where read-ahead matters."""

    name: str
    open: Callable[[Job], Iterator[Batch]]
    needs: tuple[str, ...] = ()
    """What must be installed; imported before the clock runs."""
    ours: bool = False
    mapped: bool = False
    distant: bool = False
    """Whether it can be run with a latency: it reads single files."""

    @property
    def missing(self) -> str:
        return next((name for name in self.needs if importlib.util.find_spec(name) is None), "")


def write_tokens(folder: Path, samples: int, *, words: int) -> None:
    """Write rows of tokens as a Hugging Face cache file, as a plain binary file, and converted by us."""
    kind = pa.list_(pa.int32(), LENGTH)
    schema = pa.schema([("input_ids", kind)])
    chance, plain = np.random.default_rng(0), importlib.util.find_spec("datasets") is None
    with (
        pa.OSFile(str(folder / "data.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, schema) as stream,
        open(folder / "tokens.bin", "wb") as file,
    ):
        for start in range(0, samples, 1000):
            # Words as rare as in a text: their numbers are spread evenly over powers.
            rows = min(1000, samples - start)
            tokens = np.exp(chance.random((rows, LENGTH)) * np.log(words - FIRST_WORD)).astype(np.int32) + FIRST_WORD
            column = pa.FixedSizeListArray.from_arrays(pa.array(tokens.reshape(-1)), LENGTH)
            stream.write_batch(pa.RecordBatch.from_arrays([column], schema=schema))
            if plain:
                file.write(tokens)
    penstock.convert(str(folder / "data.arrow"), folder / "penstock.arrow")


def write_images(folder: Path, samples: int, *, words: int) -> None:
    """Write JPEG files in a folder per class, and the file that we convert them to."""
    from PIL import Image

    chance, pictures = np.random.default_rng(0), []
    for _ in range(DIFFERENT):
        coarse = Image.fromarray(chance.integers(0, 256, (12, 12, 3), dtype=np.uint8)).resize((SIDE, SIDE))
        grain = chance.normal(0, 12, (SIDE, SIDE, 1))
        pixels = np.clip(np.asarray(coarse) + grain, 0, 255).astype(np.uint8)
        encoded = io.BytesIO()
        Image.fromarray(pixels).save(encoded, "jpeg", quality=85)
        pictures.append(encoded.getvalue())
    for number in range(CLASSES):
        (folder / "images" / f"{number:03d}").mkdir(parents=True)
    for number in range(samples):
        path = folder / "images" / f"{number * CLASSES // samples:03d}" / f"{number:06d}.jpg"
        path.write_bytes(pictures[number % DIFFERENT])
    penstock.convert(str(folder / "images"), folder / "penstock.arrow")


def mask(tokens: torch.Tensor, *, words: int) -> Batch:
    """Choose 15 % of the tokens to be told: of these hide 80 %, and put any word in the place of another 10 %."""
    tokens = tokens.long()
    chosen = torch.rand(tokens.shape) < 0.15
    labels = torch.where(chosen, tokens, -100)
    dice = torch.rand(tokens.shape)
    tokens = torch.where(chosen & (dice < 0.8), MASK, tokens)
    other = torch.randint(FIRST_WORD, words, tokens.shape)
    return torch.where(chosen & (dice >= 0.9), other, tokens), labels


def view(image: Any) -> torch.Tensor:
    """Decode an image and return a random part of it, perhaps mirrored, as the network takes it."""
    image = image.convert("RGB")
    left, top, flip = torch.randint(0, 1 << 30, (3,)).tolist()
    left, top = left % (image.width - CROP + 1), top % (image.height - CROP + 1)
    pixels = np.asarray(image.crop((left, top, left + CROP, top + CROP)))
    pixels = pixels[:, ::-1] if flip % 2 else pixels
    tensor = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))).float().div_(255)
    return tensor.sub_(torch.tensor(MEAN)[:, None, None]).div_(torch.tensor(DEVIATION)[:, None, None])


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """A folder of images per class, listed at the beginning, as TorchVision's ``ImageFolder`` does."""

    def __init__(self, folder: Path, latency: float = 0.0) -> None:
        names = sorted(entry.name for entry in os.scandir(folder))
        self.samples = [
            (os.path.join(folder, name, file), number)
            for number, name in enumerate(names)
            for file in sorted(os.listdir(folder / name))
        ]
        self.latency = latency

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        path, number = self.samples[index]
        if self.latency:
            time.sleep(self.latency)
        with open(path, "rb") as file:
            return view(Image.open(file)), number


class Mapped(Dataset[dict[str, torch.Tensor]]):
    """Rows of a memory-mapped file, where there are no Hugging Face datasets."""

    def __init__(self, path: Path) -> None:
        self.tokens = np.memmap(path, np.int32, "r").reshape(-1, LENGTH)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.from_numpy(self.tokens[index].copy())}


class Together:
    """Stacks rows of tokens and masks them."""

    def __init__(self, words: int) -> None:
        self.words = words

    def __call__(self, rows: list[dict[str, torch.Tensor]]) -> Batch:
        return mask(torch.stack([row["input_ids"] for row in rows]), words=self.words)


class Masked:
    """Masks a batch that came as one tensor."""

    def __init__(self, words: int) -> None:
        self.words = words

    def __call__(self, batch: tuple[torch.Tensor]) -> Batch:
        return mask(batch[0], words=self.words)


def decoded(row: tuple[bytes, torch.Tensor]) -> tuple[torch.Tensor, int]:
    """Make of a row of the converted file what the folder's samples are."""
    from PIL import Image

    return view(Image.open(io.BytesIO(row[0]))), int(row[1])


def _hugging_face(job: Job) -> Any:
    from datasets import Dataset as HuggingFace

    return HuggingFace.from_file(str(job.folder / "data.arrow")).with_format("torch")


def _rows(job: Job) -> Any:
    return Mapped(job.folder / "tokens.bin")


def _pictures(job: Job) -> Any:
    return Pictures(job.folder / "images", job.latency)


def _each_epoch(loader: Any) -> Iterator[Batch]:
    while True:
        yield from loader


def stock(job: Job, *, dataset: Callable[[Job], Any], collate: Any = None, workers: int) -> Iterator[Batch]:
    """Torch's own DataLoader."""
    torch.manual_seed(job.seed)
    options = {"shuffle": True, "num_workers": workers, "collate_fn": collate, "drop_last": True, "pin_memory": job.pin}
    return _each_epoch(DataLoader(dataset(job), job.batch, **options))  # type: ignore[arg-type]  # of several types


def unordered(job: Job, *, dataset: Callable[[Job], Any], collate: Any = None) -> Iterator[Batch]:
    """Our drop-in for it, over the same dataset."""
    torch.manual_seed(job.seed)
    return _each_epoch(
        UnorderedDataLoader(
            dataset(job), job.batch, shuffle=True, collate_fn=collate, drop_last=True, pin_memory=job.pin
        )
    )


def ours(job: Job, *, shuffle: str, share: float, columns: tuple[str, ...], **options: Any) -> Iterator[Batch]:
    """Our loader, over the converted file, in memory of a share of the data."""
    return _each_epoch(
        Penstock(
            str(job.folder / "penstock.arrow"),
            job.batch,
            shuffle=shuffle,
            memory=int(share * job.nbytes),
            columns=columns,
            seed=job.seed,
            drop_last=True,
            pin_memory=job.pin,
            **options,
        )
    )


SHARES = {"global": 0.25, "corgipile": 0.1}


def contestants(task: str, *, words: int, workers: tuple[int, ...]) -> dict[str, Contestant]:
    """Return everyone who loads the samples of a task, by name."""
    if task == "tokens":
        hugging = importlib.util.find_spec("datasets") is not None
        dataset, over = (_hugging_face, "HF map-style") if hugging else (_rows, "memmap")
        drop_in = {"dataset": dataset, "collate": Together(words)}
        options: dict[str, Any] = {"columns": ("input_ids",), "transform": Masked(words)}
        needs: tuple[str, ...] = ("datasets",) if hugging else ()
    else:
        drop_in, over = {"dataset": _pictures}, "folder"
        options = {"columns": ("image", "label"), "transform": decoded, "per_sample": True}
        needs = ("PIL",)
    mapped, distant = task == "tokens", task == "images"
    found = [
        Contestant(f"stock, {over}, {n} workers", partial(stock, workers=n, **drop_in), needs, False, mapped, distant)
        for n in workers
    ]
    found.append(Contestant(f"unordered, {over}", partial(unordered, **drop_in), needs, True, mapped, distant))
    for shuffle, share in SHARES.items():
        found.append(
            Contestant(
                f"penstock {shuffle}",
                partial(ours, shuffle=shuffle, share=share, **options),
                ("numba", *(name for name in needs if name != "datasets")),
                ours=True,
            )
        )
    return {contestant.name: contestant for contestant in found}


WRITERS = {"tokens": write_tokens, "images": write_images}
