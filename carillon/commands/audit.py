"""`carillon audit`: what happened to a push, a device or an app, from the event log."""

import sys
import time
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import click
import msgspec

from carillon.commands.audit_export import MSGID, allow_behind, export
from carillon.commands.audit_text import (
    app_line,
    device_facts,
    push_facts,
    show,
    show_on_device,
    states_table,
    timeline_table,
    warn_if_behind,
)
from carillon.commands.console.audit_actions import actions
from carillon.commands.installation.chosen import chosen_installation
from carillon.commands.output import print_json, say
from carillon.environment import environment
from services.runtime.errors import CarillonError
from services.runtime.process.settings import Settings, load

_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group()
def audit() -> None:
    """Explain a push, a device or an app from the event log.

    An answer covers every record that is in the event log when the command starts. While analytics is behind the log,
    the command fails unless --allow-behind is given.
    """


audit.add_command(export)
audit.add_command(actions)


@audit.command()
@click.argument("msgid", type=MSGID)
@click.option("--device", "token", default="", metavar="TOKEN", help="Also explain the push for this device.")
@allow_behind
@_as_json
def push(msgid: int, token: str, allow_behind: bool, as_json: bool) -> None:
    """Show what happened to the push with this message id, and how many devices are in which state.

    Each device of the audience is in one state. For a push with several message ids the states are those of the first,
    unless MSGID is another one.
    """
    answer = chosen_installation().audit_push(msgid, token, allow_behind=allow_behind)
    warn_if_behind(answer.records_behind, as_json=as_json)
    if as_json:
        print_json(answer)
        return
    zone = _zone()
    show(push_facts(answer), timeline_table(answer.timeline, zone), states_table(answer.states))
    if answer.device is not msgspec.UNSET:
        show_on_device(answer.device, zone)


@audit.command()
@click.argument("appkey")
@click.argument("token")
@allow_behind
@_as_json
def device(appkey: str, token: str, allow_behind: bool, as_json: bool) -> None:
    """Show what happened to a device: registrations, changes and their origins, sessions and messages."""
    answer = chosen_installation().audit_device(appkey, token, allow_behind=allow_behind)
    warn_if_behind(answer.records_behind, as_json=as_json)
    if as_json:
        print_json(answer)
        return
    show(device_facts(answer), timeline_table(answer.timeline, _zone()))


@audit.command()
@click.argument("appkey")
@click.option(
    "--from", "first", metavar="TIME", help="ISO 8601 date or time, in CARILLON_TIMEZONE; a day ago unless given."
)
@click.option("--to", "last", metavar="TIME", help="Show entries before this time; now unless given.")
@allow_behind
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
def app(appkey: str, first: str | None, last: str | None, allow_behind: bool, as_json: bool) -> None:
    """Show who did what with an app, latest entries last.

    The entries are pushes and cancels, timed tasks, settings, tags changed by its app servers, and by the hour the
    requests of its devices.
    """
    zone = _zone()
    to_ms = _moment_ms("--to", last, zone) if last else int(time.time() * 1000)
    from_ms = _moment_ms("--from", first, zone) if first else to_ms - int(timedelta(days=1).total_seconds() * 1000)
    if from_ms >= to_ms:
        raise click.BadParameter("must be earlier than --to", param_hint="--from")
    for page in chosen_installation().audit_app(appkey, from_ms, to_ms, allow_behind=allow_behind):
        warn_if_behind(page.records_behind, as_json=as_json)
        for entry in page.timeline:
            if as_json:
                print_json(entry)
            else:
                say(app_line(entry, zone))
        sys.stdout.flush()


def _zone() -> ZoneInfo:
    try:
        return load(Settings, environment()).zone()
    except CarillonError as error:
        raise click.ClickException(str(error)) from None


def _moment_ms(option: str, text: str, zone: ZoneInfo) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter("must look like 2026-11-21 or 2026-11-21T14:05:00", param_hint=option) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp() * 1000)
