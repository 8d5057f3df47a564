"""Injects faults: kills, freezes and restarts random processes, and starts all of them again at the end."""

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from testkit.installation.processes import Installation
from testkit.kafka.broker import KafkaBroker
from tests.soak.ledger import Ledger

_PAUSE_S = (2.0, 6.0)
_STOPPED_S = (0.3, 4.0)
_LONG_STOPPED_S = (8.0, 20.0)
"""Longer than the time limits of calls and connections; only in a long run."""

_LONG_RUN_S = 60.0
_LONG = 0.2
_DOWN_S = (0.0, 1.5)
_BROKER = "broker"
_FAULTS = ("kill", "kill", "freeze", "restart")
_ABRUPT = ("kill", "freeze")


class FaultInjector:
    """Chooses fault, process and time by the seed; each kind of fault occurs once in a round.

    `carillon up` has one fault at a time; of several processes, two can have one at the same time.
    """

    def __init__(self, installation: Installation, broker: KafkaBroker | None, ledger: Ledger, random: Random) -> None:
        self.done: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        """The count of processes that ended by themselves, by name, exit code and last line."""
        self._installation = installation
        self._broker = broker
        self._ledger = ledger
        self._is_long_run = False
        self._random = random

    async def inject(self, seconds: float) -> None:
        """Inject faults for so many seconds; return once every process runs again."""
        self._is_long_run = seconds >= _LONG_RUN_S
        end = asyncio.get_running_loop().time() + seconds
        await asyncio.gather(*(self._inject(targets, faults, end) for targets, faults in self._groups()))

    def _groups(self) -> list[tuple[Sequence[str], Sequence[str]]]:
        """Return groups of processes and their faults. A process that is stopped in order needs the broker."""
        names = self._installation.names
        if self._broker is None:
            return [(names, _FAULTS)]
        return [((*names[::2], _BROKER), _FAULTS), (names[1::2], _ABRUPT)]

    async def _inject(self, targets: Sequence[str], faults: Sequence[str], end: float) -> None:
        random = Random(self._random.random())
        while True:
            for fault in random.sample(faults, len(faults)):
                await asyncio.sleep(random.uniform(*_PAUSE_S))
                await self._restart_ended(targets)
                if asyncio.get_running_loop().time() > end:
                    return
                await self._do(fault, random.choice(targets))

    async def _do(self, fault: str, target: str) -> None:
        self._ledger.write(fault, target=target)
        faults: dict[str, Callable[[str], Awaitable[None]]] = {
            "kill": self._kill,
            "freeze": self._freeze,
            "restart": self._restart,
        }
        await faults[fault](target)
        self.done[f"{fault} {target}"] += 1
        self._ledger.write("runs again", target=target)

    async def _kill(self, target: str) -> None:
        kill = self._broker.kill if target == _BROKER and self._broker else lambda: self._installation.kill(target)
        await asyncio.to_thread(kill)
        await asyncio.sleep(self._random.uniform(*_DOWN_S))
        await self._start(target)

    async def _freeze(self, target: str) -> None:
        self._signal(target, signal.SIGSTOP)
        is_long = self._is_long_run and self._random.random() < _LONG
        await asyncio.sleep(self._random.uniform(*(_LONG_STOPPED_S if is_long else _STOPPED_S)))
        self._signal(target, signal.SIGCONT)

    async def _restart(self, target: str) -> None:
        stop = self._broker.stop if target == _BROKER and self._broker else lambda: self._installation.stop(target)
        await asyncio.to_thread(stop)
        await self._start(target)

    async def _restart_ended(self, targets: Sequence[str]) -> None:
        """Start processes that ended by themselves, as an operator would."""
        for name, why in self._installation.restart_ended(*targets).items():
            self.ended[f"{name} with {why}"] += 1
            self._ledger.write("ended by itself", target=name, why=why)
            await asyncio.to_thread(self._installation.wait_ready, name)

    async def _start(self, target: str) -> None:
        start = self._broker.start if target == _BROKER and self._broker else lambda: self._installation.start(target)
        await asyncio.to_thread(start)

    def _signal(self, target: str, number: signal.Signals) -> None:
        if target != _BROKER or self._broker is None:
            self._installation.signal(target, number)
        elif number == signal.SIGSTOP:
            self._broker.pause()
        else:
            self._broker.resume()
