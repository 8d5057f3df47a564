"""String tags of devices: added, deleted and listed by app servers."""

import asyncio
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from edge.core.signature import AppRef
from protos.registry.v1.devices_pb2 import AddStags, Device, DeviceCommand, RemoveStags
from protos.registry.v1.registry_pb2 import GetDevicesRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.log_pb2 import Origin
from services.domain.apps import AppDirectory
from services.domain.command_writer import Command, CommandWriter, device_command
from services.domain.identity import proven_by_server
from services.domain.ios_tokens import spellings
from services.domain.limits.string_tags import has_room
from services.domain.topics import device_key
from services.runtime.log.topics import partition_of
from services.runtime.rpc.peers import Peers

_AT_ONCE = 100

StagsByToken = Mapping[str, Sequence[str]]


class TagOutcome(Enum):
    DONE = 0
    UNKNOWN = 1
    FULL = 2


class AppTokens(NamedTuple):
    """Tokens of devices of one app."""

    app: AppRef
    tokens: Sequence[str]


class StringTags:
    """Reads and changes the string tags of devices. A call looks up all its devices together and appends once."""

    def __init__(self, writer: CommandWriter, peers: Peers, apps: AppDirectory, partitions: int) -> None:
        self._writer = writer
        self._apps = apps
        self._registries = [RegistryServiceStub(channel) for channel in peers.all("registry")]
        self._partitions = partitions

    async def of(self, queries: Sequence[AppTokens]) -> list[dict[str, Sequence[str]]]:
        """Return for each app the string tags of the devices that exist, by token."""
        found = await asyncio.gather(*(self._devices(app.appkey, tokens) for app, tokens in queries))
        return [{token: list(device.stags) for token, device in devices.items()} for devices in found]

    async def add(self, changes: Sequence[tuple[AppRef, StagsByToken]], origin: Origin) -> list[list[TagOutcome]]:
        """Add tags to devices and return an outcome per token for each app, once targeting has applied the change."""
        return await self._change(changes, origin, adding=True)

    async def remove(self, changes: Sequence[tuple[AppRef, StagsByToken]], origin: Origin) -> list[list[TagOutcome]]:
        """Remove tags from devices; a tag that a device does not have is no error."""
        return await self._change(changes, origin, adding=False)

    async def _change(
        self, changes: Sequence[tuple[AppRef, StagsByToken]], origin: Origin, *, adding: bool
    ) -> list[list[TagOutcome]]:
        found = await asyncio.gather(*(self._devices(app.appkey, list(by_token)) for app, by_token in changes))
        outcomes: list[list[TagOutcome]] = []
        commands: list[Command] = []
        for (app, by_token), devices in zip(changes, found, strict=True):
            outcomes.append([])
            for token, stags in by_token.items():
                outcome = _outcome(devices.get(token), stags, adding=adding)
                outcomes[-1].append(outcome)
                if outcome is TagOutcome.DONE:
                    commands.append(self._command(app.appkey, devices[token].token, stags, adding=adding))
        await self._writer.append_and_wait(commands, origin)
        return outcomes

    async def _devices(self, appkey: str, tokens: Sequence[str]) -> dict[str, Device]:
        """Look up the devices that exist, by token as it is given."""
        by_instance: dict[int, list[str]] = {}
        for token in dict.fromkeys(name for given in tokens for name in spellings(given)):
            partition = partition_of(device_key(appkey, token), self._partitions)
            by_instance.setdefault(partition % len(self._registries), []).append(token)
        requests = [
            self._registries[instance].GetDevices(GetDevicesRequest(appkey=appkey, tokens=own[at : at + _AT_ONCE]))
            for instance, own in by_instance.items()
            for at in range(0, len(own), _AT_ONCE)
        ]
        found = {device.token: device for answer in await asyncio.gather(*requests) for device in answer.devices}
        registered = {given: next((name for name in spellings(given) if name in found), None) for given in tokens}
        return {given: found[name] for given, name in registered.items() if name is not None}

    def _command(self, appkey: str, token: str, stags: Sequence[str], *, adding: bool) -> Command:
        command = DeviceCommand(appkey=appkey, token=token)
        if adding:
            command.add_stags.CopyFrom(AddStags(stags=stags, proven=proven_by_server(self._apps.get(appkey), stags)))
        else:
            command.remove_stags.CopyFrom(RemoveStags(stags=stags))
        return device_command(command)


def _outcome(device: Device | None, stags: Sequence[str], *, adding: bool) -> TagOutcome:
    if device is None:
        return TagOutcome.UNKNOWN
    if adding and not has_room(device.stags, stags):
        return TagOutcome.FULL
    return TagOutcome.DONE
