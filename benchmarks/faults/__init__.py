"""Faults on purpose, at every door: what comes of each is correct, refused, a crash, or silently wrong.

Bits flipped and ends cut off in every file that the product writes, commands ended by SIGKILL, full disks, inputs that
change between a kill and the resumption, dead workers, lost connections. The bar is that nothing is silently wrong.
The table is printed as Markdown, for the docs.
"""

from __future__ import annotations

from benchmarks.harness import Claim


def run(quick: bool) -> list[Claim]:
    """Run all faults, print the table and every fault that went wrong, and return the claims."""
    # Not above: the modules of this package are run as programs, too.
    from benchmarks.faults.suite import run_all

    return run_all(quick=quick)
