"""Does training end sooner? RINAS's claim (section 6.1): samples trained on per second, ours over the stock DataLoader.

Cold: caches dropped, memory limited to half the data (1 GB at least). Warm: files read through before, no limit.
Distant: cold, and every image file answers 5 ms late, as an assumed network file system would. Each turn is a fresh
process that computes with one thread; stock loaders count from their first batch on, ours from when they are made.

Two cores cannot train RoBERTa: on a CPU the accelerator is simulated. Its step is set by what the best stock loader
gives without a model, so that loading weighs as it did on the paper's GPUs: half of that time per batch for tokens (up
to 50 % of the throughput was lost there), 15 % for images (loading took up to 85 %). A small real model, which shares
the cores with its loader, has a table but no bar. ``--device cuda`` trains real models of the paper's kind instead.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import harness
from benchmarks.conditions import ROOT, read_ahead, read_ahead_settings, read_through
from benchmarks.harness import Claim
from benchmarks.loaders.turns import USUAL, attempt

if TYPE_CHECKING:
    from benchmarks.training_data import Contestant

PEERS = ROOT / ".venv-peers"
BARS = {"tokens": 1.59, "images": 1.89}
SHARE = {"tokens": 0.5, "images": 0.15}
"""What a simulated step takes of the time in which the best stock loader makes a batch."""
SAMPLES = {"tokens": 1_000_000, "images": 60_000}
FEW = {"tokens": 40_000, "images": 2_000}
SHORT = {"tokens": 0.004, "images": 0.03}
"""Seconds of a simulated step where little time is to be spent on measuring one."""
CONDITIONS = ("cold", "warm", "distant")
LATENCY = 0.005
LEAST_LIMIT = 1_000_000_000
"""Bytes; below it, interpreters and libraries are measured and not loaders."""
FOR_CUDA = 4_000_000_000
"""What a process with a GPU holds besides."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a contest; ``step`` is a simulated step's seconds, None stands for a real model."""

    task: str
    condition: str
    device: str
    folder: Path
    nbytes: int
    rounds: int
    seconds: float
    workers: tuple[int, ...]
    step: float | None = None

    @property
    def batch(self) -> int:
        return 64 if self.task == "images" and self.device == "cpu" else 256

    @property
    def words(self) -> int:
        return 1024 if self.device == "cpu" else 50_265

    @property
    def limit(self) -> int | None:
        more = 0 if self.device == "cpu" else FOR_CUDA
        return None if self.condition == "warm" else max(self.nbytes // 2, LEAST_LIMIT) + more


@dataclass(slots=True)
class Outcome:
    """What a contestant's turns gave; ``failure`` is why it is out."""

    contestant: Contestant
    ahead: int | None = None
    runs: list[dict[str, Any]] = field(default_factory=list)
    failure: str = ""

    @property
    def works(self) -> bool:
        return bool(self.runs) and not self.failure

    def median(self, key: str = "rate") -> float:
        return statistics.median(run[key] for run in self.runs) if self.works else math.nan


def train(name: str, task: str, device: str, folder: str, nbytes: int, seconds: float, **how: Any) -> dict[str, Any]:
    """Train with one loader for some seconds after its first batch; return samples per second and who waited."""
    from benchmarks.training_data import Job, contestants
    from benchmarks.training_models import learner

    contestant = contestants(task, words=how["words"], workers=tuple(how["workers"]))[name]
    for module in contestant.needs:
        importlib.import_module(module)
    pupil = learner(task, device=device, words=how["words"], step=how["step"])
    latency = LATENCY if how["condition"] == "distant" else 0.0
    job = Job(Path(folder), how["batch"], nbytes, seed=how["seed"], pin=device != "cpu", latency=latency)
    began = time.perf_counter()
    batches = contestant.open(job)
    count, waited, first = 0, 0.0, 0.0
    while True:
        asked = time.perf_counter()
        inputs, targets = next(batches)
        now = time.perf_counter()
        if not first:
            first = now
        else:
            waited += now - asked
            count += len(inputs)
        pupil.learn((inputs, targets))
        if now - first >= seconds:
            break
    busy = pupil.finish()
    end = time.perf_counter()
    batches.close()
    # What was made before the first batch came is not held against stock loaders, nor is it counted for them.
    since, trained = (began, count + how["batch"]) if contestant.ours else (first, count)
    return {
        "rate": trained / (end - since),
        "steady": count / (end - first),
        "first": first - began,
        "waiting": waited / (end - first),
        "busy": busy / (end - first),
        "samples": trained,
    }


def write(task: str, folder: str, samples: int, words: int) -> dict[str, Any]:
    """Write a task's samples in every form."""
    from benchmarks.training_data import WRITERS

    began = time.perf_counter()
    WRITERS[task](Path(folder), samples, words=words)
    return {"seconds": time.perf_counter() - began, "bytes": (Path(folder) / "penstock.arrow").stat().st_size}


def contend(terms: Terms, *, only: Callable[[Contestant], bool] = lambda _: True) -> dict[str, Outcome]:
    """Run all rounds of one contest."""
    from benchmarks.training_data import contestants

    outcomes: dict[str, Outcome] = {}
    unusual = any(kb != USUAL for kb in read_ahead_settings().values())
    for name, contestant in contestants(terms.task, words=terms.words, workers=terms.workers).items():
        if not only(contestant) or (terms.condition == "distant" and not contestant.distant):
            continue
        outcomes[name] = Outcome(contestant)
        if contestant.mapped and terms.condition == "cold" and unusual:
            outcomes[f"{name} @{USUAL} kB"] = Outcome(contestant, USUAL)
    for outcome in outcomes.values():
        if outcome.contestant.missing:
            outcome.failure = f"{outcome.contestant.missing} is not installed"
    turns = {name: partial(_turn, terms, name, o) for name, o in outcomes.items() if not o.failure}
    if turns:
        harness.interleave(turns, repeats=terms.rounds)
    return outcomes


def _turn(terms: Terms, name: str, outcome: Outcome) -> float:
    if outcome.failure:
        return math.nan
    if terms.condition == "warm":
        read_through(terms.folder)
        cold = False
    else:
        cold = harness.drop_caches()
    with read_ahead(outcome.ahead) if outcome.ahead is not None else nullcontext(True) as ready:
        if not ready:
            outcome.failure = "the disk's read-ahead cannot be set here"
            return math.nan
        arguments = {
            "name": outcome.contestant.name,
            "seed": len(outcome.runs),
            **{
                key: getattr(terms, key) for key in ("task", "device", "nbytes", "seconds", "words", "workers", "batch")
            },
            **{key: getattr(terms, key) for key in ("step", "condition")},
            "folder": str(terms.folder),
        }
        found, reason = attempt(train, arguments, limit=terms.limit, timeout=terms.seconds + 240)
    if found is None:
        outcome.failure = reason
        _say(f"  {name}: {reason}")
        return math.nan
    outcome.runs.append({**found, "cold": cold, "limited": found["child"]["limited"]})
    _say(f"  {name}: {found['rate']:,.0f} samples/s, first batch after {found['first']:.2f} s")
    return float(found["rate"])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(outcomes: Mapping[str, Outcome]) -> str:
    """Return one line per contestant, and each of ours over it."""
    mine = {name: o for name, o in outcomes.items() if o.contestant.ours and o.works}
    width = max(map(len, outcomes), default=10)
    lines = [
        f"{'contestant':<{width}}  {'samples/s':>9}  {'±':>4}  {'after first':>11}  {'first s':>7}  {'waiting':>7}  {'busy':>5}"
        + "".join(f"  {name.removeprefix('penstock ').split(',')[0] + ' ×':>11}" for name in mine)
    ]
    for name, outcome in outcomes.items():
        if not outcome.works:
            lines.append(f"{name:<{width}}  skipped: {outcome.failure or 'no turn'}")
            continue
        rates = [run["rate"] for run in outcome.runs]
        lines.append(
            f"{name:<{width}}  {outcome.median():>9,.0f}  {(max(rates) - min(rates)) / 2 / outcome.median():>4.0%}"
            f"  {outcome.median('steady'):>11,.0f}  {outcome.median('first'):>7.2f}  {outcome.median('waiting'):>7.0%}  {outcome.median('busy'):>5.0%}"
            + "".join(f"  {o.median() / outcome.median():>11.2f}" for o in mine.values())
        )
    return "\n".join(lines)


def claims(terms: Terms, outcomes: Mapping[str, Outcome]) -> list[Claim]:
    """Judge ours against the stock loader in each of its settings: its best one decides."""
    bar, unit = BARS[terms.task], "×"
    stock = {name: o for name, o in outcomes.items() if not o.contestant.ours and o.works}
    found = []
    for name, outcome in outcomes.items():
        if not outcome.contestant.ours or name == "penstock corgipile":
            continue  # corgipile is in the table; the bar is for a global shuffle
        title = f"training on {terms.task}, {terms.condition}, {terms.device}: {name} over the best stock DataLoader"
        if not outcome.works or not stock:
            why = outcome.failure or "no stock loader could be run"
            found.append(Claim.not_measured(title, f"≥ {bar:g}{unit}", why))
            continue
        best = max(stock, key=lambda each: stock[each].median())
        over = ", ".join(f"{outcome.median() / o.median():.2f}× {n.removeprefix('stock, ')}" for n, o in stock.items())
        runs = outcome.runs[0]
        how = "real model" if terms.step is None else f"simulated step of {1000 * terms.step:.0f} ms"
        state = "" if terms.condition == "warm" else f", {'caches dropped' if runs['cold'] else 'caches NOT dropped'}"
        state += "" if terms.limit is None else f", {'limited' if runs['limited'] else 'NOT limited'}"
        figure = outcome.median() / stock[best].median()
        found.append(
            Claim.at_least(title, figure, bar, note=f"{outcome.median():,.0f} samples/s; {over}; {how}{state}")
        )
    return found


def contests(options: argparse.Namespace) -> list[Claim]:
    """Run every contest asked for, print its table, and return the claims."""
    found: list[Claim] = []
    home = options.folder or ROOT / ".cache"  # on the disk of this checkout, whatever /tmp is
    home.mkdir(parents=True, exist_ok=True)
    for task in options.tasks:
        if task == "images" and importlib.util.find_spec("PIL") is None:
            why = "Pillow is not installed: pip install pillow"
            found.append(Claim.not_measured("training on images", f"≥ {BARS[task]:g}×", why))
            continue
        with tempfile.TemporaryDirectory(prefix="training-", dir=home) as made:
            samples = options.samples or (FEW if options.quick else SAMPLES)[task]
            words = Terms(task, "warm", options.device, home, 0, 0, 0, ()).words
            done = harness.run_child(
                write, arguments={"task": task, "folder": made, "samples": samples, "words": words}
            )
            _say(f"{samples:,} {task}, {done['bytes'] / 1e9:.2f} GB, written in every form in {done['seconds']:.0f} s")
            for condition in options.conditions:
                if condition == "distant" and task != "images":
                    continue
                terms = Terms(
                    task,
                    condition,
                    options.device,
                    Path(made),
                    done["bytes"],
                    options.rounds,
                    options.seconds,
                    tuple(options.workers),
                )
                step = SHORT[task] if options.quick and options.step is None else options.step
                found += _contest(terms, step, small=not options.quick)
    return found


def _contest(terms: Terms, step: float | None, *, small: bool) -> list[Claim]:
    """Run one contest: on a GPU with the real model; on a CPU with a simulated step, then with a small model."""
    keys = {name: getattr(terms, name) for name in terms.__dataclass_fields__}
    if terms.device == "cpu" and step is None:
        bare = contend(Terms(**{**keys, "step": 0.0, "rounds": 1}), only=lambda contestant: not contestant.ours)
        fastest = max((o.median() for o in bare.values() if o.works), default=math.nan)
        step = 0.0 if math.isnan(fastest) else SHARE[terms.task] * terms.batch / fastest
    models = [("simulated", step), ("small real model", None)][: 1 + small]
    models = models if terms.device == "cpu" else [("real model", None)]
    found: list[Claim] = []
    for name, seconds in models:
        judged = name != "small real model"
        these = Terms(**{**keys, "step": seconds, "rounds": terms.rounds if judged else 1})
        outcomes = contend(these)
        how = name if seconds is None else f"simulated step of {1000 * seconds:.1f} ms"
        print(
            f"\n{terms.task}, {terms.condition}, {terms.device}, batches of {terms.batch}, {how}\n{table(outcomes)}\n"
        )
        sys.stdout.flush()
        if judged:
            found += claims(these, outcomes)
    return found


def run(quick: bool) -> list[Claim]:
    """Run everything in the peers' interpreter, where Hugging Face datasets and Pillow are, or in this one."""
    python = PEERS / "bin" / "python"
    if not python.exists():
        _say("  .venv-peers is missing: without it there are no Hugging Face datasets (run: make peers)")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        answer = Path(folder) / "claims.json"
        command = [str(python) if python.exists() else sys.executable, "-m", "benchmarks.training"]
        command += ["--json", str(answer), *(["--quick"] if quick else [])]
        subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False)
        if not answer.exists():
            raise RuntimeError(f"{' '.join(command)} gave no answer")
        return [Claim(**claim) for claim in json.loads(answer.read_text())["claims"]]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description="Train, ours against stock.")
    add = parser.add_argument
    add("--device", default="cpu", help="cpu, or cuda for real models on a GPU")
    add("--tasks", nargs="+", choices=list(BARS), default=list(BARS))
    add("--conditions", nargs="+", choices=CONDITIONS, default=list(CONDITIONS))
    add("--workers", nargs="+", type=int, help="of the stock loader (default: 0 2, with a GPU 0 2 8)")
    add("--rounds", type=int)
    add("--seconds", type=float, help="of each turn, after the first batch")
    add("--samples", type=int, help="fewer than 1,000,000 rows of tokens or 60,000 images")
    add("--step", type=float, metavar="SECONDS", help="of the simulated accelerator, instead of measuring the stock")
    add("--folder", type=Path, help="where the data are written (default: .cache of this checkout)")
    add("--quick", action="store_true", help="small data, one round: shows that it works")
    add("--json", type=Path, metavar="FILE", help="also write machine and claims as JSON")
    options = parser.parse_args(argv)
    options.workers = options.workers or ([0, 2] if options.device == "cpu" else [0, 2, 8])
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.seconds = options.seconds or (1.5 if options.quick else 15.0)
    # A team of threads for each small tensor would fight the loaders for the cores, the stock one in this process most
    # of all; the stock loader's workers compute with one thread by themselves.
    os.environ["OMP_NUM_THREADS"] = "1"
    found = contests(options)
    print(harness.report(found, quick=options.quick))
    if options.json:
        harness.write_results(options.json, found, quick=options.quick, command="python -m benchmarks.training")
    return 1 if any(claim.met is False for claim in found) else 0


if __name__ == "__main__":
    sys.exit(main())
