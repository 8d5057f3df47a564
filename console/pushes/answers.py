"""Pushes, drafts and tasks in answers."""

from typing import Annotated, Any, Literal

import msgspec

from console.apps.answers import TimeMs
from console.audit.answers import Behind, ByChannel, Next, PushAudit, StateCount
from edge.core.parsing.fields import Count, described
from protos.analytics.v1.analytics_pb2 import PushSpeedResponse

_Title = Annotated[str, described("The title, if it has one.")]
_Text = Annotated[str, described("The content.")]


class PushSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A broadcast or multicast with its counts. Each count includes devices with a later outcome."""

    appkey: Annotated[str, described("The app.")]
    msgid: Annotated[int, described("The message id.")]
    title: _Title
    text: Annotated[str, described("The beginning of the content.")]
    sent_ms: TimeMs
    target: Annotated[Count, described("Devices of the audience.")]
    sent: Annotated[Count, described("Devices to which it was sent.")]
    received: Annotated[Count, described("Devices that received it.")]
    shown: Annotated[Count, described("Devices that showed it.")]
    clicked: Annotated[Count, described("Devices on which it was clicked.")]
    failed: Annotated[Count, described("Devices for which it failed or was dropped.")]
    expired: Annotated[Count, described("Devices for which it expired.")]
    cancelled: Annotated[Count, described("Devices for which it was cancelled.")]
    channels: ByChannel = []


class PushList(msgspec.Struct, frozen=True):
    """A page of pushes, the newest first."""

    pushes: Annotated[list[PushSummary], described("The pushes.")]
    next: Next
    records_behind: Behind


class Step(msgspec.Struct, frozen=True):
    """A step of the funnel."""

    name: Annotated[str, described("accepted, sent, received, shown or clicked.")]
    devices: Annotated[Count, described("Devices that came so far.")]


class Push(PushAudit, frozen=True, kw_only=True):
    """A push: what happened to it, and its funnel."""

    title: _Title
    text: _Text
    funnel: Annotated[list[Step], described("From accepted to clicked.")]
    may_be_cancelled: Annotated[bool, described("Whether a cancel can still keep devices from getting it.")]


class SpeedLine(msgspec.Struct, frozen=True, kw_only=True):
    """When devices came to a step; a later step implies the earlier ones. Times are since the acceptance."""

    event: Annotated[str, described("sent, received, shown or clicked.")]
    devices: Annotated[Count, described("Devices that came so far, whenever it was.")]
    half_ms: Annotated[Count, described("Within this time half of these devices had it.")]
    p90_ms: Annotated[Count, described("Within this time nine in ten of them had it.")]
    p99_ms: Annotated[Count, described("Within this time 99 in a hundred of them had it.")]
    all_ms: Annotated[Count, described("Within this time all of them had it.")]
    steps: Annotated[list[int], described("Devices that had it in each step.")]


class PushSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """How fast a push was."""

    begins_ms: TimeMs
    within_ms: Annotated[Count, described("What the steps cover, from `begins_ms` on.")]
    step_ms: Annotated[Count, described("The length of a step.")]
    lines: Annotated[list[SpeedLine], described("From sent to clicked, those that happened.")]
    one_in: Annotated[int, described("Above 1, the numbers are estimates from a sample: one device in `one_in`.")]
    records_behind: Behind


class ValueStates(msgspec.Struct, frozen=True):
    """The devices of an audience that had one value of the category when the push started."""

    info: Annotated[str, described("The value; empty for the devices that reported none.")]
    states: Annotated[list[StateCount], described("Each of these devices has one state.")]


class PushStates(msgspec.Struct, frozen=True):
    """The devices of a broadcast or multicast by a category, each by state and reason."""

    values: Annotated[list[ValueStates], described("By value; none for a push to a list of devices.")]
    records_behind: Behind


class PushSent(msgspec.Struct, frozen=True):
    """The result of sending a push."""

    outcome: Annotated[
        Literal["accepted", "scheduled", "draft"],
        described("It is sent, it is a timed task, or it waits as a draft for the approval of a second person."),
    ]
    msgids: Annotated[dict[str, int], described("The message id by appkey, or empty for a draft.")]
    task_key: Annotated[str, described("The key of its timed task, or empty.")]
    team_id: Annotated[str, described("The team of its draft, or empty.")]
    draft_id: Annotated[str, described("The id of its draft, or empty.")]
    devices: Annotated[Count, described("Devices that it would go to now.")]


class PushCancelled(msgspec.Struct, frozen=True):
    """A push that no device receives any more."""

    appkey: Annotated[str, described("The app.")]
    msgid: Annotated[int, described("The message id.")]
    cancelled: Annotated[Literal[True], described("Always true.")] = True


class AudienceSize(msgspec.Struct, frozen=True):
    """The audience of the push of one app now."""

    appkey: Annotated[str, described("The app.")]
    devices: Annotated[Count, described("Its devices.")]
    unknown: Annotated[list[str], described("Tokens and aliases that no device has.")]
    app_devices: Annotated[Count, described("All devices of the app.")]
    channels: Annotated[
        dict[str, Count] | None,
        described("Of its devices, those with an address on each channel; null for a list of tokens or aliases."),
    ]


class Estimate(msgspec.Struct, frozen=True):
    """What a push would do. Nothing was sent."""

    devices: Annotated[Count, described("Devices that it would go to now.")]
    audiences: Annotated[list[AudienceSize], described("The same by app.")]
    is_broadcast: Annotated[bool, described("Whether it goes to all devices of an app.")]
    needs_approval: Annotated[bool, described("Whether it would become a draft.")]


class AudienceValue(msgspec.Struct, frozen=True):
    """A value that an audience can name."""

    value: Annotated[str, described("The value; a numeric tag in digits.")]
    brand: Annotated[str, described("The brand of a model; empty for other fields.")]
    devices: Annotated[Count, described("Devices that have it now.")]


class AudienceValueList(msgspec.Struct, frozen=True):
    """The values of a field that most devices of an app have, those that more have first."""

    values: Annotated[list[AudienceValue], described("The values.")]
    has_more: Annotated[bool, described("Whether there are others: ask for some of their words.")]
    devices: Annotated[Count, described("All devices of the app.")]


class SavedAudience(msgspec.Struct, frozen=True):
    """An audience that an app keeps under a name."""

    name: Annotated[str, described("Its name.")]
    send_to: Annotated[dict[str, Any], described("`sendTo` of a push with this audience, without `appkey`.")]
    owner: Annotated[str, described("Who has saved it last: user/ID or token/ID.")]
    created_ms: TimeMs
    changed_ms: TimeMs


class SavedAudienceList(msgspec.Struct, frozen=True):
    """The saved audiences of an app, by name."""

    audiences: Annotated[list[SavedAudience], described("The audiences.")]


class AudienceRemoved(msgspec.Struct, frozen=True):
    """A saved audience that was removed."""

    name: Annotated[str, described("Its name.")]
    removed: Annotated[Literal[True], described("Always true.")] = True


class DraftSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A push that waits, or has waited, for an approval."""

    draft_id: Annotated[str, described("The draft.")]
    team_id: Annotated[str, described("The team.")]
    title: _Title
    text: Annotated[str, described("The beginning of the content.")]
    status: Annotated[str, described("waiting, approved, rejected, withdrawn, sent or expired.")]
    is_broadcast: Annotated[bool, described("Whether it goes to all devices of an app.")]
    estimated_devices: Annotated[Count, described("Devices that it would have gone to when it was written.")]
    authors: Annotated[list[str], described("Who wrote it, as user/ID or token/ID.")]
    created_ms: TimeMs
    expires_ms: TimeMs
    decided_by: Annotated[str, described("Who approved, rejected or withdrew it, or empty.")]
    decided_ms: TimeMs
    reason: Annotated[str, described("The reason of a rejection.")]


