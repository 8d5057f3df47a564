"""One sentence about one push on one device, made of the audit's answer."""

import re
from collections.abc import Callable
from typing import NamedTuple

from protos.analytics.v1.analytics_pb2 import PushOnDevice, TimelineEntry

GOT = ("clicked", "shown", "received")
ENDED = ("dropped", "failed", "cancelled", "expired")
_PUSH_ENDED = ("push failed", "push cancelled", "finished")


class Explanation(NamedTuple):
    """The sentence, and how it is meant: `good` the device got the push, `bad` it will not, `warn` it may still."""

    sentence: str
    kind: str


def explain(
    device: PushOnDevice,
    gettext: Callable[[str], str],
    moment: Callable[[int], str],
    detail: Callable[[str], str],
) -> Explanation:
    """Return why the device got the push or not. `moment` writes a time for the reader, `detail` a reason."""
    if not device.in_audience:
        return Explanation(_excluded(device, gettext, detail), "bad")
    events = {entry.event: entry for entry in device.timeline}
    for event in GOT:
        if event in events:
            then_ms = events[event].first_ms
            # The acknowledgement may come after the report of what a person did with the notification.
            received_ms = min(events.get("received", events[event]).first_ms, then_ms)
            return Explanation(_got(event, gettext, moment(received_ms), moment(then_ms)), "good")
    for event in (*ENDED, *_PUSH_ENDED):
        if event in events:
            return Explanation(_ended(events[event], gettext, moment, detail), "bad")
    if "sent" in events:
        words = gettext(
            "Sent at %(time)s, and not acknowledged: the connection was lost before, or the device does not answer."
        )
        return Explanation(words % {"time": moment(events["sent"].last_ms)}, "warn")
    words = gettext("It waits: the device has been in the audience since %(time)s, and gets it when it is connected.")
    return Explanation(words % {"time": moment(device.timeline[0].first_ms) if device.timeline else "–"}, "warn")


def _excluded(device: PushOnDevice, gettext: Callable[[str], str], detail: Callable[[str], str]) -> str:
    failed = [clause for clause in device.clauses if not clause.holds]
    if not failed:
        return gettext("Not in the audience: %(reason)s.") % {
            "reason": detail(re.sub("^not in the audience[;,] ", "", device.verdict))
        }
    words = gettext("Not in the audience: the push was for %(clause)s, and the device had %(found)s.")
    return " ".join(words % {"clause": detail(clause.text), "found": detail(clause.found)} for clause in failed)


def _got(event: str, gettext: Callable[[str], str], received: str, then: str) -> str:
    match event:
        case "clicked":
            words = gettext("It got it: received at %(received)s, clicked at %(then)s.")
        case "shown":
            words = gettext("It got it: received at %(received)s, shown at %(then)s.")
        case _:
            words = gettext("It got it: received at %(received)s; the device has not reported that it was shown.")
    return words % {"received": received, "then": then}


def _ended(
    entry: TimelineEntry,
    gettext: Callable[[str], str],
    moment: Callable[[int], str],
    detail: Callable[[str], str],
) -> str:
    reason = detail(reason_of(entry))
    match entry.event:
        case "dropped":
            words = gettext("Dropped at %(time)s: %(reason)s.")
        case "failed" | "push failed":
            words = gettext("Failed at %(time)s: %(reason)s.")
        case "cancelled" | "push cancelled":
            words = gettext("The push was cancelled at %(time)s, before the device had received it.")
        case _:
            words = gettext("It expired at %(time)s, before the device had received it.")
    return words % {"time": moment(entry.first_ms), "reason": reason or gettext("no reason is recorded")}


def reason_of(entry: TimelineEntry) -> str:
    """Return the reason in the detail of an outcome, which begins with the message id."""
    head, _, rest = entry.detail.partition(", ")
    return rest if head.startswith(("message ", "in the device's partition")) else entry.detail
