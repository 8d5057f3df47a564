"""One sentence about one push on one device, made of the audit's answer."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from console.pushes.words import unsent_task_sentence
from console.shell.languages import Language
from protos.analytics.v1.analytics_pb2 import Exclusion, PushOnDevice, TimelineEntry
from protos.analytics.v1.analytics_pb2 import ExclusionReason as Reason
from protos.registry.v1.apps_pb2 import CHANNEL_UNSPECIFIED, Pause
from protos.registry.v1.devices_pb2 import Device
from protos.scheduling.v1.scheduling_pb2 import TASK_STATUS_UNSENT, Task
from services.domain.addresses import CHANNELS
from services.domain.channel_credentials.forms import FORMS
from services.domain.recorded_reasons import (
    AcceptanceUnknown,
    ChannelAcceptanceUnknown,
    RefusedUntilExpiry,
    parsed_reason,
)

GOT = ("clicked", "shown", "received")
ENDED = ("dropped", "failed", "cancelled", "expired")
_PUSH_ENDED = ("push failed", "push cancelled", "finished")


class Explanation(NamedTuple):
    """The sentence, and how it is meant: `good` the device got the push, `bad` it will not, `warn` it may still."""

    sentence: str
    kind: str


class Words(NamedTuple):
    """The reader's language, and a function that writes times in the reader's zone."""

    language: Language
    moment: Callable[[int], str]

    def gettext(self, text: str) -> str:
        return self.language.gettext(text)

    def reason(self, recorded: str) -> str:
        """Return a recorded reason in the reader's language."""
        return self.language.reason(recorded) or self.gettext("no reason is recorded")


def explain(
    device: PushOnDevice,
    words: Words,
    *,
    is_ios: bool = False,
    pause: Pause | None = None,
    task: Task | None = None,
    record: Device | None = None,
) -> Explanation:
    """Return why the device got the push or not.

    `pause`: that of the app, or of all apps, that holds now. `task`: the timed task that has not sent the push.
    `record`: the device's record, which says if it was removed.
    """
    if task is not None and device.exclusion.reason == Reason.EXCLUSION_REASON_PUSH_NOT_STARTED:
        kind = "warn" if task.status == TASK_STATUS_UNSENT else "bad"
        return Explanation(unsent_task_sentence(task, words.gettext, words.moment), kind)
    if not device.in_audience:
        return Explanation(_excluded(device, words), "bad")
    events = {entry.event: entry for entry in device.timeline}
    for event in GOT:
        if event in events:
            then_ms = events[event].first_ms
            # The acknowledgement may come after the report of what a person did with the notification.
            received_ms = min(events.get("received", events[event]).first_ms, then_ms)
            return Explanation(_got(event, words, received_ms, then_ms), "good")
    if is_ios and "sent" in events:
        return Explanation(_accepted_by_apple(events["sent"], words), "good")
    if "handed_over" in events:
        return Explanation(_handed_over(events["handed_over"], words), "good")
    for event in (*ENDED, *_PUSH_ENDED):
        if event in events:
            return Explanation(" ".join([_ended(events[event], words), *_by_simulator(events[event], words)]), "bad")
    if record is not None and record.removed_ms:
        return Explanation(_removed(record, words), "bad")
    return Explanation(_waits(device, events, words, pause), "warn")


def _removed(record: Device, words: Words) -> str:
    sentence = words.gettext("The device was removed at %(time)s (%(reason)s), so it does not get the push any more.")
    return sentence % {"time": words.moment(record.removed_ms), "reason": words.reason(record.removed_reason)}


def _accepted_by_apple(sent: TimelineEntry, words: Words) -> str:
    if sent.simulated:
        return _accepted_by_simulator(sent, words)
    sentence = words.gettext(
        "Apple accepted the push for the device at %(time)s. The device has not reported that it arrived."
    )
    return sentence % {"time": words.moment(sent.last_ms)}


def _handed_over(entry: TimelineEntry, words: Words) -> str:
    _ = words.gettext
    if entry.simulated:
        return _accepted_by_simulator(entry, words)
    form = FORMS.get(CHANNELS.get(entry.channel, CHANNEL_UNSPECIFIED))
    if form is not None and form.receipts is None:
        sentence = _(
            "Handed over at %(time)s to %(service)s. No receipt: this service sends none, and the app has not reported"
            " the message."
        )
    elif entry.channel:
        sentence = _(
            "Handed over at %(time)s to %(service)s. No receipt yet, and the app has not reported the message."
        )
    else:
        sentence = _(
            "Handed over at %(time)s to the push service that reaches the device without a connection. The device has"
            " not acknowledged it."
        )
    return sentence % {"time": words.moment(entry.last_ms), "service": words.language.service(entry.channel)}


def _accepted_by_simulator(entry: TimelineEntry, words: Words) -> str:
    sentence = words.gettext(
        "The simulator of %(service)s accepted the push for the device at %(time)s. Nothing has left this installation."
    )
    return sentence % {"time": words.moment(entry.last_ms), "service": words.language.service(entry.channel)}


