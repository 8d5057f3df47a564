"""Mailboxes: the unicast pushes that are pending for each device."""

from collections.abc import Iterable, Sequence

from services.delivery.state.addresses import AppPartition


class Mailboxes:
    """The msgids of pending unicast pushes (each push's first id) by device, oldest first; empty mailboxes take no
    memory."""

    def __init__(self) -> None:
        self._mailboxes: dict[AppPartition, dict[int, list[int]]] = {}

    def add(self, app_partition: AppPartition, numbers: Iterable[int], msgid: int) -> None:
        """Append the push to the mailboxes of these devices."""
        mailboxes = self._mailboxes.setdefault(app_partition, {})
        for number in numbers:
            mailboxes.setdefault(number, []).append(msgid)

    def remove(self, app_partition: AppPartition, numbers: Iterable[int], msgid: int) -> None:
        """Remove the push from the mailboxes of these devices, where it is in them."""
        mailboxes = self._mailboxes[app_partition]
        for number in numbers:
            mailbox = mailboxes.get(number, [])
            if msgid in mailbox:
                mailbox.remove(msgid)
                if not mailbox:
                    del mailboxes[number]

    def of(self, app_partition: AppPartition, number: int) -> Sequence[int]:
        return self._mailboxes.get(app_partition, {}).get(number, ())
