"""Compares what registry and targeting answer in the end with the reference model of devices."""

import asyncio
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping

from pyroaring import BitMap

from protos.push.v1.push_pb2 import Aliases, Audience, Filter, SendPush, StagGroup
from protos.registry.v1.devices_pb2 import Device
from protos.registry.v1.registry_pb2 import GetAddressesRequest, GetDevicesRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.targeting.v1.targeting_pb2 import FindAddressedRequest
from protos.targeting.v1.targeting_pb2_grpc import TargetingServiceStub
from services.domain.bitmap_resolver import AudienceBitmapResolver
from services.domain.token_resolver import TokenAndAliasResolver
from services.domain.topics import DEVICE_COMMANDS, device_key
from services.errors import CarillonError, DeadlineError, UnavailableError
from services.log.topics import partition_of
from tests.simulation.backends.driver import ALIASES, CHANNELS, STAGS
from tests.simulation.backends.log_reading import messages
from tests.simulation.kernel.installation import Installation
from tests.simulation.model.devices import Held, ModelDevice, Name, folded

_RETRY_S = 5.0
_ATTEMPTS = 20
"""For so long the registry may still take away what too many devices have, and a role may not answer."""

Place = tuple[int, int]
"""Partition and number of a device."""


async def final_states(installation: Installation) -> list[str]:
    """Return how the answers differ from the model; the roles must have caught up with the log.

    Where a role does not answer, or only aliases or addresses differ, the comparison is repeated.
    """
    found: list[str] = []
    for _ in range(_ATTEMPTS):
        states = _FinalStates(installation)
        try:
            if wrong := await states.differences():
                return wrong
            found = await states.alias_differences() or await states.address_differences()
        except (UnavailableError, DeadlineError) as error:
            found = [f"state: no answer in the end: {error}"]
        except CarillonError as error:
            return [f"state: wrong answer in the end: {error!r}"]
        if not found:
            break
        await asyncio.sleep(_RETRY_S)
    return found


