"""Asks delivery to drop messages for a device's former alias, before the change of the alias is confirmed."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from protos.delivery.v1.delivery_pb2 import CheckAliasesRequest, CheckedDevice
from protos.delivery.v1.delivery_pb2_grpc import AliasesServiceStub
from services.errors import CarillonError, UnavailableError
from services.log.batcher import Batcher, ByteBudget
from services.replica.peers import Peers

if TYPE_CHECKING:
    from protos.delivery.v1.delivery_pb2_grpc import AliasesServiceAsyncStub

_MAX_BATCH = 1000
_WAITING_BYTES = 16 * 1024 * 1024
_DEVICE_BYTES = 300


class ChangedDevice(NamedTuple):
    """A device by its app, partition and device number."""

    appkey: str
    partition: int
    number: int


class AliasChecks:
    """Calls CheckAliases of delivery. Devices that change their aliases at the same time share a call."""

    def __init__(self, peers: Peers) -> None:
        self._budget = ByteBudget(_WAITING_BYTES)
        self._batchers: list[Batcher[ChangedDevice, Sequence[int]]] = [
            Batcher(partial(_check, AliasesServiceStub(channel)), self._budget, _MAX_BATCH)
            for channel in peers.all("delivery")
        ]

    async def check(self, appkey: str, partition: int, number: int) -> Sequence[int]:
        """Return the ids of the messages that were dropped for the device. Call it once the change is applied.

        UnavailableError: delivery has not confirmed it, and messages for the former alias may still come.
        """
        self._budget.reserve(_DEVICE_BYTES)
        batcher = self._batchers[partition % len(self._batchers)]
        try:
            (dropped,) = await batcher.put([ChangedDevice(appkey, partition, number)], _DEVICE_BYTES)
        except CarillonError as error:
            raise UnavailableError(
                f"the alias is changed, but messages for the former one may still come ({error}); repeat the request"
            ) from error
        return dropped


async def _check(delivery: "AliasesServiceAsyncStub", devices: list[ChangedDevice]) -> list[Sequence[int]]:
    request = CheckAliasesRequest(devices=[CheckedDevice(**device._asdict()) for device in devices])
    response = await delivery.CheckAliases(request)
    return [dropped.msgids for dropped in response.dropped]
