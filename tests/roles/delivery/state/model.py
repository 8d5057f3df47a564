"""Delivery's state in plain words: what each device has still to get."""

from dataclasses import dataclass, field

from testkit.delivery_records import NumberedDevice

IdsAt = dict[NumberedDevice, list[int]]


@dataclass
class PushModel:
    """`targets`: message ids by device, over all partitions; `open`: the partitions that have started and not ended;
    `late`: those that ended with somebody left, who may still say that they have it."""

    order: int
    msgid: int
    appkey: str
    targets: IdsAt
    partitions: set[int]
    open: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)
    started: set[int] = field(default_factory=set)
    done: set[tuple[NumberedDevice, int]] = field(default_factory=set)
    cancelled: bool = False

    @property
    def over(self) -> bool:
        return not self.in_flight and not self.late

    @property
    def in_flight(self) -> bool:
        return self.started != self.partitions or bool(self.open)

    def start(self, partition: int) -> None:
        if partition in self.partitions - self.started:
            self.started.add(partition)
            self.open.add(partition)
            self.close_if_done(partition)

    def settle(self, at: NumberedDevice, msgid: int) -> None:
        if at.partition in self.open | self.late and msgid in self.targets.get(at, ()):
            self.done.add((at, msgid))
            self.close_if_done(at.partition)

    def end(self, partition: int) -> None:
        if partition in self.open:
            self.open.discard(partition)
            self.late.add(partition)

    def close_if_done(self, partition: int) -> None:
        here = {(at, msgid) for at, ids in self.targets.items() if at.partition == partition for msgid in ids}
        if here <= self.done:
            self.open.discard(partition)
            self.late.discard(partition)

    def pending(self, at: NumberedDevice) -> list[int]:
        if at.partition not in self.open or self.cancelled:
            return []
        return sorted(msgid for msgid in self.targets.get(at, ()) if (at, msgid) not in self.done)


class Model:
    """Every push there was."""

    def __init__(self) -> None:
        self.pushes: dict[int, PushModel] = {}

    def pending(self, appkey: str, at: NumberedDevice) -> list[int]:
        pushes = sorted(self.pushes.values(), key=lambda push: push.order)
        return [msgid for push in pushes if push.appkey == appkey for msgid in push.pending(at)]
