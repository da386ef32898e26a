"""How many threads fetch at a time, and how many samples one of them takes at a time.

Threads that wait for a disk want to be many. Threads that compute in Python take turns at the interpreter's lock,
and the more there are the more time goes into the turns: small files that are in memory already are read three
times as fast by one thread as by sixteen. Which it is depends on the dataset, the disk and the cache, so it is
measured while the loader is what holds up the loop.
"""

from __future__ import annotations

from penstock.parallel import cores

_RUN_SECONDS = 0.001
"""What a run of samples should cost: much beside handing it to a thread, little beside a batch."""
_WINDOW_SECONDS = 0.05
_SETTLING = 3
"""Batches that were begun under the setting before, and tell nothing about this one."""
_BUSY = 0.5
"""Cores' worth of computing from which on threads may be in one another's way."""
_GAIN = 1.05
_PATIENCE = (0.5, 30.0)
"""Seconds between trials: at first, and at most."""


class Tuner:
    """The setting in use, and what has been learnt about it. Kept from epoch to epoch."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.limit = most
        self._cpu = 0.0
        self._samples = 0
        self._sample_cpu: float | None = None
        self._sample_wall: float | None = None
        self._waits = True
        self._fresh = True
        self._step = 0.5
        self._base: tuple[int, float] | None = None
        self._patience = _PATIENCE[0]
        self._next_trial = 0.0
        self._skip = _SETTLING
        self._began: float | None = None
        self._from = (0, 0.0)
        self._waited = 0.0

    def run(self, samples: int) -> int:
        """Return how many of a batch's samples to hand to a thread at a time."""
        spread = -(-samples // self.most)
        if self._sample_cpu is None or self._sample_wall is None:
            return spread
        if self._waits:  # over all threads, for they are not in one another's way
            return max(1, min(spread, int(_RUN_SECONDS / max(self._sample_wall, 1e-9))))
        return max(1, min(samples, int(_RUN_SECONDS / max(self._sample_cpu, 1e-9))))

    def fetched(self, samples: int, *, wall: float, cpu: float) -> None:
        """Learn what a run cost. The caller holds a lock."""
        self._samples += samples
        self._cpu += cpu
        before_wall, before_cpu = self._sample_wall, self._sample_cpu
        self._sample_wall = (
            wall / samples if before_wall is None else before_wall + 0.1 * (wall / samples - before_wall)
        )
        self._sample_cpu = cpu / samples if before_cpu is None else before_cpu + 0.1 * (cpu / samples - before_cpu)

    def collated(self, cpu: float) -> None:
        """Learn what collating a batch cost. The caller holds a lock."""
        self._cpu += cpu

    def paused(self) -> None:
        """Forget the batches since the last judgement: an epoch began, and they do not follow one another."""
        self._began, self._skip = None, _SETTLING

    def delivered(self, *, waited: float, now: float) -> None:
        """Learn from a batch that was delivered after a wait, and change the setting where that may help."""
        if self._skip:
            self._skip -= 1
            return
        if self._began is None:
            self._began, self._from, self._waited = now, (self._samples, self._cpu), 0.0
            return
        self._waited += waited
        elapsed = now - self._began
        if elapsed < _WINDOW_SECONDS:
            return
        samples, cpu = self._samples - self._from[0], self._cpu - self._from[1]
        self._began = None
        self._waits = cpu < _BUSY * elapsed
        if self._waited > 0.5 * elapsed:
            self._judge(samples / elapsed, now)

    def _judge(self, speed: float, now: float) -> None:
        if self._base is not None:
            limit, before = self._base
            if speed > _GAIN * before:
                self._patience = _PATIENCE[0]
            else:
                self.limit = limit
                self._step = 1 / self._step
                self._next_trial = now + self._patience
                self._patience = min(2 * self._patience, _PATIENCE[1])
                self._base, self._skip = None, _SETTLING
                return
        elif now < self._next_trial:
            return
        if self._waits and self._base is None:
            # More threads, for they wait; or fewer, for it may be the interpreter's lock that they wait for, which a
            # memory map's page faults are taken under.
            self._step = 2.0 if self.limit < self.most else 0.5
        elif self._fresh and not self._waits:
            self._step = cores() / self.limit  # what computing alone would want, then its neighbours
        self._fresh = False
        trial = max(1, min(self.most, round(self.limit * self._step)))
        self._step = 2.0 if self._step > 1 else 0.5
        if trial == self.limit:
            self._base = None
            self._step = 0.5 if trial == self.most else 2.0
            self._next_trial = now + self._patience
            return
        self._base = (self.limit, speed)
        self.limit, self._skip = trial, _SETTLING