class _FinalStates:
    def __init__(self, installation: Installation) -> None:
        self._peers = installation.client_peers()
        self._partitions = installation.broker.partitions
        self._model = folded(messages(installation.broker, DEVICE_COMMANDS.name))
        self._apps = sorted({appkey for appkey, _ in self._model})
        self._devices: Mapping[Name, Device] = {}

    async def differences(self) -> list[str]:
        """Return the devices whose tags are wrong, and the tags for which targeting selects wrong devices."""
        self._devices = await self._registered()
        found = [
            f"state: device {name} has the tags {_tags(self._devices.get(name))}, and should have {sorted(model.stags)}"
            for name, model in self._model.items()
            if _tags(self._devices.get(name)) != sorted(model.stags)
        ]
        return found or await self._targeted()

    async def alias_differences(self) -> list[str]:
        """Return the devices whose alias is wrong, and the aliases that select wrong devices; after `differences`."""
        found = [
            f"state: device {name} has the alias {alias}, and should have {model.alias}"
            for name, model in self._model.items()
            if (alias := _alias(self._devices[name])) != model.alias
        ]
        return found or await self._aliased()

    async def address_differences(self) -> list[str]:
        """Return the devices with a wrong address, the addresses of several devices, and what senders are told wrong.

        After `differences`.
        """
        found = [
            f"state: device {name} has the addresses {held}, and should have {model.addresses}"
            for name, model in self._model.items()
            if (held := _addresses(self._devices[name])) != model.addresses
        ]
        holders = Counter(
            (appkey, channel, address)
            for (appkey, _), device in self._devices.items()
            for channel, (address, _) in _addresses(device).items()
        )
        found += [f"state: {count} devices have the address {key}" for key, count in holders.items() if count > 1]
        return found or await self._addressed()

    async def _addressed(self) -> list[str]:
        """Return for which apps, partitions and channels senders find wrong devices, or get wrong addresses."""
        found = []
        for appkey in self._apps:
            for partition in range(self._partitions):
                asked = FindAddressedRequest(appkey=appkey, partitions=[partition])
                answer = await TargetingServiceStub(self._peers.owner("targeting", partition)).FindAddressed(asked)
                bitmaps = {each.channel: [*BitMap.deserialize(each.bitmap)] for each in answer.addressed}
                for channel in CHANNELS:
                    wanted = self._with_address(appkey, partition, channel)
                    if bitmaps.get(channel, []) != sorted(wanted):
                        found.append(f"state: targeting finds {bitmaps} of {appkey}/{partition}, not {wanted}")
                    numbers = GetAddressesRequest(
                        appkey=appkey, partition=partition, numbers=sorted(wanted), channel=channel
                    )
                    got = await RegistryServiceStub(self._peers.owner("registry", partition)).GetAddresses(numbers)
                    if [each.address for each in got.addresses] != [wanted[number] for number in sorted(wanted)]:
                        found.append(f"state: senders get {got} of {appkey}/{partition}, not {wanted}")
        return found

    def _with_address(self, appkey: str, partition: int, channel: int) -> dict[int, str]:
        """Return the addresses on the channel by device number."""
        return {
            device.number: _addresses(device)[channel][0]
            for (app, _), device in self._devices.items()
            if (app, device.partition) == (appkey, partition) and channel in _addresses(device)
        }

    async def _registered(self) -> Mapping[Name, Device]:
        """Return all devices of the model as the registry's instances have them."""
        asked: dict[tuple[int, str], list[str]] = defaultdict(list)
        for appkey, token in self._model:
            asked[partition_of(device_key(appkey, token), self._partitions), appkey].append(token)
        found: dict[Name, Device] = {}
        for (partition, appkey), tokens in asked.items():
            registry = RegistryServiceStub(self._peers.owner("registry", partition))
            answer = await registry.GetDevices(GetDevicesRequest(appkey=appkey, tokens=tokens))
            found |= {(device.appkey, device.token): device for device in answer.devices}
        return found

    async def _targeted(self) -> list[str]:
        targeting = AudienceBitmapResolver(self._peers)
        found = []
        for appkey in self._apps:
            for stag in STAGS:
                audience = Audience(filter=Filter(stags=[StagGroup(stags=[stag])]))
                resolved = await targeting.resolve(SendPush(appkey=appkey, audience=audience), range(self._partitions))
                if resolved.error:
                    raise resolved.error
                selected = {(partition, number) for partition, some in resolved.audiences.items() for number in some}
                wanted = self._matching(appkey, lambda model, stag=stag: stag in model.stags)  # type: ignore[misc]
                if selected != wanted:
                    found.append(f"state: {stag} of {appkey}: wrong or missing {selected ^ wanted}")
        return found

    async def _aliased(self) -> list[str]:
        registry = TokenAndAliasResolver(self._peers, self._partitions)
        found = []
        for appkey in self._apps:
            for alias in ALIASES:
                audience = Audience(aliases=Aliases(aliases=[alias], all_devices=True))
                selected = _listed((await registry.resolve(appkey, audience)).audience)
                wanted = self._matching(appkey, lambda model, alias=alias: model.alias == alias)  # type: ignore[misc]
                if selected != wanted:
                    found.append(f"state: alias {alias} of {appkey}: wrong or missing {selected ^ wanted}")
        return found

    def _matching(self, appkey: str, matches: Callable[[ModelDevice], bool]) -> set[Place]:
        devices = self._devices
        return {
            (devices[name].partition, devices[name].number)
            for name, model in self._model.items()
            if name[0] == appkey and matches(model)
        }


def _tags(device: Device | None) -> list[str] | None:
    return None if device is None else sorted(device.stags)


def _alias(device: Device) -> str | None:
    return device.alias if device.HasField("alias") else None


def _addresses(device: Device) -> dict[int, Held]:
    return {int(each.channel): (each.address, each.since_ms) for each in device.addresses}


def _listed(audience: Audience) -> set[Place]:
    partitions, numbers = audience.devices.partitions, audience.devices.numbers
    count = len(numbers) // 4
    return set(zip(struct.unpack(f"<{count}H", partitions), struct.unpack(f"<{count}I", numbers), strict=True))
