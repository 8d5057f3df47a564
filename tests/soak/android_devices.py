"""The Android devices of a run, as a group."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Any

from tests.soak.android_device import PAUSE_S, AndroidDevice, Gateway
from tests.soak.checks import Client, Violation
from tests.soak.ledger import Ledger
from tests.soak.pushes import Targets

_ANEW_S = (3.0, 8.0)


class AndroidDevices:
    """All Android devices of a run: starts them, each acting on its own, and connects or disconnects them together.

    `pace`: how many times longer than usual they wait between two actions.
    """

    def __init__(self, gateway: Gateway, appkey: str, ledger: Ledger, seed: int, pace: float = 1.0) -> None:
        self.devices: list[AndroidDevice] = []
        self.appkey = appkey
        self.address_frame: Callable[[str], Mapping[str, Any]] | None = None
        """Returns the request by which the device with this token sets its address on a channel; None: none does."""

        self._gateway = gateway
        self._ledger = ledger
        self._seed = seed
        self._pace = pace
        self._random = Random(f"{seed}/android_devices")
        self._lives: list[asyncio.Task[None]] = []

    async def begin(self, count: int, steady: int = 0) -> None:
        """Start `count` devices that act, and `steady` ones that do not; return once all are registered."""
        for index in range(count + steady):
            self._add(is_steady=index >= count)
        while not all(device.history for device in self.devices):
            await asyncio.sleep(0.05)

    async def reinstall(self) -> None:
        """Every few seconds replace a random device that is not steady, as when its app is installed again."""
        while True:
            await asyncio.sleep(self._pace * self._random.uniform(*_ANEW_S))
            acting = [device for device in self.devices if not device.is_leaving and not device.is_steady]
            self._random.choice(acting).is_leaving = True
            self._add(is_steady=False)

    async def leave(self) -> None:
        """Disconnect all devices, each after its current action."""
        for device in self.devices:
            device.is_leaving = True
        for ended in await asyncio.gather(*self._lives, return_exceptions=True):
            if isinstance(ended, BaseException):
                self._ledger.errors.append(f"a device failed: {ended!r}")

    async def reconnect_all(self, absent: int = 0) -> None:
        """Connect all devices but the first `absent`, replaced ones too; they acknowledge everything."""
        await asyncio.gather(*(device.connect() for device in self.devices[absent:]))
        for device in self.devices:
            device.wake()

    async def log_in(self) -> None:
        """Have the users of all apps log in."""
        await asyncio.gather(*(device.log_in() for device in self.devices))

    async def close(self) -> None:
        for life in self._lives:
            life.cancel()
        await asyncio.gather(*self._lives, return_exceptions=True)
        await asyncio.gather(*(device.disconnect() for device in self.devices))

    def targets(self, ios_tokens: Sequence[str]) -> Targets:
        """Return the tokens and aliases that pushes can name by now."""
        known = [device for device in self.devices if device.history]
        aliases = sorted({alias for device in known for alias in device.aliases})
        return Targets([device.state.token for device in known], aliases, ios_tokens)

    def clients(self) -> dict[tuple[str, str], Client]:
        return {
            (self.appkey, device.state.token): Client(
                f"device {device.index}",
                device.history,
                device.shown,
                device.frames,
                device.reachable,
                device.is_steady,
            )
            for device in self.devices
        }

    def show_by_system(self, token: str, msgid: int, content: str) -> None:
        """Show a message that a channel brought to a device."""
        for device in self.devices:
            if device.history and device.state.token == token:
                device.show_by_system(msgid, content)

    def frames(self) -> list[int]:
        """Return the number of push frames that each device has received, repeated ones too."""
        return [len(device.frames) for device in self.devices]

    def unexpected_frames(self, before: Sequence[int], known: Collection[int], during: str) -> list[Violation]:
        """Return a violation for each further frame of a known message since `before` was counted."""
        return [
            Violation(during, f"device {device.index} was sent this known message again", (frame.msgid,))
            for device, count in zip(self.devices, before, strict=True)
            for frame in device.frames[count:]
            if frame.msgid in known
        ]

    def _add(self, *, is_steady: bool) -> None:
        index = len(self.devices)
        random, pause_s = Random(f"{self._seed}/{index}"), (self._pace * PAUSE_S[0], self._pace * PAUSE_S[1])
        device = AndroidDevice(index, self._gateway, self.appkey, self._ledger, random, pause_s, is_steady=is_steady)
        device.address_frame = self.address_frame
        self.devices.append(device)
        self._lives.append(asyncio.create_task(device.live()))
