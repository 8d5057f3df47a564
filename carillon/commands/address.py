"""`carillon address`: where channels reach the devices of an app, through the console's interface for programs."""

import click

from carillon.commands.output import as_json as _as_json
from carillon.commands.output import print_json, print_table, say, time_text
from carillon.installation.remote import console_client
from console.devices.answers import AddressList, ListedAddress
from services.domain.addresses import CHANNELS


@click.group()
def address() -> None:
    """List the addresses of devices on channels such as webpush and fcm; never what an address is."""


@address.command(name="list")
@click.option("--app", "appkey", required=True, metavar="APPKEY", help="The app.")
@click.option("--dead", is_flag=True, help="List dead addresses, the latest first: their vendor refused them for good.")
@click.option("--channel", type=click.Choice(list(CHANNELS)), help="Only those of this channel.")
@click.option("--limit", type=click.IntRange(1, 500), default=100, show_default=True, help="Addresses at most.")
@click.option("--cursor", default="", help="The `next` of the page before.")
@_as_json
def list_addresses(appkey: str, dead: bool, channel: str | None, limit: int, cursor: str, as_json: bool) -> None:
    """List the addresses of an app's devices by token, or with --dead those that their vendor refused for good.

    A dead address is listed until its device sets another one on the channel; the device stays registered. The audit
    notes whose addresses were listed. Needs a console: `carillon --url https://HOST --token-file FILE address list …`.
    """
    answer = console_client().get(
        AddressList,
        *("apps", appkey, "addresses"),
        dead="true" if dead else "false",
        channel=channel,
        limit=limit,
        cursor=cursor,
    )
    if as_json:
        print_json(answer)
        return
    rows = [_row(each, dead=dead) for each in answer.addresses]
    print_table(rows, "No address of the app is dead." if dead else "No device of the app has an address.")
    if answer.next:
        say(f"There are more: --cursor {answer.next}")


def _row(listed: ListedAddress, *, dead: bool) -> dict[str, object]:
    named: dict[str, object] = {"device": listed.token, "channel": listed.channel, "address": listed.fingerprint}
    if dead:
        return {**named, "dead": time_text(listed.dead_ms or 0), "reason": listed.dead_reason}
    return {**named, "since": time_text(listed.since_ms or 0)}
