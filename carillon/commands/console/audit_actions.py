"""`carillon audit actions`: who did what, through the console's interface for programs."""

import click

from carillon.commands.installation.console import console_client
from carillon.commands.output import as_json, print_json, print_table, time_text
from edge.console.actions.audit import SUBJECTS
from edge.console.api.answers.audits import ActionEntry, ActionList


@click.command()
@click.option("--app", metavar="APPKEY", help="Only what concerns this app.")
@click.option("--who", metavar="NAME", help="Only what this account did: a log-in name, user/ID or token/ID.")
@click.option("--subject", type=click.Choice(SUBJECTS), help="Only actions about this.")
@click.option("--from", "first", metavar="DAY", help="YYYY-MM-DD of the service's time zone, included; 30 days ago.")
@click.option("--to", "last", metavar="DAY", help="YYYY-MM-DD, included; today.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="Actions at most.")
@click.option("--cursor", help="The `next` of the page before.")
@as_json
def actions(as_json: bool, **asked: str | int | None) -> None:
    """List what accounts and operators did with the team of an API token and its apps, the newest first.

    Needs a console: `carillon --url https://HOST --token-file FILE audit actions …`.
    """
    answer = console_client().get(ActionList, "audit", **asked)
    if as_json:
        print_json(answer)
    else:
        print_table(map(_row, answer.actions), "There is no such action.")


def _row(entry: ActionEntry) -> dict[str, object]:
    return {
        "time": time_text(entry.time_ms),
        "who": entry.who or entry.address,
        "action": entry.action,
        "app": entry.appkey,
        "detail": entry.detail,
    }