def _waits(device: PushOnDevice, events: Mapping[str, TimelineEntry], words: Words, pause: Pause | None) -> str:
    _ = words.gettext
    if "claimed" in events and events["claimed"].last_ms >= events.get("returned", events["claimed"]).last_ms:
        sentence = _("The push service that reaches the device was asked at %(time)s, and has not answered yet.")
        asked = sentence % {"time": words.moment(events["claimed"].last_ms)}
        return " ".join([asked, *_by_simulator(events["claimed"], words)])
    if "sent" in events:
        sentence = _(
            "Sent at %(time)s, but not acknowledged: the connection was lost first, or the device does not answer."
        )
        return sentence % {"time": words.moment(events["sent"].last_ms)}
    if pause is not None:
        sentence = _("Waiting: sending has been paused since %(time)s (%(reason)s).")
        reason = pause.reason or _("no reason is recorded")
        return sentence % {"time": words.moment(pause.since_ms), "reason": reason}
    sentence = _("Waiting: the device has been in the audience since %(time)s, and gets the push when it connects.")
    return sentence % {"time": words.moment(device.timeline[0].first_ms) if device.timeline else "–"}


def _excluded(device: PushOnDevice, words: Words) -> str:
    _, conditions = words.gettext, words.language.conditions
    failed = [clause for clause in device.clauses if not clause.holds]
    if not failed:
        return _("Not in the audience: %(reason)s.") % {"reason": _reason(device.exclusion, words)}
    sentence = _("Not in the audience: the push was for %(clause)s, and the device had %(found)s.")
    return " ".join(
        sentence % {"clause": conditions.condition(clause), "found": conditions.found(clause)} for clause in failed
    )


def _reason(exclusion: Exclusion, words: Words) -> str:
    texts = _exclusion_texts(words.language, exclusion.count)
    text = texts.get(exclusion.reason) or words.gettext("no reason is recorded")
    return text % {
        "partition": exclusion.partition,
        "count": exclusion.count,
        "time": words.moment(exclusion.time_ms),
        "reason": words.reason(exclusion.recorded_reason),
    }


def _exclusion_texts(language: Language, count: int) -> Mapping[int, str]:
    """Return the texts of all reasons with this count; not that of clauses, each of which has a sentence."""
    _, ngettext = language.gettext, language.ngettext
    return {
        Reason.EXCLUSION_REASON_NOT_REGISTERED: _("no device with this token has been registered"),
        Reason.EXCLUSION_REASON_PUSH_FAILED: _(
            "the push failed in the device's partition (%(partition)s) before it started: %(reason)s"
        ),
        Reason.EXCLUSION_REASON_PUSH_CANCELLED: _(
            "the push was cancelled before it started in the device's partition (%(partition)s)"
        ),
        Reason.EXCLUSION_REASON_PUSH_NOT_STARTED: _(
            "the push has not started yet in the device's partition (%(partition)s)"
        ),
        Reason.EXCLUSION_REASON_NOT_LISTED: ngettext(
            "the push has a list of %(count)s target, and the device is not in it",
            "the push has a list of %(count)s targets, and the device is not in it",
            count,
        ),
        Reason.EXCLUSION_REASON_NO_TARGETS: _(
            "no device had an alias or token that the push names when it was requested"
        ),
        Reason.EXCLUSION_REASON_REGISTERED_LATER: _("the device registered at %(time)s, after the push had started"),
        Reason.EXCLUSION_REASON_REMOVED: _("the device was removed at %(time)s, before the push started (%(reason)s)"),
        Reason.EXCLUSION_REASON_RECORD_REPLACED: _(
            "which attributes and tags the device had then is no longer known, because it changed soon after"
        ),
        Reason.EXCLUSION_REASON_RECORD_LACKS_CHANGES: ngettext(
            "the device was changed %(count)s time shortly before the push started; its history shows the requests",
            "the device was changed %(count)s times shortly before the push started; its history shows the requests",
            count,
        ),
        Reason.EXCLUSION_REASON_CHANGED_AT_START: _(
            "the last known state of the device matches, but the device was changed while the push started"
        ),
    }


def _got(event: str, words: Words, received_ms: int, then_ms: int) -> str:
    _ = words.gettext
    match event:
        case "clicked":
            sentence = _("Received at %(received)s, clicked at %(then)s.")
        case "shown":
            sentence = _("Received at %(received)s, shown at %(then)s.")
        case _:
            sentence = words.gettext("Received at %(received)s; the device has not reported that it showed the push.")
    return sentence % {"received": words.moment(received_ms), "then": words.moment(then_ms)}


def _ended(entry: TimelineEntry, words: Words) -> str:
    _ = words.gettext
    match entry.event:
        case "dropped":
            sentence = _("Dropped at %(time)s: %(reason)s.")
        case "failed" | "push failed":
            sentence = _("Failed at %(time)s: %(reason)s.")
        case "cancelled" | "push cancelled":
            sentence = _("Cancelled at %(time)s, before the device had received the push.")
        case _ if entry.reason:
            sentence = _("Expired at %(time)s: %(reason)s.")
        case _:
            sentence = words.gettext("Expired at %(time)s, before the device had received the push.")
    return sentence % {"time": words.moment(entry.first_ms), "reason": words.reason(entry.reason)}


def _by_simulator(entry: TimelineEntry, words: Words) -> list[str]:
    """Return the sentence that a simulator was asked or answered, if one did; reasons of Carillon are no answers."""
    reason = parsed_reason(entry.reason)
    if not entry.simulated:
        return []
    if entry.event == "claimed" or isinstance(reason, AcceptanceUnknown | ChannelAcceptanceUnknown):
        sentence = words.gettext("The simulator of %(service)s was asked.")
    elif reason is None or isinstance(reason, RefusedUntilExpiry):
        sentence = words.gettext("The simulator of %(service)s answered.")
    else:
        return []
    return [sentence % {"service": words.language.service(entry.channel)}]
