"""Runs the fuzzer: sends batches of cases to one installation after the other, and collects the findings."""

import asyncio
import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.fuzz.cases import Call, Case, Head, Pipeline, size
from tests.soak.fuzz.client import Client
from tests.soak.fuzz.findings import Finding, finding
from tests.soak.fuzz.generator import Generator
from tests.soak.fuzz.organisations import FRAMES, HELLOS
from tests.soak.fuzz.service import FuzzedService, fuzzed_service
from tests.soak.fuzz.watch import Watch, cpu_s

CPU_S = 1.0
"""A case that takes more CPU time than this is a finding."""

_HEADS = 4
"""Heads in a batch, as a multiple of other cases."""

_STEP_S = 0.05
"""How far the service's clock moves with each case, and each time that a batch is polled."""

_POLL_S = 0.005


@dataclass(frozen=True)
class Plan:
    """Which cases to run: `count` of a seed from number `first` on; how many at once, and how many an installation.

    `organisations` take turns as senders: an app's broadcasts wait for each other, those of several do not. One of
    `analytics_every` installations has analytics, which takes half of the time; which follows from the cases' numbers.
    """

    seed: int
    first: int
    count: int
    batch: int = 64
    control_every: int = 2000
    per_installation: int = 20_000
    organisations: int = 8
    with_analytics: bool = True
    analytics_every: int = 8


@dataclass
class Progress:
    """Counts of the cases sent, by interface and by answer, and the findings. A case has some bodies or frames."""

    sent: Counter[str] = field(default_factory=Counter)
    results: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    bodies: int = 0


async def fuzz(plan: Plan, progress: Progress, on_finding: Callable[[Finding], None]) -> None:
    """Run the plan's cases. A service that no longer works ends its installation, and is a finding."""
    every_number = range(plan.first, plan.first + plan.count)
    for place, numbers in itertools.groupby(every_number, lambda number: number // plan.per_installation):
        with_analytics = plan.with_analytics and place % plan.analytics_every == 0
        left = list(numbers)
        while left:
            with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_fast_directory()) as directory:
                async with fuzzed_service(
                    Path(directory), plan.organisations, with_analytics=with_analytics
                ) as service:
                    generator = Generator(plan.seed, service.calls, FRAMES, HELLOS)
                    run = Run(service, plan, progress, on_finding)
                    left = await run.cases(map(generator.case, left))


async def replay(found: Finding, *, with_analytics: bool = True) -> Sequence[Finding]:
    """Send the cases of a finding again, one after the other; return the findings that they cause now."""
    progress = Progress()
    plan = Plan(seed=0, first=0, count=0, with_analytics=with_analytics)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        async with fuzzed_service(Path(directory), plan.organisations, with_analytics=with_analytics) as service:
            run = Run(service, plan, progress, lambda found: None)
            for case in found.cases:
                await run.cases([case])
    return progress.findings


class Run:
    """The run against one installation."""

    def __init__(
        self, service: FuzzedService, plan: Plan, progress: Progress, on_finding: Callable[[Finding], None]
    ) -> None:
        self._service = service
        self._plan = plan
        self._progress = progress
        self._on_finding = on_finding
        self._watch = Watch()
        self._around: list[str] = []
        self._clients: list[list[Client]] = [[] for _ in service.organisations]

    async def cases(self, cases: Iterable[Case]) -> list[int]:
        """Send the cases, in batches; return the numbers of those that are left when the service no longer works."""
        since_control: list[Case] = []
        try:
            with self._watch.watching():
                groups = batches(cases, self._plan.batch)
                for batch in groups:
                    await self._batch(batch)
                    since_control += batch
                    if len(since_control) >= self._plan.control_every:
                        if not await self._works(since_control):
                            return [case.number for batch in groups for case in batch]
                        since_control.clear()
                await self._works(since_control)
                return []
        finally:
            for client in itertools.chain(*self._clients):
                client.close()

    async def _batch(self, batch: Sequence[Case]) -> None:
        """Send a batch, and each suspect alone when anything is wrong: CPU time and log belong to the whole batch."""
        for case in batch:
            self._progress.sent[interface(case)] += 1
            self._progress.bodies += size(case.payload)
        problems = await self._sent(batch)
        if problems is None:
            return
        first = self._described(next(filter(None, problems), None))
        is_cpu_alone = not any(problems) and len(self._around) == 1
        suspects = [case for case, problem in zip(batch, problems, strict=True) if problem] or batch
        reproduced = 0
        for case in suspects:
            if (again := await self._sent([case])) is not None:
                reproduced += 1
                self._found(finding(self._described(again[0]), [case], reproduced=True))
        if not reproduced and not is_cpu_alone:
            self._found(finding(first, list(suspects), reproduced=False))

    async def _sent(self, batch: Sequence[Case]) -> list[str | None] | None:
        """Send cases at once; return the problem of each, or None when nothing at all is wrong."""
        began = cpu_s()
        clients = zip(self._clients_of(batch), batch, strict=True)
        sending = [asyncio.create_task(client.problem(case)) for client, case in clients]
        pending = set(sending)
        while pending:
            _, pending = await asyncio.wait(pending, timeout=_POLL_S)
            self._service.clock.move(_STEP_S)
        problems = [sent.result() for sent in sending]
        self._service.clock.move(_STEP_S * len(batch))
        for _ in range(3):
            await asyncio.sleep(0)
        spent = cpu_s() - began
        errors = self._watch.taken()
        self._around = [f"{spent:.1f} s of CPU", *(f"logged: {error}" for error in errors)]
        return problems if errors or spent > CPU_S or any(problems) else None

    def _clients_of(self, batch: Sequence[Case]) -> Iterator[Client]:
        """Yield a client for each case: one of the organisation that follows from the number of the case."""
        used: Counter[int] = Counter()
        for case in batch:
            organisation = case.number % len(self._clients)
            clients = self._clients[organisation]
            if used[organisation] == len(clients):
                names = self._service.organisations[organisation]
                clients.append(Client(self._service, names, self._progress.results))
            yield clients[used[organisation]]
            used[organisation] += 1

    def _described(self, problem: str | None) -> str:
        """Return the problem of an answer, with the errors logged and the CPU time used meanwhile."""
        return "\n".join([problem or "nothing is wrong with the answer", *self._around])

    async def _works(self, since: Sequence[Case]) -> bool:
        problem = await self._service.control()
        if problem is None and not (errors := self._watch.taken()):
            return True
        text = f"the service does not work: {problem}" if problem else "\n".join(f"logged: {error}" for error in errors)
        self._found(finding(text, list(since), reproduced=False))
        return problem is None

    def _found(self, found: Finding) -> None:
        self._progress.findings.append(found)
        self._on_finding(found)


def batches(cases: Iterable[Case], size: int) -> Iterator[list[Case]]:
    """Group cases, heads apart from the rest: a head may wait for an answer that never comes, and many wait at once."""
    heads: list[Case] = []
    others: list[Case] = []
    for case in cases:
        group, most = (heads, _HEADS * size) if isinstance(case.payload, Head) else (others, size)
        group.append(case)
        if len(group) == most:
            yield group[:]
            group.clear()
    yield from filter(None, (heads, others))


def interface(case: Case) -> str:
    """Return the name under which a case is counted."""
    payload = case.payload
    if isinstance(payload, Pipeline):
        return f"{payload.interface} pipelined"
    if isinstance(payload, Call):
        return f"{payload.interface} by socket" if payload.by_socket else payload.interface
    return f"{payload.port} heads" if isinstance(payload, Head) else "gateway frames"


def _fast_directory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
