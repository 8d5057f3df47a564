"""An Android device that connects, changes and disconnects at random, over the real gateway."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from carillon_device import Device, DeviceEndedError, DeviceError, MemoryStorage, Push, RefusedError, UnavailableError
from carillon_device import Frame as SdkFrame
from carillon_device.connection import GatewayConnection, open_connection
from tests.soak.ledger import Change, Frame, Ledger, Reachability, Shown, State

TAGS = range(1, 6)
STAGS = ("news", "sport", "weather")
CHANNELS = ("store", "web")
SHARING = 5
"""Devices that share aliases: fewer than an alias can have, so none is displaced."""

PAUSE_S = (0.2, 1.5)
_AWAY_S, _BROWSERS_AWAY_S = 3.0, 9.0
"""How long a device stays away at most, and one with an address on a channel, which takes over after a while."""

_ANSWER_S = 5.0
_CONNECT_S = 5.0
RETRY_S = 0.2
SERVER_ERROR = 500
"""Error codes from here on are faults of the service: the request may be repeated."""


class Gateway:
    """The gateway at a URL, to which devices open connections."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def open_connection(self) -> GatewayConnection:
        """Connect. UnavailableError: the gateway cannot be reached."""
        return await open_connection(self.url, None)


class _ReportingDevice(Device):
    """The SDK's device, which reports each connection and each push frame, repeated ones too, to its owner."""

    owner: "AndroidDevice"

    async def _open_connection(self) -> GatewayConnection:
        return await self.owner.gateway.open_connection()

    async def _run_connection(self, connection: GatewayConnection) -> SdkFrame:
        self.owner.connecting()
        return await super()._run_connection(connection)

    def _dispatch(self, frame: SdkFrame) -> None:
        if frame["type"] == "push":
            self.owner.received(frame["msgid"])
        super()._dispatch(frame)


