"""The fenced blocks of a document, and the ``penstock`` commands in them."""

from __future__ import annotations

import re
from dataclasses import dataclass

PYTHON, SHELL = ("python", "py", "pycon"), ("console", "bash", "sh", "shell")

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,}|~{3,}) *(?P<language>\w*).*$")
SKIP = re.compile(r"^\s*<!--\s*not run:\s*(?P<reason>\S.*?)\s*-->\s*$")
FILE = re.compile(r"^\s*<!--\s*file:\s*(?P<name>\S+)\s*-->\s*$")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, its text, and the line its text starts on.

    ``skipped`` says why it is not run, if it is not; ``file`` is the program that it is the text of, for blocks that are one.
    """

    language: str
    text: str
    line: int
    skipped: str | None = None
    file: str | None = None


def blocks_of(text: str) -> list[Block]:
    """Find the fenced blocks of a document, in order."""
    found, lines, at, before = [], text.splitlines(), 0, ""
    while at < len(lines):
        fence = FENCE.match(lines[at])
        if fence is None:
            before = lines[at] if lines[at].strip() else before
            at += 1
            continue
        start = at + 1
        at = start
        while at < len(lines) and lines[at].strip() != fence["ticks"]:
            at += 1
        assert at < len(lines), f"line {start}: this block is never closed"
        inside = [line.removeprefix(fence["indent"]) for line in lines[start:at]]
        reason, file = SKIP.match(before), FILE.match(before)
        found.append(
            Block(
                fence["language"],
                "\n".join(inside) + "\n",
                start + 1,
                reason["reason"] if reason else None,
                file["name"] if file else None,
            )
        )
        before, at = "", at + 1
    return found


def commands_of(block: Block) -> list[tuple[int, str]]:
    """Find the ``penstock`` commands of a shell block, lines ended by a backslash joined, with their line numbers."""
    found: list[tuple[int, str]] = []
    open_line = False
    for number, line in enumerate(block.text.splitlines(), block.line):
        text = line.strip()
        if open_line:
            found[-1] = (found[-1][0], found[-1][1] + " " + text.removeprefix("> ").removesuffix("\\").strip())
        elif match := re.match(
            r"(?:\$ )?(penstock\b.*)" if block.language != "console" else r"\$ (penstock\b.*)", text
        ):
            found.append((number, match[1].removesuffix("\\").strip()))
        else:
            continue
        open_line = text.endswith("\\")
    return found
