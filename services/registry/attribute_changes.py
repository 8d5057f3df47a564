"""Changes of devices' attributes as facts in `sessions`: the order of a partition tells what its events count under.

A change is written with the record of its device. Where a process was killed when the log had the record alone, its
change is written by whoever owns the partition next, before anything else is decided there. A change may be in the log
twice: readers ignore one whose revision is not above every earlier one in the partition.
"""

from protos.gateway.v1.sessions_pb2 import AttributeChange, SessionFact
from protos.registry.v1.devices_pb2 import Device, DeviceFact
from services.domain.meta import RecordStamp
from services.domain.topics import DEVICE_COMMANDS, SESSIONS
from services.registry.store import ChangeTable
from services.runtime.log.port import Record
from services.runtime.projection.decider import Fact


class AttributeChanges:
    """The changes of attributes that the log may lack, folded from `devices` and `sessions` in any order."""

    def __init__(self, changes: ChangeTable) -> None:
        self._changes = changes
        self._stamp = RecordStamp("registry")
        self._partitions = changes.partitions()

    def apply_device(self, record: Record, fact: DeviceFact) -> None:
        """Note the change that a device record of the log has made, unless `sessions` has it; own ones are written."""
        cause, revision = fact.meta.cause, fact.device.attributes_revision
        is_change = revision and cause.topic == DEVICE_COMMANDS.name and cause.offset + 1 == revision
        if record.offset < 0 or not is_change:
            return
        change = _change(fact.device, fact.meta.time_ms)
        if self._changes.note(record.partition, revision, change):
            self._partitions.add(record.partition)

    def apply_change(self, partition: int, change: AttributeChange) -> None:
        """Note that `sessions` has the change, and so all earlier ones."""
        self._changes.seen(partition, change.revision)
        self._partitions.discard(partition)

    def unwritten(self, partition: int | None = None) -> list[Fact]:
        """Return the facts of the changes that the log may lack, of all partitions or of one; each once a process."""
        facts = []
        for number in sorted(self._partitions if partition is None else self._partitions & {partition}):
            self._partitions.discard(number)
            for change in self._changes.unseen(number):
                fact = SessionFact(attributes_changed=change)
                self._stamp.complete(fact.meta, change.time_ms)
                facts.append(Fact(SESSIONS, number, _KEY, fact))
        return facts


_KEY = b"registry"


def change_fact(device: Device, time_ms: int) -> Fact:
    """Return the fact that the device has the attributes of its record from now on."""
    return Fact(SESSIONS, device.partition, _KEY, SessionFact(attributes_changed=_change(device, time_ms)))


def _change(device: Device, time_ms: int) -> AttributeChange:
    return AttributeChange(
        appkey=device.appkey,
        number=device.number,
        revision=device.attributes_revision,
        time_ms=time_ms,
        attributes=device.attributes,
    )