class AndroidDevice:
    """A simulated device, with the history of its state and the messages that it has shown.

    `pause_s`: the least and the longest time between two of its actions.
    """

    def __init__(
        self,
        index: int,
        gateway: Gateway,
        appkey: str,
        ledger: Ledger,
        random: Random,
        pause_s: tuple[float, float] = PAUSE_S,
        *,
        is_steady: bool = False,
    ) -> None:
        self.index = index
        self.is_steady = is_steady
        self.gateway = gateway
        self.history: list[Change] = []
        self.shown: dict[int, Shown] = {}
        self.shown_by_channels: set[int] = set()
        self.frames: list[Frame] = []
        self.reachable: list[Reachability] = []
        self.is_leaving = False
        self.address_frame: Callable[[str], Mapping[str, Any]] | None = None
        self._appkey = appkey
        self._ledger = ledger
        self._random = random
        self._pause_s = pause_s
        self._storage = MemoryStorage()
        self._sdk_device: _ReportingDevice | None = None
        self._connections = 0
        self._connected_ms = 0
        self._is_awake = asyncio.Event()
        self._is_awake.set()

    @property
    def state(self) -> State:
        return self.history[-1].state

    @property
    def aliases(self) -> list[str]:
        """The aliases that the device uses. Every fourth device has one of its own and keeps it."""
        if self.index % 4 == 0:
            return [f"own-{self.index}"]
        return [f"shared-{self.index // SHARING}-{letter}" for letter in "ab"]

    async def live(self) -> None:
        """Connect, act at random unless the device is steady, and disconnect once `is_leaving` is set."""
        await self.connect()
        if self.address_frame is not None:
            await self._request(self.address_frame(self.state.token))
        await self.change(alias=self.aliases[0], channel=CHANNELS[self.index % 2])
        await self.change(tags=frozenset(self._some(TAGS)), stags=frozenset(self._some(STAGS)))
        while not self.is_leaving:
            if not self.is_steady:
                await self._do_something()
            await asyncio.sleep(self._random.uniform(*self._pause_s))
        await self.disconnect()

    async def connect(self) -> None:
        """Connect, and retry until the gateway has sent its welcome."""
        asked_ms = self._ledger.now_ms()
        while True:
            await self.disconnect()
            self._sdk_device = _ReportingDevice(
                self.gateway.url, self._appkey, storage=self._storage, on_push=self._show, random=self._random.random
            )
            self._sdk_device.owner = self
            try:
                await self._sdk_device.connect(_CONNECT_S)
            except DeviceEndedError as ended:
                self._ledger.errors.append(f"device {self.index} was disconnected for good: {ended.reason}")
                raise
            except DeviceError as error:
                self._ledger.write("not connected", device=self.index, reason=str(error))
            else:
                self._welcomed(asked_ms)
                return

    async def disconnect(self) -> None:
        self._note_reachable(is_reachable=False)
        if self._sdk_device is not None:
            await self._sdk_device.close()
        self._sdk_device = None

    async def change(self, **fields: Any) -> None:
        """Change the state of the device; each request is repeated until it is answered."""
        new = self.state._replace(**fields)
        asked_ms = self._ledger.now_ms()
        for frame in _requests(self.state, new):
            await self._request(frame)
        self.history.append(Change(asked_ms, self._ledger.now_ms(), new))
        self._ledger.write("changed", device=self.index, state=new._asdict(), asked_ms=asked_ms)

    async def known(self) -> Mapping[str, Any]:
        """Return the service's record of this device."""
        return await self._request({"type": "get_device"})

    async def log_in(self) -> None:
        """Report that the app's user has logged in; the report is repeated until it is answered."""
        await self._request({"type": "activity", "event": "login"})

    def wake(self) -> None:
        """Show and acknowledge the waiting pushes, and each later one at once."""
        self._is_awake.set()
        self._note_reachable(is_reachable=self._sdk_device is not None)

    def connecting(self) -> None:
        self._connections += 1
        self._connected_ms = self._ledger.now_ms()

    def received(self, msgid: int) -> None:
        if msgid in self.shown_by_channels:  # the app cannot know, and shows it once more
            self._note_doubled(msgid)
        self.frames.append(Frame(msgid, self._ledger.now_ms(), self._connections, self._connected_ms))

    async def _show(self, push: Push) -> None:
        """Show a push; the SDK acknowledges it on return. A sleeping device does not return: the push is resent."""
        await self._is_awake.wait()
        msgid = push["msgid"]
        if msgid in self.shown and msgid not in self.shown_by_channels:
            self._note_doubled(msgid)
        self.shown[msgid] = Shown(msgid, push["content"], self._ledger.now_ms())
        self._ledger.write("shown", device=self.index, msgid=msgid, content=push["content"])
        if push["is_notif"] and self._sdk_device is not None:
            with contextlib.suppress(UnavailableError):
                self._sdk_device.report("shown", msgid)

    def show_by_system(self, msgid: int, content: str) -> None:
        """Show a message that came by a channel; the system replaces what it shows of the message already."""
        self.shown_by_channels.add(msgid)
        self.shown.setdefault(msgid, Shown(msgid, content, self._ledger.now_ms()))
        self._ledger.write("shown by a channel", device=self.index, msgid=msgid)

    def _note_doubled(self, msgid: int) -> None:
        self._ledger.errors.append(f"device {self.index} received {msgid} twice")
        self._ledger.doubled.append(msgid)

    def _welcomed(self, asked_ms: int) -> None:
        assert self._sdk_device is not None
        self._note_reachable(is_reachable=self._is_awake.is_set())
        if not self.history:
            assert self._sdk_device.token is not None
            self.history.append(Change(asked_ms, self._ledger.now_ms(), State(self._sdk_device.token)))
            self._ledger.write("registered", device=self.index, token=self._sdk_device.token)

    def _note_reachable(self, *, is_reachable: bool) -> None:
        self.reachable.append(Reachability(self._ledger.now_ms(), is_reachable))

    async def _do_something(self) -> None:
        roll = self._random.random()
        if roll < 0.4:
            await self.change(tags=frozenset(self._some(TAGS)), stags=frozenset(self._some(STAGS)))
        elif roll < 0.5 and len(self.aliases) > 1:
            await self.change(alias=self._random.choice([None, *self.aliases]))
        elif roll < 0.55:
            await self.change(channel=self._random.choice(CHANNELS))
        elif roll < 0.75:
            await self.disconnect()
            await asyncio.sleep(self._random.uniform(0, _BROWSERS_AWAY_S if self.address_frame else _AWAY_S))
            await self.connect()
        elif roll < 0.9:
            self._note_reachable(is_reachable=False)
            self._is_awake.clear()
            await asyncio.sleep(self._random.uniform(0, 3))
            self.wake()
        else:
            await self.connect()

    async def _request(self, frame: Mapping[str, Any]) -> Mapping[str, Any]:
        while True:
            try:
                if self._sdk_device is not None:
                    return await self._sdk_device.request(frame, _ANSWER_S)
            except RefusedError as error:
                if error.code < SERVER_ERROR:
                    self._ledger.errors.append(f"device {self.index}: {frame} was refused: {error}")
                    raise
                await asyncio.sleep(RETRY_S)
                continue
            except DeviceError as error:
                self._ledger.write("not answered", device=self.index, frame=frame, reason=str(error))
            await self.connect()

    def _some(self, things: Any) -> list[Any]:
        return self._random.sample(list(things), self._random.randint(0, 3))


def _requests(old: State, new: State) -> list[dict[str, Any]]:
    """Return the requests that change the old state into the new one."""
    frames: list[dict[str, Any]] = []
    if new.alias != old.alias:
        frames.append({"type": "set_alias", "alias": new.alias} if new.alias else {"type": "clear_alias"})
    for name, was, becomes in (("tags", old.tags, new.tags), ("stags", old.stags, new.stags)):
        if becomes - was:
            frames.append({"type": f"add_{name}", name: sorted(becomes - was)})
        if was - becomes:
            frames.append({"type": f"remove_{name}", name: sorted(was - becomes)})
    if new.channel != old.channel:
        frames.append({"type": "set_attributes", "device": {"channel": new.channel}})
    return frames
