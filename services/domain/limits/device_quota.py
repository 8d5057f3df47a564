"""The quota of devices, asked for by the roles that register devices. The registry decides it."""

from protos.registry.v1.registry_pb2 import ReserveDeviceRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.apps import AppDirectory
from services.domain.topics import device_key
from services.runtime.errors import TooManyRequestsError
from services.runtime.log.topics import partition_of
from services.runtime.process.metrics import QUOTA_REFUSALS
from services.runtime.rpc.peers import Peers

RETRY_S = 600
"""Time after which a device may try again: a place is free only once a device is removed or the quota is raised."""


class DeviceQuota:
    """Reserves a place for each new device of an app that has a quota; other apps cost nothing."""

    def __init__(self, apps: AppDirectory, peers: Peers, partitions: int) -> None:
        self._apps = apps
        self._peers = peers
        self._partitions = partitions

    async def reserve(self, appkey: str, token: str) -> None:
        """Return once the token may be registered now, or is registered already. TooManyRequestsError: it may not."""
        app = self._apps.get(appkey)
        if app is None or not app.quotas.devices:
            return
        partition = partition_of(device_key(appkey, token), self._partitions)
        registry = RegistryServiceStub(self._peers.owner("registry", partition))
        if (await registry.ReserveDevice(ReserveDeviceRequest(appkey=appkey, token=token))).quota_used_up:
            QUOTA_REFUSALS.labels(appkey, "devices").inc()
            raise TooManyRequestsError(
                f"app {appkey} is over its quota of {app.quotas.devices} devices; try again in {RETRY_S} s", RETRY_S
            )
