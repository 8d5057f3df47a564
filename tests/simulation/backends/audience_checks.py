"""Checks of audiences: a device that was registered before a push to everyone was made is in its audience."""

from collections.abc import Iterator

from pyroaring import BitMap

from services.domain.topics import DEVICES, PUSHES
from tests.simulation.backends.ledger import Ledger
from tests.simulation.backends.log_reading import messages
from tests.simulation.kernel.log.broker import Broker


def missing_devices(broker: Broker, ledger: Ledger) -> Iterator[str]:
    """Yield the devices that are missing in an audience; devices are never removed in these worlds."""
    devices = [fact.device for fact in messages(broker, DEVICES.name) if fact.HasField("device")]
    places = {(device.appkey, device.token): (device.partition, device.number) for device in devices}
    for fact in messages(broker, PUSHES.name):
        if fact.WhichOneof("fact") != "started":
            continue
        audience = BitMap.deserialize(fact.started.audience)
        for name in ledger.targets.get(fact.msgid, ()):
            if name not in places:
                yield f"lost: device {name} was registered and is not in the log"
                continue
            partition, number = places[name]
            if partition == fact.partition and number not in audience:
                yield f"audience: device {number} of partition {partition} is not in that of push {fact.msgid}"
