"""Mistakes in handing messages over, each of which the model has to find: changes of production code."""

from collections.abc import Mapping, Sequence

from tests.simulation.planted.edit import Edit

_SERVICE = "services.delivery.handing_over"
_DUE = "services.delivery.due_hand_overs"
_FANOUT = "services.delivery.channels.sockets.fanout"
_STATE = "services.delivery.state"

FAULTS: Mapping[str, Sequence[Edit]] = {
    "the request leaves before its claim is in the log": [
        Edit(
            f"{_SERVICE}:HandOverService.step",
            "    if claims or returned:\n        await self._recorder.wait_recorded()\n"
            "        reached(Point.RETURN_RECORDED if returned else Point.CLAIM_RECORDED)\n"
            "    for claim in claims:\n        await self._send(claim, is_uncertain=False)\n",
            "    for claim in claims:\n        await self._send(claim, is_uncertain=False)\n"
            "    if claims or returned:\n        await self._recorder.wait_recorded()\n"
            "        reached(Point.RETURN_RECORDED if returned else Point.CLAIM_RECORDED)\n",
        ),
        Edit(
            f"{_SERVICE}:HandOverService.may_request",
            "self._state.hand_overs.is_claimed(push.msgid, partition, msgid, number, channel)",
            "True",
        ),
    ],
    "a claimed message is sent with the device's backlog": [
        Edit(
            f"{_FANOUT}:Fanout._backlog",
            "if device.number in self._hand_overs.withheld(push, device.partition, msgid):",
            "if False:",
        )
    ],
    "a message whose claim is not in the log yet is sent over the own connection": [
        Edit(f"{_DUE}:DueHandOvers._claimed", "return claimed | unwritten if unwritten else claimed", "return claimed")
    ],
    "a refused repetition of an unanswered request counts as a refusal": [
        Edit(f"{_SERVICE}:last_outcome", "case _ if is_uncertain:", "case _ if False:")
    ],
    "a restarted owner takes a refusal as certain": [
        Edit(f"{_SERVICE}:HandOverService.begin", "is_uncertain=True", "is_uncertain=False")
    ],
    "a restarted owner forgets the claims": [
        Edit(f"{_SERVICE}:HandOverService.begin", "for claim in found:", "for claim in found[:0]:")
    ],
    "a snapshot lacks the claims": [
        Edit(
            f"{_STATE}.serialization:_then_started",
            "for hand_overs in state.hand_overs.dump():",
            "for hand_overs in ():",
        )
    ],
    "a second channel is asked while the first has not answered": [
        Edit(f"{_DUE}:DueHandOvers._judge", "pending - self._claimed(push, work.partition, msgid)", "pending")
    ],
    "a third channel is asked": [
        Edit(
            f"{_DUE}:DueHandOvers._choices",
            "numbers - hand_overs.exhausted(push.msgid, partition, msgid)",
            "numbers",
        )
    ],
    "the channel that has returned a message is asked again": [
        Edit(
            f"{_DUE}:DueHandOvers._choices",
            "(left & addressed) - hand_overs.returned(push.msgid, partition, msgid, channel)",
            "left & addressed",
        ),
        Edit(
            f"{_STATE}.hand_overs:HandOvers.claim",
            "numbers - _union(known.claimed) - known.returned.get(channel, NOBODY)",
            "numbers - _union(known.claimed)",
        ),
    ],
    "a request is repeated after the push was cancelled or has expired": [
        Edit(f"{_SERVICE}:HandOverService.may_request", "self._state.may_send(push, self._clock.now_ms())", "True")
    ],
    "a phone that comes back within the grace causes a hand-over": [
        Edit(f"{_DUE}:DueHandOvers._absent_of", "absence is None or (is_urgent and absence.is_certain)", "True")
    ],
    "a phone whose address becomes known after it has left gets a message within the grace": [
        Edit(
            f"{_DUE}:DueHandOvers.left",
            "if not self._channels.of_app(device.appkey):",
            "if not self._is_addressed(device):",
        )
    ],
    "a connected phone's message is handed over": [
        Edit(f"{_DUE}:DueHandOvers._absent_of", "if number not in connections:", "if True:")
    ],
    "messages are handed over before gateways have announced their connections": [
        Edit(f"{_DUE}:DueHandOvers.begin", "self._settled_ms = now_ms + self._grace_ms", "self._settled_ms = now_ms")
    ],
    "an acknowledged message is handed over before the log has the acknowledgement": [
        Edit(
            f"{_DUE}:DueHandOvers._judge",
            "if not self._recorder.has_unwritten_final(work.partition, msgid, n)",
            "if True",
        )
    ],
    "a returned message is not sent to the connected device": [
        Edit(
            f"{_SERVICE}:HandOverService._see_to_returned",
            "self._fanout.send_returned(push, partition, number)",
            "pass",
        )
    ],
    "what a stopped channel was to show first is not sent to connected devices": [
        Edit(f"{_SERVICE}:HandOverService.step", "self._fanout.send_again(push, list(push.active_parts))", "pass")
    ],
    "what the app's former route gave to a channel first is not sent to connected devices": [
        Edit(f"{_DUE}:DueHandOvers._look_at_unseen", "if was_vendor_first or", "if")
    ],
    "a push that names a route gets that of its app": [
        Edit(
            f"{_DUE}:DueHandOvers._route",
            "push.send.channel.route or self._channels.route(push.send.appkey)",
            "self._channels.route(push.send.appkey)",
        )
    ],
    "a channel is asked first although the message is on its way over the own connection": [
        Edit(
            f"{_DUE}:DueHandOvers._unsent",
            "numbers - sent - self._recorder.unwritten_sent(partition, msgid, numbers)",
            "numbers",
        )
    ],
    "a returned message is offered to no other channel": [
        Edit(
            f"{_SERVICE}:HandOverService._see_to_returned",
            "self._due.look_at(push, partition, BitMap([number]))",
            "pass",
        )
    ],
    "a repeated answer is recorded again": [
        Edit(f"{_SERVICE}:HandOverService._conclude", "del of_device[message.key]", "pass"),
        Edit(
            f"{_SERVICE}:HandOverService._conclude",
            "if not is_claimed or self._recorder.has_unwritten_final(partition, msgid, number):",
            "if self._recorder.has_unwritten_final(partition, msgid, number):",
        ),
    ],
    "the window of a channel is never free again": [
        Edit(f"{_SERVICE}:HandOverService._conclude", "self._open_count[push.send.appkey, channel] -= 1", "pass")
    ],
    "work that waits for the window is forgotten": [
        Edit(f"{_DUE}:DueHandOvers._take_up_one", "self._work.append(waiting.popleft())", "waiting.popleft()")
    ],
    "a message handed over stays pending for the own connection": [
        Edit(
            f"{_STATE}.devices:final_outcomes",
            "chosen = (_IS_FINAL_WITH_SENT if is_sent_final else _IS_FINAL)[kinds]",
            "chosen = (_IS_FINAL_WITH_SENT if is_sent_final else _IS_FINAL)[kinds] & (kinds != 11)",
        )
    ],
    "a late answer to one claim counts as that to the next one": [
        Edit("services.delivery.channels:ClaimedMessage.key", "self.msgid, self.claim", "self.msgid, 0")
    ],
    "a message whose request is on its way is recalled": [
        Edit(
            f"{_SERVICE}:HandOverService._recall",
            "found.standing is not _Standing.WAITS",
            "found.standing is _Standing.UNCERTAIN",
        )
    ],
    "a message that the channel may have is recalled": [
        Edit(
            f"{_SERVICE}:HandOverService._recall",
            "found.standing is not _Standing.WAITS",
            "found.standing is _Standing.REQUESTED",
        )
    ],
    "a refusal after an unanswered request makes the message certain to be recalled": [
        Edit(f"{_SERVICE}:HandOverService.answered", "if found.standing is _Standing.REQUESTED:", "if True:")
    ],
    "a request is not noted before it leaves": [
        Edit(f"{_SERVICE}:HandOverService.begin_request", "found.standing = _Standing.REQUESTED", "pass")
    ],
    "a recalled message is sent before the log has its recall": [
        Edit(
            f"{_SERVICE}:HandOverService._conclude",
            "self._returned.append(message)",
            "self._state.hand_overs.recall(push.msgid, partition, msgid, channel, BitMap([number]))\n"
            "    self._fanout.send_returned(push, partition, number)",
        )
    ],
    "the service asks for a message that was recalled": [
        Edit(f"{_SERVICE}:HandOverService.may_request", "self._open_of(message) is not None", "True")
    ],
    "nothing is recalled when a device connects": [
        Edit(
            f"{_SERVICE}:HandOverService.step",
            "for each in list(self._open.get(device, {}).values()):",
            "for each in ():",
        )
    ],
    "nothing is recalled when the refusal comes after the device has connected": [
        Edit(f"{_SERVICE}:HandOverService.answered", "self._recall(found)", "pass")
    ],
    "what is claimed while its device connects is not recalled": [
        Edit(f"{_SERVICE}:HandOverService._send", "elif not self._recall(opened):", "else:")
    ],
    "a channel never claims again what was recalled from it": [
        Edit(f"{_STATE}.delivery_state:DeliveryState._change_channel", "elif is_recalled:", "elif False:")
    ],
    "nothing is recalled when the route of the app is not that of the channel any more": [
        Edit(f"{_SERVICE}:HandOverService.channels_changed", "if was_vendor_first:", "if False:")
    ],
    "a message that its channel is to show first is recalled": [
        Edit(f"{_DUE}:DueHandOvers.is_own_first", "self._route(push) != ROUTE_VENDOR", "True")
    ],
    "the claim of another channel is undone by a recall that is folded again": [
        Edit(
            f"{_STATE}.hand_overs:HandOvers.recall",
            "(claimed := known.claimed.get(channel))",
            "(claimed := known.claimed.get(channel := next(iter(known.claimed), channel)))",
        )
    ],
    "the acknowledgement of a message that a channel shows is refused": [
        Edit("services.delivery.channels.sockets.reports:ReportIntake._acknowledge", "if was_claimed or", "if")
    ],
}
