"""`carillon audience`: saved audiences, and what an audience can name, through the console's interface for programs."""

from typing import IO, Any

import click
import msgspec

from carillon.commands.output import as_json as _as_json
from carillon.commands.output import print_json, print_table, say, time_text
from carillon.installation.remote import console_client
from console.pushes.answers import AudienceRemoved, AudienceValueList, SavedAudience, SavedAudienceList
from console.send.values import FIELDS


@click.group()
def audience() -> None:
    """Save audiences of tags and attributes, and see what an audience can name, with an API token of a team.

    Needs a console: `carillon --url https://HOST --token-file FILE audience …`.
    """


@audience.command()
@click.argument("appkey")
@click.argument("field", type=click.Choice(tuple(FIELDS)))
@click.option("--words", help="Only values that have all of these words.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="Values at most.")
@_as_json
def values(appkey: str, field: str, words: str | None, limit: int, as_json: bool) -> None:
    """List the tags, or the values of an attribute, that most devices of an app have, with the number of devices."""
    path = ("apps", appkey, "audience-values")
    answer = console_client().get(AudienceValueList, *path, field=field, words=words, limit=limit)
    if as_json:
        print_json(answer)
        return
    rows = [
        {**({"brand": each.brand} if each.brand else {}), "value": each.value, "devices": each.devices}
        for each in answer.values
    ]
    print_table(rows, "No device has such a value.", ["devices"])
    if answer.has_more:
        say("There are more: search for them with --words.")


@audience.command(name="list")
@click.argument("appkey")
@_as_json
def list_audiences(appkey: str, as_json: bool) -> None:
    """List the saved audiences of an app."""
    answer = console_client().get(SavedAudienceList, "apps", appkey, "audiences")
    if as_json:
        print_json(answer)
        return
    rows = [
        {
            "name": each.name,
            "audience": msgspec.json.encode(each.send_to).decode(),
            "saved by": each.owner,
            "time": time_text(each.changed_ms),
        }
        for each in answer.audiences
    ]
    print_table(rows, "No audience is saved.")


@audience.command()
@click.argument("appkey")
@click.argument("name")
@click.argument("file", type=click.File("rb"))
@click.option("--new", is_flag=True, help="Fail if there is one with the name, which is replaced otherwise.")
@_as_json
def save(appkey: str, name: str, file: IO[bytes], new: bool, as_json: bool) -> None:
    """Save the audience in FILE under NAME: `sendTo` of a push with it, without appkey; `-` for standard input."""
    try:
        send_to: dict[str, Any] = msgspec.json.decode(file.read(), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise click.UsageError(f"the file is no JSON object: {error}") from None
    body = msgspec.json.encode({"name": name, "send_to": send_to, "must_be_new": new})
    answer = console_client().post(SavedAudience, "apps", appkey, "audiences", body=body)
    if as_json:
        print_json(answer)
    else:
        say(f"The audience {answer.name} is saved.")


@audience.command()
@click.argument("appkey")
@click.argument("name")
@_as_json
def remove(appkey: str, name: str, as_json: bool) -> None:
    """Remove a saved audience."""
    answer = console_client().delete(AudienceRemoved, "apps", appkey, "audiences", name=name)
    if as_json:
        print_json(answer)
    else:
        say(f"The audience {answer.name} is removed.")
