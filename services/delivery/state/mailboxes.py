"""The pushes to listed devices that wait for each of them."""

from collections.abc import Iterable, Sequence

Place = tuple[str, int]
"""An app's partition."""


class Mailboxes:
    """Message ids (a push's first) by device, oldest first; a device with nothing in it costs nothing."""

    def __init__(self) -> None:
        self._boxes: dict[Place, dict[int, list[int]]] = {}

    def put(self, place: Place, numbers: Iterable[int], msgid: int) -> None:
        boxes = self._boxes.setdefault(place, {})
        for number in numbers:
            boxes.setdefault(number, []).append(msgid)

    def take_out(self, place: Place, numbers: Iterable[int], msgid: int) -> None:
        """Where it is not there, nothing changes."""
        boxes = self._boxes[place]
        for number in numbers:
            box = boxes.get(number, [])
            if msgid in box:
                box.remove(msgid)
                if not box:
                    del boxes[number]

    def of(self, place: Place, number: int) -> Sequence[int]:
        return self._boxes.get(place, {}).get(number, ())
