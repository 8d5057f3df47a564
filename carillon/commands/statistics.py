"""`carillon statistics`: the numbers of an app, through the console's interface for programs."""

import click

from carillon.commands.audit import channel_cells
from carillon.commands.output import as_json, print_json, print_table
from carillon.installation.remote import console_client
from console.devices.answers import Statistics, StatisticsRow
from console.statistics.actions import CATEGORIES, KINDS
from services.domain.statistics_rows import CHANNEL_COUNTS


@click.command()
@click.argument("appkey")
@click.option("--kind", type=click.Choice(list(KINDS)), default="connections", show_default=True, help="The type.")
@click.option("--category", type=click.Choice(CATEGORIES), help="Divide the numbers by this attribute of devices.")
@click.option("--info", help="Only this value of the category.")
@click.option("--users", type=click.Choice(["new", "cumulative"]), help="With the type users. Default: new.")
@click.option("--push", metavar="MSGID", help="Only the push with this message id; with the type broadcasts.")
@click.option("--from", "first", metavar="DAY", help="YYYY-MM-DD of the service's time zone, included; six days ago.")
@click.option("--to", "last", metavar="DAY", help="YYYY-MM-DD, included; today.")
@as_json
def statistics(appkey: str, as_json: bool, **asked: str | None) -> None:
    """Show statistics of an app by day, or divided by a category, with an API token of a team.

    Needs a console: `carillon --url https://HOST --token-file FILE statistics …`.
    """
    answer = console_client().get(Statistics, "apps", appkey, "statistics", **asked)
    if as_json:
        print_json(answer)
        return
    names = list(answer.rows[0].counts) if answer.rows else []
    rows = [
        {
            **_row_name(row),
            **{name: f"{value:g}" if value % 1 else int(value) for name, value in row.counts.items()},
        }
        for row in answer.rows
    ]
    print_table(rows, "There are no numbers.", names)
    channels = [{**_row_name(row), **channel_cells(each)} for row in answer.rows for each in row.channels]
    if channels:
        print_table(channels, "", CHANNEL_COUNTS)


def _row_name(row: StatisticsRow) -> dict[str, str | int]:
    """Return the day, the value and the push that a row is about, as far as there are such."""
    return {
        **({"day": row.date} if row.date else {}),
        **({"value": row.info} if row.info is not None else {}),
        **({"push": row.msgid} if row.msgid is not None else {}),
    }
