"""`carillon push`: pushes of a team, sent and looked at through the console's interface for programs."""

import json
import secrets
from typing import IO, Any

import click
import msgspec

from carillon.commands.installation.console import console_client
from carillon.commands.tables import show, table
from edge.console.api.answers.devices import WhyAnswer
from edge.console.api.answers.pushes import Estimate, PushCancelled, PushList, PushSent

_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_file = click.argument("file", type=click.File("rb"))
_LISTED = ("appkey", "msgid", "target", "sent", "received", "shown", "clicked", "failed", "expired", "cancelled")


@click.group()
def push() -> None:
    """Send, list and cancel pushes with an API token of a team.

    Needs a console: `carillon --url https://HOST --token-file FILE push …`. FILE of a push is a request of /v2/push
    without its sign, `-` for standard input.
    """


@push.command(name="list")
@click.option("--app", "appkey", metavar="APPKEY", help="Only pushes of this app.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="Pushes at most.")
@_as_json
def list_pushes(appkey: str | None, limit: int, as_json: bool) -> None:
    """List the latest broadcasts and multicasts of the team with their counts, the newest first."""
    answer = console_client().get(PushList, "pushes", appkey=appkey, limit=limit)
    if as_json:
        _print_json(answer)
        return
    listed = table()
    for name in _LISTED:
        listed.add_column(name, no_wrap=True, justify="left" if name == "appkey" else "right")
    for row in answer.pushes:
        listed.add_row(*(str(getattr(row, name)) for name in _LISTED))
    show(listed)


@push.command()
@click.argument("appkey")
@_file
@_as_json
def estimate(appkey: str, file: IO[bytes], as_json: bool) -> None:
    """Check the push in FILE and count the devices that it would go to now. Nothing is sent."""
    answer = console_client().post(Estimate, "apps", appkey, "estimate", body=file.read())
    if as_json:
        _print_json(answer)
        return
    click.echo(f"{answer.devices} devices would get it now.")
    if answer.needs_approval:
        click.echo("It needs the approval of a second person, and would become a draft.")
    for audience in answer.audiences:
        if audience.unknown:
            click.echo(f"App {audience.appkey} has no device for: {', '.join(audience.unknown)}")


@push.command()
@click.argument("appkey")
@_file
@click.option("--at-most", type=click.IntRange(min=0), help="Send nothing if it would go to more devices.")
@click.option("--key", default="", help="Idempotency key: a repeat under the same key sends nothing again.")
@_as_json
def send(appkey: str, file: IO[bytes], at_most: int | None, key: str, as_json: bool) -> None:
    """Send the push in FILE now or later; it becomes a draft where the team's rules demand an approval."""
    key = key or secrets.token_hex(16)
    path = ("apps", appkey, "pushes")
    answer = console_client().post(PushSent, *path, body=file.read(), key=key, at_most=at_most)
    if as_json:
        _print_json(answer)
        return
    match answer.outcome:
        case "draft":
            click.echo(f"Draft {answer.draft_id}: it waits for the approval of a second person in the console.")
        case "scheduled":
            click.echo(f"Scheduled under the task key {answer.task_key}; now it would go to {answer.devices} devices.")
        case _:
            ids = ", ".join(f"app {app}: {msgid}" for app, msgid in answer.msgids.items())
            click.echo(f"Accepted for {answer.devices} devices; message id of {ids}.")


@push.command()
@click.argument("appkey")
@click.argument("msgid", type=click.IntRange(min=1))
@_as_json
def cancel(appkey: str, msgid: int, as_json: bool) -> None:
    """Cancel a broadcast or multicast for the devices that have not received it."""
    answer = console_client().post(PushCancelled, "apps", appkey, "pushes", str(msgid), "cancel")
    if as_json:
        _print_json(answer)
    else:
        click.echo("The push is cancelled: devices that have not received it do not get it.")


@push.command()
@click.argument("appkey")
@click.argument("name", metavar="ALIAS|TOKEN")
@click.argument("msgid", type=click.IntRange(min=1), required=False)
@_as_json
def why(appkey: str, name: str, msgid: int | None, as_json: bool) -> None:
    """Say why a user got a push or not; without MSGID the latest broadcast or multicast. The audit notes it."""
    answer = console_client().get(WhyAnswer, "apps", appkey, "why", name=name, msgid=msgid)
    if as_json:
        _print_json(answer)
        return
    for device in answer.devices:
        click.echo(f"{device.token}: {device.sentence}")


def _print_json(answer: msgspec.Struct) -> None:
    record: Any = msgspec.to_builtins(answer)
    click.echo(json.dumps(record, ensure_ascii=False))
