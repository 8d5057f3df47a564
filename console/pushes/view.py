"""Values of a push's page, made of the audit's answer: content, funnel, speed, and who did not receive it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from console.devices.explanation import ENDED
from console.send.composed_pushes import ComposedPush
from console.send.preview import previews
from console.statistics.table import path_of_push
from protos.analytics.v1.analytics_pb2 import (
    AuditPushResponse,
    BroadcastRow,
    PushSpeedResponse,
    PushStatesResponse,
    ValueStates,
)
from protos.push.v1.push_pb2 import Audience
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, PLATFORM_IOS, App

_LATER = {
    "sent": ("sent", "received", "shown", "clicked"),
    "received": ("received", "shown", "clicked"),
    "shown": ("shown", "clicked"),
    "clicked": ("clicked",),
}

RECENT_MS = 10 * 60_000
"""Time after the last event of a push during which its page fetches the numbers again: devices still show and click."""


UNICAST = "unicast"
_CANCELS = ("cancel command", "push cancelled", "finished", "push failed")


class FunnelStep(NamedTuple):
    """One step of the funnel: how many devices came so far."""

    name: str
    devices: int


class Content(NamedTuple):
    """The words of a push, as far as its request has them."""

    title: str
    text: str
    label: str = ""


def questions_behind(answer: AuditPushResponse, msgid: int) -> Mapping[str, str]:
    """Return, by step of the funnel and event of the timeline, the path of the page that divides its number.

    The numbers of a broadcast or multicast are divided by a category, and the devices that did not receive it by their
    reasons. A list has no such statistics: its devices are counted by state, and by the time that they took.
    """
    path = f"/apps/{answer.appkey}/pushes/{msgid}"
    if answer.kind == UNICAST:
        return {**dict.fromkeys(("accepted", *ENDED), f"{path}#states"), **dict.fromkeys(_LATER, f"{path}/speed")}
    divided = dict.fromkeys(("accepted", "audience", *_LATER), path_of_push(answer.appkey, msgid))
    return {**divided, **dict.fromkeys(ENDED, f"{path}/failures")}


def funnel(answer: AuditPushResponse, row: BroadcastRow | None) -> list[FunnelStep]:
    """Return accepted, sent, received, shown, clicked.

    `row`: the statistics of a broadcast or multicast, whose numbers other pages show too; a push to a list has none.
    """
    if row is not None:
        return [FunnelStep("accepted", row.target), *(FunnelStep(name, getattr(row, name)) for name in _LATER)]
    by_state: dict[str, int] = {}
    for count in answer.states:
        by_state[count.state] = by_state.get(count.state, 0) + count.devices
    reached = [FunnelStep(name, sum(by_state.get(state, 0) for state in later)) for name, later in _LATER.items()]
    return [FunnelStep("accepted", answer.audience_count), *reached]


def devices_report(app: App) -> bool:
    """Return whether the app's devices report what they received, showed and clicked; iOS devices do if pushes carry an
    id.
    """
    return app.platform != PLATFORM_IOS or app.apns_reports


def is_moving(answer: AuditPushResponse, app: App, now_ms: int) -> bool:
    """Return whether the numbers may change soon: a device may still get the push, or something happened just now.

    A device that was sent the push reports nothing more, unless `devices_report`.
    """
    is_recent = any(now_ms - entry.last_ms < RECENT_MS for entry in answer.timeline)
    moving = ("pending", "sent") if devices_report(app) else ("pending",)
    return is_recent or any(count.state in moving and count.devices for count in answer.states)


def may_be_cancelled(answer: AuditPushResponse) -> bool:
    """Return whether a cancel can still keep devices from getting the push; a push to a list cannot be cancelled.

    A push that is not sent yet is not cancelled itself: its task is.
    """
    is_over = any(entry.event in _CANCELS for entry in answer.timeline)
    return answer.kind != UNICAST and not is_over and not unsent_task_key(answer)


def unsent_task_key(answer: AuditPushResponse) -> str:
    """Return the key of the timed task that has not sent the push; "" if it was sent, or has no task."""
    entries = {entry.event: entry for entry in answer.timeline}
    if "task scheduled" not in entries or "command" in entries:
        return ""
    return next((detail.task for detail in entries["task scheduled"].details if detail.task), "")


def content(request_json: str) -> Content:
    """Return the words of a request of any interface; the text of a v2 push may differ by platform."""
    try:
        request: Any = msgspec.json.decode(request_json)
    except msgspec.DecodeError:
        return Content("", "")
    style = _object(_object(request).get("msgStyle"))
    title = _object(style.get("android")).get("title") or _object(request).get("title")
    text = _object(style.get("basic")).get("content") or _object(request).get("message")
    label = _object(_object(request).get("option")).get("label")
    return Content(_text(title), _text(text), _text(label))


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    if isinstance(value, dict):
        return " / ".join(dict.fromkeys(_texts(value.values())))
    return value if isinstance(value, str) else ""


def _texts(values: Iterable[object]) -> Iterable[str]:
    return (str(value) for value in values)


# The devices that did not receive a push, as a table: a row for each value of a category, a column for each reason.

_SHOWN = (*ENDED, "unknown")


class Ending(NamedTuple):
    """A state in which devices did not receive a push, and its reason, "" for none."""

    state: str
    reason: str


class ValueRow(NamedTuple):
    """A value of the category ("" for none), the number of its devices in the audience, and of those with each ending,
    in order.
    """

    info: str
    audience: int
    failures: Sequence[int]


class Failures(NamedTuple):
    """The endings, and the values, each with the most devices first."""

    endings: Sequence[Ending]
    rows: Sequence[ValueRow]


def failures(answer: PushStatesResponse) -> Failures:
    """Return the table; without endings every device has received the push or may still do so."""
    totals: dict[Ending, int] = {}
    for value in answer.values:
        for ending, devices in _endings(value).items():
            totals[ending] = totals.get(ending, 0) + devices
    endings = sorted(totals, key=lambda ending: (-totals[ending], ending))
    rows = [_row(value, endings) for value in answer.values]
    return Failures(endings, sorted(rows, key=lambda row: (-sum(row.failures), -row.audience, row.info)))


def _row(value: ValueStates, endings: Sequence[Ending]) -> ValueRow:
    found = _endings(value)
    audience = sum(count.devices for count in value.states)
    return ValueRow(value.info, audience, [found.get(ending, 0) for ending in endings])


def _endings(value: ValueStates) -> dict[Ending, int]:
    return {Ending(count.state, count.reason): count.devices for count in value.states if count.state in _SHOWN}


# The speed of a push as a chart: one line for each kind of outcome, over the time since the push was accepted.

_UNITS_MS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1_000))


class SpeedChart(NamedTuple):
    """`marks`: when each step begins, in `unit`s after the acceptance; `series`: devices in each step, by line."""

    unit: str
    marks: list[float]
    series: list[list[int]]


def speed_chart(speed: PushSpeedResponse) -> SpeedChart:
    unit, length_ms = next((each for each in _UNITS_MS if speed.within_ms >= 3 * each[1]), _UNITS_MS[-1])
    steps = max((len(line.steps) for line in speed.lines), default=0)
    marks = [round(number * speed.step_ms / length_ms, 4) for number in range(steps)]
    return SpeedChart(unit, marks, [list(line.steps) for line in speed.lines])


# Facts in the request of a push beside its content.


class RequestFacts(NamedTuple):
    """The push of one app in a request. `qps` 0: as fast as possible. `click`: what a click does; "" where unknown."""

    audience: Audience
    period_s: int
    qps: int
    click: str


def request_facts(composed: ComposedPush, appkey: str, gettext: Callable[[str], str]) -> RequestFacts | None:
    """Return the facts of the app's push; None if the request sends none to it."""
    push = next((push for push in composed.order.pushes if push.app.appkey == appkey), None)
    if push is None:
        return None
    is_android = push.app.platform == PLATFORM_ANDROID
    clicks = (preview.effect for preview in previews(composed, gettext) if preview.is_android == is_android)
    return RequestFacts(push.audience, push.period_s, push.qps, next(clicks, ""))
