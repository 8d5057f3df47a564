"""The load of a world of roles: app servers' and devices' commands, written as the edge writes them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from zlib import crc32

from protos.push.v1.push_pb2 import (
    Audience,
    CancelPush,
    Everyone,
    Filter,
    Message,
    PushCommand,
    SendPush,
    StagGroup,
    Tokens,
)
from protos.registry.v1.apps_pb2 import CHANNEL_FCM, CHANNEL_WEBPUSH, PLATFORM_ANDROID
from protos.registry.v1.devices_pb2 import (
    AddStags,
    ClearAddress,
    DeviceCommand,
    RegisterDevice,
    RemoveStags,
    SetAddress,
    SetAlias,
)
from protos.registry.v1.registry_pb2 import CreateAppRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.scheduling.v1.scheduling_pb2 import TASK_STATUS_CANCELLED, CancelTask, CreateTask, TaskCommand
from services.domain.addresses import address_hash
from services.domain.command_writer import Command, CommandWriter, device_command, push_command, task_command
from services.domain.ids import new_token
from services.domain.token_resolver import TokenAndAliasResolver
from testkit.delivery.message_ids import SoleWriterIds
from tests.simulation.backends.ledger import Ledger, until_answered
from tests.simulation.backends.read_back import ReadBack
from tests.simulation.kernel.installation import Installation
from tests.simulation.kernel.log.client import SimulatedLog

STAGS = ["red", "green", "blue"]
ALIASES = ["anna", "ben"]
CHANNELS = (CHANNEL_WEBPUSH, CHANNEL_FCM)
_ADDRESSES = ["x", "y", "z"]
"""So few that devices often set one that another device has."""

_CLIENTS = 3
_DUE_TOGETHER_MS, _DUE_WITHIN_MS = 2000, 60
"""Tasks fall due in groups, a few ms one after the other."""

_TIME_AHEAD_MS = 1000
_READ_BACK = 0.5


@dataclass
class _Device:
    """A device that one client alone changes. `stags` None: it is not known whether the latest change was appended."""

    appkey: str
    token: str
    stags: set[str] | None


class Driver:
    """Writes random commands of a few apps, and notes the answers; it belongs to the world, so no fault ends it."""

    def __init__(
        self, installation: Installation, random: Random, rate: float = 2.0, *, few_devices: bool = False
    ) -> None:
        """`rate`: commands a second of each client. `few_devices`: each client has one device."""
        self.ledger = Ledger()
        self._random = random
        self._rate = rate
        self._few_devices = few_devices
        self._loop = installation.world.loop
        self._clock = installation.world.clock()
        peers = installation.client_peers()
        partitions = installation.broker.partitions
        self._writer = CommandWriter("driver", SimulatedLog(installation.broker), peers, self._clock, partitions)
        self._registry = RegistryServiceStub(peers.all("registry")[0])
        self._resolver = TokenAndAliasResolver(peers, partitions)
        self._ids = SoleWriterIds(self._clock)
        self.apps: list[str] = []
        self._tokens: list[tuple[str, str]] = []
        self._registered: list[tuple[str, str]] = []
        self._tasks_due_ms: int | None = None
        self._reader = ReadBack(installation, self.ledger)

    async def begin(self) -> None:
        """Create two apps."""
        for name in ("one", "two"):
            request = CreateAppRequest(platform=PLATFORM_ANDROID, name=name, package=f"org.example.{name}")
            made = await until_answered(lambda request=request: self._registry.CreateApp(request))  # type: ignore[misc]
            self.apps.append(made.app.appkey)

    async def run(self, until_s: float, tasks_due_s: float | None = None) -> None:
        """Let the clients write commands until the time has come; all tasks fall due after so many seconds, if set."""
        if tasks_due_s is not None:
            self._tasks_due_ms = self._clock.now_ms() + int(tasks_due_s * 1000)
        await asyncio.gather(*(self._client(until_s) for _ in range(_CLIENTS)), self._addresses(until_s))

    async def _addresses(self, until_s: float) -> None:
        """Let registered devices set addresses, also those of others, and clear them; let vendors call them dead."""
        while self._loop.time() < until_s:
            await asyncio.sleep(self._random.expovariate(self._rate))
            if self._registered:
                await self.ledger.attempt("change_address", self._change_address, self._clock)

    async def _client(self, until_s: float) -> None:
        devices: list[_Device] = []
        register, change = partial(self._register, devices), partial(self._change_device, devices)
        actions: Sequence[Callable[[], Awaitable[None]]] = (
            *(register, register, register, register, change, change),
            *(self._push, self._push, self._push, self._push, self._time, self._time, self._time),
            *(self._cancel_push, self._cancel_task),
        )
        while self._loop.time() < until_s:
            await asyncio.sleep(self._random.expovariate(self._rate))
            action = self._random.choice(actions)
            name = getattr(action, "func", action).__name__.lstrip("_")
            await self.ledger.attempt(name, action, self._clock)

    async def _register(self, devices: list[_Device]) -> None:
        if self._few_devices and devices:
            await self._change_device(devices)
            return
        device = _Device(self._random.choice(self.apps), new_token(), None)
        register = RegisterDevice(platform=PLATFORM_ANDROID)
        self._tokens.append((device.appkey, device.token))
        devices.append(device)
        await self._append(device_command(DeviceCommand(appkey=device.appkey, token=device.token, register=register)))
        device.stags = set()
        self._registered.append((device.appkey, device.token))

    async def _change_device(self, devices: list[_Device]) -> None:
        if not devices:
            return
        device, stag = self._random.choice(devices), self._random.choice(STAGS)
        command = DeviceCommand(appkey=device.appkey, token=device.token)
        stags, device.stags = device.stags, None
        match self._random.randrange(3):
            case 0:
                command.add_stags.CopyFrom(AddStags(stags=[stag]))
                after = {stag}.union(stags or ())
            case 1:
                command.remove_stags.CopyFrom(RemoveStags(stags=[stag]))
                after = (stags or set()) - {stag}
            case _:
                alias, is_proven = self._random.choice(ALIASES), crc32(command.token.encode()) % 3 == 0
                command.set_alias.CopyFrom(SetAlias(alias=alias, proven=is_proven))
                after = stags or set()
        await self._append(device_command(command))
        if stags is not None:
            device.stags = after
            if self._random.random() < _READ_BACK:
                await self._reader.device(device.appkey, device.token, after)

    async def _change_address(self) -> None:
        appkey, token = self._random.choice(self._registered)
        channel, address = self._random.choice(CHANNELS), self._random.choice(_ADDRESSES)
        command = DeviceCommand(appkey=appkey, token=token)
        match self._random.randrange(6):
            case 0:
                command.clear_address.CopyFrom(ClearAddress(channel=channel))
            case 1:
                known_ms = self._clock.now_ms() - self._random.choice((0, 1000))
                dead = ClearAddress(channel=channel, known_before_ms=known_ms, dead_reason="gone")
                dead.only_hash = address_hash(channel, address)
                command.clear_address.CopyFrom(dead)
            case _:
                command.set_address.CopyFrom(SetAddress(channel=channel, address=address))
        await self._append(device_command(command))

    async def _push(self) -> None:
        push = self.new_push(self._random.choice(self.apps))
        registered, tokens = set(self._registered), list(push.audience.tokens.tokens)
        resolved = await self._resolver.resolve(push.appkey, push.audience)
        for token in (tokens[place] for place in resolved.unknown):
            if (push.appkey, token) in registered:
                self.ledger.errors.append(f"token {token} was registered and is not found")
        push.audience.CopyFrom(resolved.audience)
        await self._append(push_command(PushCommand(send=push)))
        self.ledger.pushes[push.msgid] = push

    async def _cancel_push(self) -> None:
        if self.ledger.pushes:
            push = self.ledger.pushes[self._random.choice(sorted(self.ledger.pushes))]
            await self._append(push_command(PushCommand(cancel=CancelPush(msgid=push.msgid, appkey=push.appkey))))
            self.ledger.cancelled_pushes.add(push.msgid)

    async def _time(self) -> None:
        if (due_ms := self._next_due_ms()) is None:
            return
        push = self.new_push(self._random.choice(self.apps))
        key = f"task-{push.msgid}"
        push.task_key = key
        create = CreateTask(pushes=[push], due_ms=due_ms)
        await self._append(task_command(TaskCommand(task_key=key, create=create)))
        self.ledger.tasks[key] = create
        await self._reader.task(key, push.appkey)

    async def _cancel_task(self) -> None:
        if self.ledger.tasks:
            key = self._random.choice(sorted(self.ledger.tasks))
            appkeys = [push.appkey for push in self.ledger.tasks[key].pushes]
            await self._append(task_command(TaskCommand(task_key=key, cancel=CancelTask(appkeys=appkeys))))
            if await self._reader.task(key, appkeys[0]) == TASK_STATUS_CANCELLED:
                self.ledger.cancelled_tasks.add(key)

    async def _append(self, command: Command) -> None:
        await self._writer.append_and_wait([command])

    def _next_due_ms(self) -> int | None:
        """Return when the next task falls due; None if there is no further one in this world."""
        now_ms = self._clock.now_ms()
        if self._tasks_due_ms is None:
            soon_ms = now_ms + self._random.randrange(1000, 12_000)
            return soon_ms // _DUE_TOGETHER_MS * _DUE_TOGETHER_MS + self._random.randrange(_DUE_WITHIN_MS)
        if now_ms + _TIME_AHEAD_MS > self._tasks_due_ms:
            return None
        return self._tasks_due_ms + self._random.randrange(_DUE_WITHIN_MS)

    def new_push(self, appkey: str) -> SendPush:
        """Return a push of the app to a random audience."""
        tokens = [token for app, token in self._tokens if app == appkey]
        audience = Audience(everyone=Everyone())
        match self._random.randrange(3):
            case 0:
                audience = Audience(filter=Filter(stags=[StagGroup(stags=[self._random.choice(STAGS)])]))
            case 1 if tokens:
                audience = Audience(tokens=Tokens(tokens=self._random.choices(tokens, k=self._random.randrange(1, 4))))
        count = max(1, len(audience.tokens.tokens))
        msgid = self._ids.take(count)
        if audience.HasField("everyone"):
            self.ledger.targets[msgid] = [name for name in self._registered if name[0] == appkey]
        return SendPush(
            msgid=msgid,
            id_count=count,
            appkey=appkey,
            platform=PLATFORM_ANDROID,
            audience=audience,
            message=Message(is_notif=True, content=f"message {msgid}"),
            period_s=self._random.choice([30, 600, 86_400]),
        )
