"""`carillon push`: pushes of a team, sent and looked at through the console's interface for programs."""

import secrets
from typing import IO

import click

from carillon.commands.audit import channel_cells
from carillon.commands.output import as_json as _as_json
from carillon.commands.output import device_count, print_json, print_table, say, time_text
from carillon.installation.remote import console_client
from console.devices.answers import PushDevices, WhyAnswer
from console.pushes.answers import Estimate, Push, PushCancelled, PushList, PushSent, PushSpeed, PushStates
from console.shell.requests import STATES
from console.statistics.actions import CATEGORIES
from services.domain.statistics_rows import BROADCAST_COUNTS, CHANNEL_COUNTS

_file = click.argument("file", type=click.File("rb"))


@click.group()
def push() -> None:
    """Send, list and cancel pushes with an API token of a team.

    Needs a console: `carillon --url https://HOST --token-file FILE push …`. FILE of a push is a request of /v2/push
    without its sign, `-` for standard input.
    """


@push.command(name="list")
@click.option("--app", "appkey", metavar="APPKEY", help="Only pushes of this app.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="Pushes at most.")
@click.option("--words", help="Only pushes with this in their title or at the beginning of their text.")
@click.option("--cursor", default="", help="The `next` of the page before.")
@_as_json
def list_pushes(appkey: str | None, limit: int, words: str | None, cursor: str, as_json: bool) -> None:
    """List the broadcasts and multicasts of the team of the last 30 days with their counts, the newest first."""
    answer = console_client().get(PushList, "pushes", appkey=appkey, limit=limit, words=words, cursor=cursor)
    if as_json:
        print_json(answer)
        return
    rows = [
        {
            "appkey": row.appkey,
            "msgid": row.msgid,
            "push": row.title or row.text,
            "time": time_text(row.sent_ms),
            **{name: getattr(row, name) for name in BROADCAST_COUNTS},
        }
        for row in answer.pushes
    ]
    print_table(rows, "There is no push.", ["msgid", *BROADCAST_COUNTS])


@push.command()
@click.argument("msgid", type=click.IntRange(min=1))
@_as_json
def show(msgid: int, as_json: bool) -> None:
    """Show a push: its text, its funnel, and how many devices are in which state; `audit push` shows its records."""
    answer = console_client().get(Push, "pushes", str(msgid))
    if as_json:
        print_json(answer)
        return
    for line in (answer.title, answer.text):
        if line:
            say(line)
    say(f"{answer.kind} of app {answer.appkey}: {answer.audience}")
    print_table([{step.name: step.devices for step in answer.funnel}], "")
    if answer.channels:
        channels = [channel_cells(each) for each in answer.channels]
        print_table(channels, "", CHANNEL_COUNTS)
    states = [{"state": each.state, "devices": each.devices, "reason": each.reason} for each in answer.states]
    print_table(states, "No device is in the audience.", ["devices"])


@push.command()
@click.argument("appkey")
@click.argument("msgid", type=click.IntRange(min=1))
@_as_json
def speed(appkey: str, msgid: int, as_json: bool) -> None:
    """Show how many milliseconds it took until 50 %, 90 %, 99 % and all of a push's devices had it."""
    answer = console_client().get(PushSpeed, "apps", appkey, "pushes", str(msgid), "speed")
    if as_json:
        print_json(answer)
        return
    names = ("event", "devices", "half_ms", "p90_ms", "p99_ms", "all_ms")
    rows = [{name: getattr(line, name) for name in names} for line in answer.lines]
    print_table(rows, "Nothing is sent yet.", names[1:])
    if answer.one_in > 1:
        say(f"Estimated from one device in {answer.one_in}.")


@push.command()
@click.argument("appkey")
@click.argument("msgid", type=click.IntRange(min=1))
@click.option("--by", "category", type=click.Choice(CATEGORIES), required=True, help="The attribute of devices.")
@_as_json
def states(appkey: str, msgid: int, category: str, as_json: bool) -> None:
    """Count the devices of a broadcast or multicast by state and reason, divided by an attribute of the devices."""
    answer = console_client().get(PushStates, "apps", appkey, "pushes", str(msgid), "states", category=category)
    if as_json:
        print_json(answer)
        return
    rows = [
        {category: value.info, "state": each.state, "devices": each.devices, "reason": each.reason}
        for value in answer.values
        for each in value.states
    ]
    print_table(rows, "The push is to a list of devices, or has not started yet.", ["devices"])


@push.command()
@click.argument("appkey")
@click.argument("msgid", type=click.IntRange(min=1))
@click.argument("state", type=click.Choice(STATES))
@click.option("--reason", default="", help="The reason, as `push show` prints it; none: the devices without a reason.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="Devices at most.")
@click.option("--cursor", default="", help="The `next` of the page before.")
@_as_json
def devices(appkey: str, msgid: int, state: str, reason: str, limit: int, cursor: str, as_json: bool) -> None:
    """List the devices of a push that are in STATE. The reading is noted in the audit."""
    path = ("apps", appkey, "pushes", str(msgid), "devices")
    answer = console_client().get(PushDevices, *path, state=state, reason=reason, limit=limit, cursor=cursor)
    if as_json:
        print_json(answer)
        return
    rows = [{"msgid": device.msgid, "token": device.token} for device in answer.devices]
    print_table(rows, "No device is in this state for this reason.", ["msgid"])
    if answer.next:
        say(f"There are more: --cursor {answer.next}")


@push.command()
@click.argument("appkey")
@_file
@_as_json
def estimate(appkey: str, file: IO[bytes], as_json: bool) -> None:
    """Check the push in FILE and count the devices that it would go to now. Nothing is sent."""
    answer = console_client().post(Estimate, "apps", appkey, "estimate", body=file.read())
    if as_json:
        print_json(answer)
        return
    say(f"{device_count(answer.devices)} would get it now.")
    for audience in answer.audiences:
        share = f"{100 * audience.devices / audience.app_devices:.1f} %" if audience.app_devices else "none"
        on = ", ".join(f"{devices:,} on {channel}" for channel, devices in (audience.channels or {}).items())
        addresses = f"; with an address: {on}" if on else ""
        say(f"App {audience.appkey}: {share} of its {device_count(audience.app_devices)}{addresses}.")
    if answer.needs_approval:
        say("It needs the approval of a second person, and would become a draft.")
    for audience in answer.audiences:
        if audience.unknown:
            say(f"App {audience.appkey} has no device for: {', '.join(audience.unknown)}")


@push.command()
@click.argument("appkey")
@_file
@click.option("--at-most", type=click.IntRange(min=0), help="Send nothing if it would go to more devices.")
@click.option("--key", default="", help="Idempotency key: a repeat under the same key sends nothing again.")
@click.option("--replaces", metavar="TASK", help="The waiting timed task that it replaces, which is cancelled with it.")
@_as_json
def send(appkey: str, file: IO[bytes], at_most: int | None, key: str, replaces: str | None, as_json: bool) -> None:
    """Send the push in FILE now or later; it becomes a draft where the team's rules demand an approval."""
    key = key or secrets.token_hex(16)
    path = ("apps", appkey, "pushes")
    answer = console_client().post(PushSent, *path, body=file.read(), key=key, at_most=at_most, replaces=replaces)
    if as_json:
        print_json(answer)
        return
    match answer.outcome:
        case "draft":
            say(f"Draft {answer.draft_id}: it waits for the approval of a second person in the console.")
        case "scheduled":
            say(f"Scheduled under the task key {answer.task_key}; now it would go to {device_count(answer.devices)}.")
        case _:
            ids = ", ".join(f"app {app}: {msgid}" for app, msgid in answer.msgids.items())
            say(f"Accepted for {device_count(answer.devices)}; message id of {ids}.")


@push.command()
@click.argument("appkey")
@click.argument("msgid", type=click.IntRange(min=1))
@_as_json
def cancel(appkey: str, msgid: int, as_json: bool) -> None:
    """Cancel a broadcast or multicast for the devices that have not received it."""
    answer = console_client().post(PushCancelled, "apps", appkey, "pushes", str(msgid), "cancel")
    if as_json:
        print_json(answer)
    else:
        say("The push is cancelled: devices that have not received it do not get it.")


@push.command()
@click.argument("appkey")
@click.argument("name", metavar="ALIAS|TOKEN")
@click.argument("msgid", type=click.IntRange(min=1), required=False)
@_as_json
def why(appkey: str, name: str, msgid: int | None, as_json: bool) -> None:
    """Say why a user got a push or not; without MSGID the latest broadcast or multicast. The audit notes it."""
    answer = console_client().get(WhyAnswer, "apps", appkey, "why", name=name, msgid=msgid)
    if as_json:
        print_json(answer)
        return
    for device in answer.devices:
        say(f"{device.token}: {device.sentence}")
