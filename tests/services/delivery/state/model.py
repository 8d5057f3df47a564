"""A simple model of delivery's state, against which the real one is compared."""

from dataclasses import dataclass, field

from testkit.delivery.records import NumberedDevice

IdsByDevice = dict[NumberedDevice, list[int]]


@dataclass
class PushModel:
    """A push; `targets` holds its message ids by device, over all partitions.

    `active`: partitions that have started and not ended; `ended`: those that were cancelled or finished with devices
    left, whose late acknowledgements count; `withdrawn`: partitions that were cancelled or failed before they started;
    `concluded`: (device, message id) with a final outcome; `late`: those that were dropped because the device changed
    its alias, and whose acknowledgement still counts; there are none where nothing `is_acknowledged`.
    """

    offset: int
    msgid: int
    appkey: str
    targets: IdsByDevice
    partitions: set[int]
    active: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    started: set[int] = field(default_factory=set)
    withdrawn: set[int] = field(default_factory=set)
    concluded: set[tuple[NumberedDevice, int]] = field(default_factory=set)
    late: set[tuple[NumberedDevice, int]] = field(default_factory=set)
    is_acknowledged: bool = True
    cancelled: bool = False

    @property
    def is_forgotten(self) -> bool:
        return not self.is_in_progress and not self.ended

    @property
    def is_in_progress(self) -> bool:
        return bool(self.partitions - self.started - self.withdrawn) or bool(self.active)

    def start(self, partition: int) -> None:
        if partition in self.partitions - self.started - self.withdrawn:
            self.started.add(partition)
            self.active.add(partition)
            self._forget_if_concluded(partition)

    def conclude(self, device: NumberedDevice, msgid: int) -> None:
        if device.partition in self.active | self.ended and msgid in self.targets.get(device, ()):
            self.late.discard((device, msgid))
            self.concluded.add((device, msgid))
            self._forget_if_concluded(device.partition)

    def change_alias(self, device: NumberedDevice, msgid: int) -> None:
        """Drop the message because the device changed its alias."""
        if not self.is_acknowledged:
            self.conclude(device, msgid)
        elif msgid in self.pending_or_late(device):
            self.late.add((device, msgid))

    def withdraw(self, partition: int) -> None:
        if partition in self.partitions - self.started:
            self.withdrawn.add(partition)

    def end(self, partition: int) -> None:
        if partition in self.active:
            self.active.discard(partition)
            self.ended.add(partition)

    def _forget_if_concluded(self, partition: int) -> None:
        targets = {
            (device, msgid) for device, ids in self.targets.items() if device.partition == partition for msgid in ids
        }
        if targets <= self.concluded:
            self.active.discard(partition)
            self.ended.discard(partition)

    def pending(self, device: NumberedDevice) -> list[int]:
        if device.partition not in self.active or self.cancelled:
            return []
        return [msgid for msgid in self.pending_or_late(device) if (device, msgid) not in self.late]

    def pending_or_late(self, device: NumberedDevice) -> list[int]:
        """Return the messages whose acknowledgement by the device counts."""
        if device.partition not in self.active | self.ended:
            return []
        return sorted(msgid for msgid in self.targets.get(device, ()) if (device, msgid) not in self.concluded)


class DeliveryModel:
    """All pushes by msgid, forgotten ones too."""

    def __init__(self) -> None:
        self.pushes: dict[int, PushModel] = {}

    def pending(self, appkey: str, device: NumberedDevice) -> list[int]:
        pushes = sorted(self.pushes.values(), key=lambda push: push.offset)
        return [msgid for push in pushes if push.appkey == appkey for msgid in push.pending(device)]
