"""``python -m benchmarks.faults``: run the faults and print the table and the bars."""

from __future__ import annotations

import sys

from benchmarks.faults import run
from benchmarks.harness import main

if __name__ == "__main__":
    sys.exit(main(run))
