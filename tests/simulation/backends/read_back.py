"""Reads devices and tasks right after a change of them was answered: the read has to show the change."""

from collections.abc import Collection, Sequence

from protos.push.v1.push_pb2 import Audience, Filter, SendPush, StagGroup
from protos.registry.v1.registry_pb2 import GetDevicesRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.scheduling.v1.scheduling_pb2 import GetTaskRequest, GetTaskResponse
from protos.scheduling.v1.scheduling_pb2_grpc import SchedulingServiceStub
from services.domain.bitmap_resolver import AudienceBitmapResolver
from services.domain.topics import device_key
from services.errors import NotFoundError
from services.log.topics import partition_of
from tests.simulation.backends.ledger import Ledger
from tests.simulation.kernel.installation import Installation


class ReadBack:
    """Reads a device or task from its owner, once; a read that does not show the change is an error of the ledger.

    Every method raises a CarillonError where there is no answer.
    """

    def __init__(self, installation: Installation, ledger: Ledger) -> None:
        self._peers = installation.client_peers()
        self._partitions = installation.broker.partitions
        self._targeting = AudienceBitmapResolver(self._peers)
        self._ledger = ledger

    async def device(self, appkey: str, token: str, stags: Collection[str]) -> None:
        """Check that the registry has these string tags of the device, and that targeting selects it by them."""
        partition = partition_of(device_key(appkey, token), self._partitions)
        registry = RegistryServiceStub(self._peers.owner("registry", partition))
        found = await registry.GetDevices(GetDevicesRequest(appkey=appkey, tokens=[token]))
        read = [sorted(device.stags) for device in found.devices]
        if read != [sorted(stags)]:
            self._ledger.errors.append(f"device {appkey}/{token} has {read} after {sorted(stags)} were confirmed")
            return
        wanted = [StagGroup(stags=[stag]) for stag in stags]
        await self._selected(appkey, partition, found.devices[0].number, wanted)

    async def task(self, key: str, appkey: str) -> int:
        """Return the status of a task whose creation was confirmed."""
        owner = self._peers.owner("scheduling", partition_of(key.encode(), self._partitions))
        try:
            found: GetTaskResponse = await SchedulingServiceStub(owner).GetTask(
                GetTaskRequest(task_key=key, appkeys=[appkey])
            )
        except NotFoundError:
            self._ledger.errors.append(f"task {key} was confirmed and is not found")
            return 0
        return found.task.status

    async def _selected(self, appkey: str, partition: int, number: int, wanted: Sequence[StagGroup]) -> None:
        if not wanted:
            return
        audience = Audience(filter=Filter(stags=wanted))
        resolved = await self._targeting.resolve(SendPush(appkey=appkey, audience=audience), [partition])
        if resolved.error is not None:
            raise resolved.error
        if number not in resolved.audiences[partition]:
            self._ledger.errors.append(f"device {number} of {appkey} is not selected by a confirmed tag")