class Draft(DraftSummary, frozen=True, kw_only=True):
    """A draft with its content."""

    request_json: Annotated[str, described("The v2 request.")]
    msgids: Annotated[dict[str, int], described("The message ids that it will have, by appkey.")]


class DraftList(msgspec.Struct, frozen=True):
    """A page of drafts, the newest first."""

    drafts: Annotated[list[DraftSummary], described("The drafts.")]
    next: Next


class TaskPush(msgspec.Struct, frozen=True):
    """What a task sends to one app."""

    appkey: Annotated[str, described("The app.")]
    msgid: Annotated[int, described("The message id.")]
    title: _Title
    text: _Text


class Task(msgspec.Struct, frozen=True):
    """A timed push."""

    task_key: Annotated[str, described("The task.")]
    status: Annotated[str, described("unsent, sent, cancelled, expired or failed.")]
    created_ms: TimeMs
    due_ms: TimeMs
    pushes: Annotated[list[TaskPush], described("Its pushes to apps of the team.")]
    may_cancel: Annotated[bool, described("Whether the API token may cancel it now.")]


class TaskList(msgspec.Struct, frozen=True):
    """A page of tasks: those that wait, the next one due first, then the others, the newest first."""

    tasks: Annotated[list[Task], described("The tasks.")]
    next: Next


class TaskCancelled(msgspec.Struct, frozen=True):
    """A task that sends nothing any more."""

    task_key: Annotated[str, described("The task.")]
    cancelled: Annotated[Literal[True], described("Always true.")] = True


def speed_answer(speed: PushSpeedResponse) -> PushSpeed:
    """Return the speed of a push as answers show it."""
    lines = [
        SpeedLine(
            event=line.event,
            devices=line.devices,
            half_ms=line.half_ms,
            p90_ms=line.p90_ms,
            p99_ms=line.p99_ms,
            all_ms=line.all_ms,
            steps=list(line.steps),
        )
        for line in speed.lines
    ]
    return PushSpeed(
        begins_ms=speed.begins_ms,
        within_ms=speed.within_ms,
        step_ms=speed.step_ms,
        lines=lines,
        one_in=speed.one_in or 1,
        records_behind=speed.records_behind,
    )
