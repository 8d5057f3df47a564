"""`carillon device find`: devices by token or alias, through the console's interface for programs."""

import click

from carillon.commands.output import as_json, print_json, print_table, time_text
from carillon.installation.remote import console_client
from console.devices.answers import Device, DeviceList


@click.command()
@click.argument("appkey")
@click.argument("name", metavar="ALIAS|TOKEN")
@as_json
def find(appkey: str, name: str, as_json: bool) -> None:
    """Look up the device with a token, or those with an alias. The audit notes it.

    Needs a console: `carillon --url https://HOST --token-file FILE device find …`.
    """
    answer = console_client().get(DeviceList, "apps", appkey, "devices", name=name)
    if as_json:
        print_json(answer)
    else:
        print_table(map(_row, answer.devices), "The app has no device with this alias or token.")


def _row(found: Device) -> dict[str, object]:
    return {
        "token": found.token,
        "alias": found.alias,
        "registered": time_text(found.registered_ms),
        "removed": time_text(found.removed_ms or 0),
        "tags": ", ".join([*map(str, found.tags), *found.stags]),
        "attributes": ", ".join(f"{name}={value}" for name, value in found.attributes.items()),
    }
