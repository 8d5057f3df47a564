"""Checks of each message on each device: it has one final outcome, and is not sent after its time to live."""

from collections.abc import Iterator, Mapping, Sequence

from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID
from tests.simulation.kernel.faults import Fault
from tests.soak.checks import Observations, Violation
from tests.soak.history import LoggedPush

_CLOCKS_MS = 10_000
"""How much clocks of processes may differ that were not set."""


def concluded_twice(observed: Observations) -> Iterator[Violation]:
    """Check that each message has one final outcome on a device."""
    history = observed.history
    sent = _by_msgid(observed)
    for (msgid, device_number), count in history.concluded.items():
        if count > 1 and msgid in sent and sent[msgid].send.platform == PLATFORM_ANDROID:
            yield Violation("outcomes", f"{device_number} has {count} final outcomes", (msgid,))


def expired_and_sent(observed: Observations, faults: Sequence[Fault]) -> Iterator[Violation]:
    """Check that no message was sent over a connection that was opened after the message's time to live."""
    sent = _by_msgid(observed)
    differ_ms = _CLOCKS_MS + sum(abs(fault.amount) * 1000 for fault in faults if fault.kind == "set_clock")
    for client in observed.clients.values():
        for frame in client.frames:
            if frame.msgid in sent and frame.connected_ms > sent[frame.msgid].expires_ms + differ_ms:
                yield Violation("expired", f"{client.name} got the message after its time to live", (frame.msgid,))


def _by_msgid(observed: Observations) -> Mapping[int, LoggedPush]:
    return {
        sent.send.msgid + place: sent
        for sent in observed.history.sent.values()
        for place in range(max(1, sent.send.id_count))
    }
