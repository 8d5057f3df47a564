"""Runs worlds, each in a child process: none leaves anything behind, and the end of a world runs none of its code."""

import gc
import mimetypes
import os
import pickle
import resource
import shutil
import signal
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Protocol

from tests.simulation.kernel.faults import Fault
from tests.simulation.kernel.world import World

_WARM_UP_SEED = 0


class Kind(Protocol):
    """A kind of world: which faults a seed chooses for it, and what happens in it."""

    def faults(self, seed: int) -> list[Fault]:
        """Return the faults of the seed's world."""
        ...

    async def run(self, world: World, faults: Sequence[Fault]) -> list[str]:
        """Run a world with these faults; return what was found, each finding in one text."""
        ...


@dataclass
class Outcome:
    """What became of a world. `faults` are those that were chosen for it, of which `effects` counts, by kind, the ones
    that took effect. `lines` is its trace, if there are findings."""

    seed: int
    findings: list[str]
    digest: str = ""
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    steps: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)
    effects: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)


def run_world(kind: Kind, seed: int, faults: Sequence[Fault] | None = None, *, keeps_trace: bool = False) -> Outcome:
    """Run the world of a seed in this process, with its own faults or with these."""
    chosen = kind.faults(seed) if faults is None else list(faults)
    directory = Path(tempfile.mkdtemp(prefix=f"world-{seed}-", dir=_shared_memory()))
    world = World(seed, directory)
    findings = []
    try:
        findings = world.run(lambda world: kind.run(world, chosen))
    except Exception as error:
        findings = [f"crashed: {error!r}\n{traceback.format_exc()}"]
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    lines = world.trace.lines() if findings or keeps_trace else []
    return Outcome(
        seed,
        findings,
        world.trace.digest,
        world.loop.time(),
        sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)),
        world.loop.steps,
        world.trace.counts,
        chosen,
        world.effects,
        lines,
    )


def warm_up(kind: Kind) -> None:
    """Run the kind's world of one seed in this process, without faults, before others run in child processes.

    These then begin with modules, caches and code that have been used, which each would otherwise do again. It changes
    no trace.
    """
    run_world(kind, _WARM_UP_SEED, [])


def run_worlds(jobs: Sequence[Callable[[], Outcome]], at_once: int = 1) -> Iterator[Outcome]:
    """Run each job in a child process, so many at once; yield the outcomes as they come."""
    waiting = list(reversed(jobs))
    selector = DefaultSelector()
    mimetypes.init()  # here once, or each world reads the system's list for its edges
    gc.freeze()
    while waiting or selector.get_map():
        while waiting and len(selector.get_map()) < at_once:
            selector.register(_child(waiting.pop()), EVENT_READ, [])
        for key, _ in selector.select():
            piece = os.read(key.fd, 1 << 20)
            key.data.append(piece)
            if not piece:
                selector.unregister(key.fd)
                os.close(key.fd)
                os.wait()
                yield pickle.loads(b"".join(key.data))
    selector.close()


def _child(job: Callable[[], Outcome]) -> int:
    """Start a child process that runs the job; return the file descriptor on which its outcome comes."""
    reads, writes = os.pipe()
    if os.fork():
        os.close(writes)
        return reads
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback; the parent shows what has run
    try:
        with os.fdopen(writes, "wb") as pipe:
            pickle.dump(job(), pipe)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def without_needless_faults(kind: Kind, failed: Outcome) -> Outcome:
    """Return an outcome that still has findings with as few faults as possible: each one left is needed."""
    best = failed
    size = max(1, len(failed.faults) // 2)
    while size:
        start = 0
        while start < len(best.faults):
            fewer = [*best.faults[:start], *best.faults[start + size :]]
            (outcome,) = run_worlds([partial(run_world, kind, failed.seed, fewer)])
            if outcome.findings:
                best = outcome
            else:
                start += size
        size //= 2
    return best


def _shared_memory() -> Path | None:
    path = Path("/dev/shm")
    return path if path.is_dir() else None
