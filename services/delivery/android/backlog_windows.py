"""The windows of backlogs: which messages of a device's backlog are in flight, and when the next ones may be sent."""

from collections.abc import Sequence

from services.delivery.android.presence import Presence
from services.delivery.state.addresses import DeviceAddress
from services.delivery.state.delivery_state import DeliveryState
from services.runtime.process.clock import Clock

BACKLOG_WINDOW = 16
"""Backlog messages in flight to a device, at most."""

_LOOKED_AT = 250
"""Devices at which `look_for_ended` looks in one call, at most: it takes some milliseconds."""


class BacklogWindows:
    """The messages in flight to the devices that are being sent their backlogs.

    A message leaves its device's window when the device has acknowledged it. One that the gateway or its stream has
    dropped, because it ended while its app was paused, leaves when `look_for_ended` comes to the device.
    """

    def __init__(self, state: DeliveryState, presence: Presence, clock: Clock) -> None:
        self._state = state
        self._presence = presence
        self._clock = clock
        self._half_empty: dict[DeviceAddress, None] = {}

    def acknowledge(self, device: DeviceAddress, msgid: int) -> None:
        """Note that the device has acknowledged a message."""
        if (in_flight := self._in_flight(device)) is not None:
            in_flight.discard(msgid)
            self._note_half_empty(device, in_flight)

    def look_for_ended(self) -> None:
        """Look at some of the devices, in turns, for messages in flight that have expired, ended or been cancelled."""
        for device, in_flight in self._presence.next_in_flight(_LOOKED_AT):
            in_flight.difference_update([msgid for msgid in in_flight if not self._may_be_acknowledged(msgid)])
            self._note_half_empty(device, in_flight)

    def take_half_empty(self) -> Sequence[DeviceAddress]:
        """Return the devices that may be sent the next messages of their backlogs, each once."""
        found, self._half_empty = self._half_empty, {}
        return [device for device in found if self._in_flight(device) is not None]

    def _note_half_empty(self, device: DeviceAddress, in_flight: set[int]) -> None:
        if len(in_flight) <= BACKLOG_WINDOW // 2:
            self._half_empty[device] = None

    def _in_flight(self, device: DeviceAddress) -> set[int] | None:
        """Return the messages in flight; None: the device is not connected, or no more of its backlog is left."""
        connection = self._presence.connection_of(device)
        return connection.in_flight if connection is not None else None

    def _may_be_acknowledged(self, msgid: int) -> bool:
        push = self._state.push_of(msgid)
        return push is not None and self._state.may_send(push, self._clock.now_ms())
