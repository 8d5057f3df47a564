"""All Android devices of a run."""

import asyncio
from collections.abc import Sequence
from random import Random

from tests.soak.checks import Client, Finding
from tests.soak.ledger import Ledger, Push
from tests.soak.phones import Phone
from tests.soak.pushes import Targets

_ANEW_S = (3.0, 8.0)


class Fleet:
    """Devices that live on their own, and move together before the load and after it."""

    def __init__(self, url: str, appkey: str, ledger: Ledger, seed: int) -> None:
        self.phones: list[Phone] = []
        self.appkey = appkey
        self._url = url
        self._ledger = ledger
        self._seed = seed
        self._random = Random(f"{seed}/fleet")
        self._lives: list[asyncio.Task[None]] = []

    async def begin(self, count: int) -> None:
        """So many devices; returns when all are registered."""
        for _ in range(count):
            self._add()
        while not all(phone.history for phone in self.phones):
            await asyncio.sleep(0.05)

    async def register_anew(self) -> None:
        """Now and then an app is installed afresh: the device it was goes away until the end."""
        while True:
            await asyncio.sleep(self._random.uniform(*_ANEW_S))
            self._random.choice([phone for phone in self.phones if not phone.is_leaving]).is_leaving = True
            self._add()

    async def leave(self) -> None:
        """All disconnect, when they have finished what they are at."""
        for phone in self.phones:
            phone.is_leaving = True
        for ended in await asyncio.gather(*self._lives, return_exceptions=True):
            if isinstance(ended, BaseException):
                self._ledger.faults.append(f"a device gave up: {ended!r}")

    async def come_back(self, absent: int = 0) -> None:
        """All but the first `absent` connect, also those that were replaced, and acknowledge everything."""
        await asyncio.gather(*(phone.connect() for phone in self.phones[absent:]))
        for phone in self.phones:
            phone.wake()

    async def close(self) -> None:
        for life in self._lives:
            life.cancel()
        await asyncio.gather(*self._lives, return_exceptions=True)
        await asyncio.gather(*(phone.disconnect() for phone in self.phones))

    def targets(self, ios_tokens: Sequence[str]) -> Targets:
        """Whom pushes can name by now."""
        known = [phone for phone in self.phones if phone.history]
        aliases = sorted({alias for phone in known for alias in phone.aliases})
        return Targets([phone.state.token for phone in known], aliases, ios_tokens)

    def clients(self) -> dict[tuple[str, str], Client]:
        return {
            (self.appkey, phone.state.token): Client(f"device {phone.index}", phone.history, phone.shown, phone.frames)
            for phone in self.phones
        }

    def frames(self) -> list[int]:
        """How many pushes came to each device by now, repeated ones too."""
        return [len(phone.frames) for phone in self.phones]

    def more_than(self, before: Sequence[int], but: Push, during: str) -> list[Finding]:
        """What else than that push came since, when nothing should have."""
        return [
            Finding(during, f"device {phone.index} was sent it", (frame.msgid,))
            for phone, count in zip(self.phones, before, strict=True)
            for frame in phone.frames[count:]
            if frame.msgid != but.ids[self.appkey]
        ]

    def _add(self) -> None:
        index = len(self.phones)
        phone = Phone(index, self._url, self.appkey, self._ledger, Random(f"{self._seed}/{index}"))
        self.phones.append(phone)
        self._lives.append(asyncio.create_task(phone.live()))
