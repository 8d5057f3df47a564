"""The mailboxes of Android devices: the oldest unicast messages are dropped beyond their cap."""

from collections.abc import Iterable, Sequence

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from services.delivery import decide
from services.delivery.android.presence import Presence
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.state.addresses import DeviceAddress
from services.delivery.state.audience_parts import ListedAudience
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.pushes import StartedPush
from services.domain.recorded_reasons import FixedReason

JustStarted = tuple[StartedPush, Sequence[int]]
"""A push, and the active partitions in which it has just started."""


def drop_overflow(
    state: DeliveryState, presence: Presence, recorder: OutcomeRecorder, started: Iterable[JustStarted], now_ms: int
) -> None:
    """Drop the oldest unicast pushes from the mailboxes that these pushes have filled beyond their cap."""
    devices = {
        DeviceAddress(push.send.appkey, partition, number)
        for push, partitions in started
        for partition in partitions
        if isinstance(part := push.active_parts[partition], ListedAudience)
        for number in part.targets
    }
    for device in devices:
        is_connected = device.number in presence.connections(device.app_partition)
        for msgid in decide.overflow(state, device, is_connected):
            recorder.record_final(
                *(device.partition, device.appkey, msgid, device.number),
                *(OutcomeKind.OUTCOME_KIND_DROPPED, now_ms, FixedReason.MAILBOX_FULL),
            )
