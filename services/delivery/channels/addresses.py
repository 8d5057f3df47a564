"""Addresses of devices at a push service: look-up in the registry, and removal of invalid ones."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from protos.registry.v1.apps_pb2 import CHANNEL_UNSPECIFIED, Channel
from protos.registry.v1.devices_pb2 import ClearAddress, DeviceCommand
from protos.registry.v1.registry_pb2 import GetAddressesRequest, GetTokensRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.delivery.channels import AddressRemoval, Recipient
from services.domain.addresses import address_hash
from services.domain.command_writer import Command, CommandWriter, device_command
from services.errors import CarillonError
from services.process import background
from services.process.logs import logger
from services.replica.peers import Peers

if TYPE_CHECKING:  # this class is in the type stubs alone
    from protos.registry.v1.registry_pb2_grpc import RegistryServiceAsyncStub


class DeviceAddresses:
    """Looks up devices' addresses on a channel, in the registry instances that own their partitions."""

    def __init__(self, peers: Peers, channel: "Channel.ValueType") -> None:
        self._peers = peers
        self._channel = channel

    async def fetch(self, appkey: str, numbers: Mapping[int, Sequence[int]]) -> dict[int, dict[int, Recipient]]:
        """Devices by partition and number, without the partitions whose registry is unavailable."""
        found = await asyncio.gather(*(self._fetch(appkey, *item) for item in numbers.items()))
        return {partition: devices for partition, devices in zip(numbers, found, strict=True) if devices is not None}

    async def _fetch(self, appkey: str, partition: int, numbers: Sequence[int]) -> dict[int, Recipient] | None:
        registry = RegistryServiceStub(self._peers.owner("registry", partition))
        try:
            return {each.number: each for each in await self._recipients(registry, appkey, partition, numbers)}
        except CarillonError as error:
            logger.warning("the registry does not answer; trying again", error=str(error))
            return None

    async def _recipients(
        self, registry: "RegistryServiceAsyncStub", appkey: str, partition: int, numbers: Sequence[int]
    ) -> list[Recipient]:
        addresses = GetAddressesRequest(appkey=appkey, partition=partition, numbers=numbers, channel=self._channel)
        tokens = GetTokensRequest(appkey=appkey, partition=partition, numbers=numbers)
        found, devices = await asyncio.gather(registry.GetAddresses(addresses), registry.GetTokens(tokens))
        return [
            Recipient(appkey, partition, number, each.address, active_ms, token, each.p256dh, each.auth)
            for number, each, token, active_ms in zip(
                numbers, found.addresses, devices.tokens, devices.active_ms, strict=True
            )
        ]


class TokenAddresses(DeviceAddresses):
    """Looks up devices whose address is their token."""

    def __init__(self, peers: Peers) -> None:
        super().__init__(peers, CHANNEL_UNSPECIFIED)

    async def _recipients(
        self, registry: "RegistryServiceAsyncStub", appkey: str, partition: int, numbers: Sequence[int]
    ) -> list[Recipient]:
        response = await registry.GetTokens(GetTokensRequest(appkey=appkey, partition=partition, numbers=numbers))
        return [
            Recipient(appkey, partition, number, token, active_ms)
            for number, token, active_ms in zip(numbers, response.tokens, response.active_ms, strict=True)
        ]


def cleared_address(channel: "Channel.ValueType", removal: AddressRemoval) -> Command:
    """Return the command that removes a device's address on a channel; one that the device has set since stays."""
    clear = ClearAddress(
        channel=channel,
        only_hash=address_hash(channel, removal.recipient.address),
        known_before_ms=removal.registered_before_ms,
        dead_reason=removal.reason,
    )
    recipient = removal.recipient
    return device_command(DeviceCommand(appkey=recipient.appkey, token=recipient.token, clear_address=clear))


_BATCH_SIZE = 1000


class AddressRemover:
    """Appends removal commands to the log from one task, so that addresses found meanwhile form the next batch.

    `command_of` returns the command of a removal.
    """

    def __init__(self, writer: CommandWriter, command_of: Callable[[AddressRemoval], Command]) -> None:
        self._writer = writer
        self._command_of = command_of
        self._queue: list[AddressRemoval] = []
        self._writing: asyncio.Task[None] | None = None

    def remove(self, removal: AddressRemoval) -> None:
        self._queue.append(removal)
        if self._writing is None or self._writing.done():
            self._writing = background.start("removal of invalid addresses", self._write())

    async def close(self) -> None:
        """Return once the queue is written."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    async def _write(self) -> None:
        while self._queue:
            batch, self._queue = self._queue[:_BATCH_SIZE], self._queue[_BATCH_SIZE:]
            by_address = {(each.recipient.appkey, each.recipient.address): self._command_of(each) for each in batch}
            try:
                await self._writer.append(list(by_address.values()))
            except CarillonError as error:
                logger.warning("invalid addresses stay until the next push", count=len(by_address), error=str(error))
            for removal in batch:
                removal.done()
