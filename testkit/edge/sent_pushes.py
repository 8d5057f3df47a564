"""The pushes that an edge appended to the log, and the devices of their audiences."""

import numpy as np

from protos.push.v1.push_pb2 import Devices, SendPush
from protos.registry.v1.apps_pb2 import App
from protos.registry.v1.registry_pb2 import FindDevicesRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.topics import device_key
from services.log.topics import partition_of
from testkit.edge.role import PARTITIONS, EdgeInstallation


async def only_push(installation: EdgeInstallation) -> SendPush:
    """Return the push in the log; there must be exactly one."""
    (push,) = await installation.sent()
    return push


def targets(devices: Devices) -> list[tuple[int, int, int]]:
    """Return partition, device number and id offset of each device."""
    columns = zip(
        np.frombuffer(devices.partitions, "<u2").tolist(),
        np.frombuffer(devices.numbers, "<u4").tolist(),
        np.frombuffer(devices.id_offsets, "<u4").tolist(),
        strict=True,
    )
    return list(columns)


async def device_numbers(installation: EdgeInstallation, app: App, *tokens: str) -> list[tuple[int, int]]:
    """Return partition and device number of each token, as the registry knows them."""
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    found = await registry.FindDevices(FindDevicesRequest(appkey=app.appkey, tokens=tokens))
    assert 0 not in found.numbers_plus_one
    return [
        (partition_of(device_key(app.appkey, token), PARTITIONS), number - 1)
        for token, number in zip(tokens, found.numbers_plus_one, strict=True)
    ]
