"""Backlogs: the active pushes by device. Pushes are named by their first message id."""

from collections.abc import Iterable, Sequence

from services.delivery.state.addresses import AppPartition, DeviceAddress
from services.delivery.state.audience_parts import AudiencePart, ListedAudience
from services.delivery.state.started_pushes import PackedPushes


class Backlogs:
    """Unicasts are kept in each device's mailbox, oldest first; broadcasts once for each app and partition.

    An empty mailbox takes no memory.
    """

    def __init__(self) -> None:
        self._mailboxes: dict[AppPartition, dict[int, list[int]]] = {}
        self._broadcasts: dict[AppPartition, set[int]] = {}

    def add(self, app_partition: AppPartition, msgid: int, part: AudiencePart) -> None:
        """Add a push that has started for this audience."""
        if not isinstance(part, ListedAudience):
            self._broadcasts.setdefault(app_partition, set()).add(msgid)
            return
        mailboxes = self._mailboxes.setdefault(app_partition, {})
        for number in part.targets:
            mailboxes.setdefault(number, []).append(msgid)

    def add_packed(self, pushes: PackedPushes) -> None:
        """Add pushes that a snapshot restores."""
        places = zip(pushes.apps, pushes.partitions, pushes.numbers, pushes.msgids, strict=True)
        for app, partition, number, msgid in places:
            mailboxes = self._mailboxes.setdefault((pushes.appkeys[app], partition), {})
            mailboxes.setdefault(number, []).append(msgid)

    def remove(self, app_partition: AppPartition, msgid: int, part: AudiencePart) -> None:
        """Remove a push that has ended or has a final outcome on all devices."""
        if isinstance(part, ListedAudience):
            self.remove_unicast(app_partition, msgid, part.targets)
        else:
            self._broadcasts[app_partition].discard(msgid)

    def remove_unicast(self, app_partition: AppPartition, msgid: int, numbers: Iterable[int]) -> None:
        """Remove a push from the mailboxes of these devices, where it is in them."""
        mailboxes = self._mailboxes[app_partition]
        for number in numbers:
            mailbox = mailboxes.get(number, [])
            if msgid in mailbox:
                mailbox.remove(msgid)
                if not mailbox:
                    del mailboxes[number]

    def mailbox(self, device: DeviceAddress) -> Sequence[int]:
        """Return the unicasts that are pending for the device, oldest first."""
        return self._mailboxes.get(device.app_partition, {}).get(device.number, ())

    def pushes(self, device: DeviceAddress) -> list[int]:
        """Return the pushes that may be pending for the device, in no particular order."""
        return [*self.mailbox(device), *self._broadcasts.get(device.app_partition, ())]
