"""Loaders compared: Penstock against everybody else's, each in its best documented setting on the same bytes.

The peers live in ``.venv-peers`` (``make peers``), and ours runs there beside them. Without it only ours and the
raw reads are measured. ``python -m benchmarks.loaders --help`` tells the options.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.conditions import ROOT
from benchmarks.harness import Claim

PEERS = ROOT / ".venv-peers" / "bin" / "python"


def run(quick: bool) -> list[Claim]:
    """Run the whole contest in the peers' interpreter, and return its claims."""
    there = PEERS.exists()
    if not there:
        print("  .venv-peers is missing: peers are skipped (run: make peers)", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        answer = Path(folder) / "claims.json"
        command = [str(PEERS if there else sys.executable), "-m", "benchmarks.loaders", "--json", str(answer)]
        command += [] if there else ["--only", "raw,penstock"]
        command += ["--quick"] if quick else []
        subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False)
        if not answer.exists():
            raise RuntimeError(f"{' '.join(command)} gave no answer")
        return [Claim(**claim) for claim in json.loads(answer.read_text())["claims"]]
