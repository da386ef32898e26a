"""A small transformer that learns to write, from text cut into blocks of tokens.

Run `python examples/torch_tokens.py` for sums in words that it makes up, or `python examples/torch_tokens.py FILE` for a
text of your own. Tokens are bytes here; a tokenizer's numbers go the same way. Each row of the converted file is a
fixed-size list of uint16, which is read by just its bytes, so an exact shuffle of all rows costs little.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import nn

import penstock
from penstock.torch import DataLoader

CONTEXT = 48
ROW = pa.schema(
    [pa.field("tokens", pa.list_(pa.field("item", pa.uint16(), nullable=False), CONTEXT + 1), nullable=False)]
)
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight"]


def write_text(path: Path, lines: int) -> None:
    """Write sums in words, sorted by their first word, as texts often lie by subject."""
    chance = np.random.default_rng(0)
    pairs = sorted(chance.integers(0, 5, (lines, 2)).tolist(), key=lambda pair: pair[0])
    path.write_text("".join(f"{WORDS[a]} and {WORDS[b]} are {WORDS[a + b]}.\n" for a, b in pairs))


def rows_of(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the text as rows of tokens, a piece of it at a time; a row ends with the token that the next begins with."""
    rest = np.empty(0, np.uint8)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            rest = np.concatenate([rest, np.frombuffer(piece, np.uint8)])
            count = (len(rest) - 1) // CONTEXT
            windows = np.lib.stride_tricks.sliding_window_view(rest, CONTEXT + 1)[: count * CONTEXT : CONTEXT]
            tokens = pa.array(windows.astype(np.uint16).reshape(-1))
            rows = pa.FixedSizeListArray.from_arrays(tokens, type=ROW.field("tokens").type)
            yield pa.RecordBatch.from_arrays([rows], schema=ROW)
            rest = rest[count * CONTEXT :]


class Writer(nn.Module):
    """A transformer of two layers that tells the next token from those before it."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return a score for each token that could come next, at every place."""
        length = tokens.shape[1]
        seen = nn.Transformer.generate_square_subsequent_mask(length)
        inputs = self.token(tokens) + self.place(torch.arange(length))
        return self.head(self.layers(inputs, mask=seen, is_causal=True))


def shifted(batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Part inputs from targets; runs in threads beside reading. Stored as uint16, tokens index as int64."""
    tokens = batch["tokens"].long()
    return tokens[:, :-1], tokens[:, 1:]


@torch.no_grad()
def go_on(model: Writer, text: str, length: int) -> str:
    """Write on from a text, each time the likeliest token."""
    tokens = list(text.encode())
    for _ in range(length):
        tokens.append(int(model(torch.tensor([tokens[-CONTEXT:]]))[0, -1].argmax()))
    return bytes(tokens).decode(errors="replace")


def main(text: Path | None = None, *, lines: int = 4000, epochs: int = 4) -> None:
    """Run the example in a folder of its own."""
    torch.set_num_threads(1)  # layers as small as these gain nothing from more
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as own:
        if text is None:
            text = Path(own, "sums.txt")
            write_text(text, lines)
        packed = penstock.convert(pa.RecordBatchReader.from_batches(ROW, rows_of(text)), Path(own, "tokens.arrow"))
        print(f"{packed.rows:,} rows of {CONTEXT + 1} tokens in {packed.blocks} blocks")
        model = Writer()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        with DataLoader(packed.path, 32, shuffle="global", memory="32MB", transform=shifted, drop_last=True) as loader:
            for epoch in range(epochs):
                losses = []
                for inputs, targets in loader:
                    loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
                print(f"epoch {epoch}: {len(losses)} batches, loss {losses[0]:.3f} to {np.mean(losses[-10:]):.3f}")
        print("it writes:", repr(go_on(model, "three and ", 40)))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
