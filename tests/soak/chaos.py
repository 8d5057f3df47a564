"""Kills, stops and restarts processes at random, and makes everything run again at the end."""

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from testkit.installation.processes import Installation
from testkit.kafka.broker import KafkaBroker
from tests.soak.ledger import Ledger

_QUIET_S = (2.0, 6.0)
_STOPPED_S = (0.3, 4.0)
_LONG_STOPPED_S = (8.0, 20.0)
"""Longer than calls and connections wait; only in a run that has the time."""

_LONG_RUN_S = 60.0
_LONG = 0.2
_DOWN_S = (0.0, 1.5)
_BROKER = "broker"
_DEEDS = ("kill", "kill", "freeze", "restart")
_SUDDEN = ("kill", "freeze")


class Chaos:
    """Which misfortune, to whom and when, the seed decides; each deed comes once in a round.

    One process alone has one at a time; of several roles, two can have theirs together.
    """

    def __init__(self, installation: Installation, broker: KafkaBroker | None, ledger: Ledger, random: Random) -> None:
        self.done: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        """Processes that ended by themselves, by name and exit code."""
        self._installation = installation
        self._broker = broker
        self._ledger = ledger
        self._has_time = False
        self._random = random

    async def rage(self, seconds: float) -> None:
        """Return once that long is over and everything runs."""
        self._ledger.is_calm = False
        self._has_time = seconds >= _LONG_RUN_S
        end = asyncio.get_running_loop().time() + seconds
        await asyncio.gather(*(self._rage(victims, deeds, end) for victims, deeds in self._groups()))

    def _groups(self) -> list[tuple[Sequence[str], Sequence[str]]]:
        """Victims and deeds. What stops in order finds the broker well, so that it can."""
        names = self._installation.names
        if self._broker is None:
            return [(names, _DEEDS)]
        return [((*names[::2], _BROKER), _DEEDS), (names[1::2], _SUDDEN)]

    async def _rage(self, victims: Sequence[str], deeds: Sequence[str], end: float) -> None:
        random = Random(self._random.random())
        while True:
            for deed in random.sample(deeds, len(deeds)):
                await asyncio.sleep(random.uniform(*_QUIET_S))
                await self._revive(victims)
                if asyncio.get_running_loop().time() > end:
                    return
                await self._do(deed, random.choice(victims))

    async def _do(self, deed: str, victim: str) -> None:
        self._ledger.write(deed, victim=victim)
        deeds: dict[str, Callable[[str], Awaitable[None]]] = {
            "kill": self._kill,
            "freeze": self._freeze,
            "restart": self._restart,
        }
        await deeds[deed](victim)
        self.done[f"{deed} {victim}"] += 1
        self._ledger.write("it runs again", victim=victim)

    async def _kill(self, victim: str) -> None:
        kill = self._broker.kill if victim == _BROKER and self._broker else lambda: self._installation.kill(victim)
        await asyncio.to_thread(kill)
        await asyncio.sleep(self._random.uniform(*_DOWN_S))
        await self._start(victim)

    async def _freeze(self, victim: str) -> None:
        self._signal(victim, signal.SIGSTOP)
        is_long = self._has_time and self._random.random() < _LONG
        await asyncio.sleep(self._random.uniform(*(_LONG_STOPPED_S if is_long else _STOPPED_S)))
        self._signal(victim, signal.SIGCONT)

    async def _restart(self, victim: str) -> None:
        stop = self._broker.stop if victim == _BROKER and self._broker else lambda: self._installation.stop(victim)
        await asyncio.to_thread(stop)
        await self._start(victim)

    async def _revive(self, victims: Sequence[str]) -> None:
        """Start what has ended by itself, as whoever runs the service would."""
        for name, code in self._installation.ended(*victims).items():
            self.ended[f"{name} with {code}"] += 1
            self._ledger.write("ended by itself", victim=name, code=code)
            await self._start(name)

    async def _start(self, victim: str) -> None:
        start = self._broker.start if victim == _BROKER and self._broker else lambda: self._installation.start(victim)
        await asyncio.to_thread(start)

    def _signal(self, victim: str, number: signal.Signals) -> None:
        if victim != _BROKER or self._broker is None:
            self._installation.signal(victim, number)
        elif number == signal.SIGSTOP:
            self._broker.pause()
        else:
            self._broker.resume()
