"""Planted bugs of hand-overs to channels such as Web Push."""

from collections.abc import Sequence

from tests.simulation.planted.bug import PlantedBug, planted_bug

_HAND_OVERS = "services.delivery.handing_over:HandOverService"

HAND_OVER_BUGS: Sequence[PlantedBug] = (
    planted_bug(
        "requested-before-its-claim",
        "a request leaves for the channel before the log has its claim",
        "hand-overs",
        (
            f"{_HAND_OVERS}.step",
            "    if claims or returned:\n        await self._recorder.wait_recorded()\n"
            "        reached(Point.RETURN_RECORDED if returned else Point.CLAIM_RECORDED)\n"
            "    for claim in claims:\n        await self._send(claim, is_uncertain=False)\n",
            "    for claim in claims:\n        await self._send(claim, is_uncertain=False)\n"
            "    if claims or returned:\n        await self._recorder.wait_recorded()\n"
            "        reached(Point.RETURN_RECORDED if returned else Point.CLAIM_RECORDED)\n",
        ),
        (
            f"{_HAND_OVERS}.may_request",
            "self._state.hand_overs.is_claimed(push.msgid, partition, msgid, number, channel)",
            "True",
        ),
    ),
    planted_bug(
        "claimed-and-sent",
        "a device that connects gets what a channel has claimed",
        "hand-overs",
        (
            "services.delivery.channels.sockets.fanout:Fanout._backlog",
            "if device.number in self._hand_overs.withheld(push, device.partition, msgid):",
            "if False:",
        ),
    ),
    planted_bug(
        "claims-forgotten",
        "a process that takes over does not ask again for what a former one had claimed",
        "hand-overs",
        (f"{_HAND_OVERS}.begin", "for claim in found:", "for claim in found[:0]:"),
    ),
    planted_bug(
        "recalled-while-unknown",
        "a device that connects gets what had no answer and what is on its way",
        "hand-overs",
        (f"{_HAND_OVERS}._recall", "found.standing is not _Standing.WAITS", "False"),
    ),
    planted_bug(
        "request-not-noted",
        "a request that leaves is not noted, so its message is recalled while the channel may be taking it",
        "hand-overs",
        (f"{_HAND_OVERS}.begin_request", "found.standing = _Standing.REQUESTED", "pass"),
    ),
    planted_bug(
        "handed-over-while-connected",
        "a message is handed over although its device is connected",
        "hand-overs",
        ("services.delivery.due_hand_overs:DueHandOvers._absent_of", "if number not in connections:", "if True:"),
    ),
    planted_bug(
        "taken-and-returned",
        "a message that the channel has taken goes back to the own connection",
        "hand-overs",
        ("services.delivery.handing_over:last_outcome", "return _HANDED_OVER, reason", "return _RETURNED, reason"),
    ),
    planted_bug(
        "claims-not-in-snapshots",
        "a snapshot lacks the claims, and a process that starts from it does not know them",
        "hand-overs",
        (
            "services.delivery.state.serialization:_then_started",
            "for hand_overs in state.hand_overs.dump():",
            "for hand_overs in ():",
        ),
    ),
    planted_bug(
        "postponed-for-ever",
        "a message that a channel has put off is not offered to it again",
        "hand-overs",
        (
            "services.delivery.channels.service_channel:AppSender._retry",
            "    self._schedule.postpone(message, due_ms)\n",
            "    message.history.unknown or self._schedule.postpone(message, due_ms)\n",
        ),
    ),
    planted_bug(
        "handed-over-and-pending",
        "a message that was handed over stays pending for the own connection",
        "hand-overs",
        (
            "services.delivery.state.devices:final_outcomes",
            "chosen = (_IS_FINAL_WITH_SENT if is_sent_final else _IS_FINAL)[kinds]",
            "chosen = (_IS_FINAL_WITH_SENT if is_sent_final else _IS_FINAL)[kinds] & (kinds != 11)",
        ),
    ),
)
"""The bugs that only worlds with hand-overs can have."""
