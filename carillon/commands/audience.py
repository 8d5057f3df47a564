"""`carillon audience`: what an audience can name, through the console's interface for programs."""

import click

from carillon.commands.output import as_json as _as_json
from carillon.commands.output import print_json, print_table, say
from carillon.installation.remote import console_client
from console.pushes.answers import AudienceValueList
from console.send.values import FIELDS


@click.group()
def audience() -> None:
    """See what the audience of a push can name, with an API token of a team.

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
