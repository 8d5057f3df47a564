"""`carillon draft`: pushes of a team that wait for an approval, through the console's interface for programs."""

import click

from carillon.commands.output import as_json, print_json, print_table, say, time_text
from carillon.installation.remote import console_client
from console.pushes.answers import Draft, DraftList, DraftSummary

_team_id = click.argument("team_id", metavar="TEAM")
_draft_id = click.argument("draft_id", metavar="DRAFT")


@click.group()
def draft() -> None:
    """List and withdraw pushes that wait for the approval of a second person, with an API token of a team.

    Approvals are made by people in the console. Needs a console: `carillon --url https://HOST --token-file FILE draft
    …`. TEAM is a team's id, as the list shows it.
    """


@draft.command(name="list")
@click.option("--waiting", is_flag=True, help="Only drafts that wait for an approval.")
@click.option("--words", help="Only drafts with this in their title or at the beginning of their text.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="Drafts at most.")
@click.option("--cursor", default="", help="The `next` of the page before.")
@as_json
def list_drafts(waiting: bool, words: str | None, limit: int, cursor: str, as_json: bool) -> None:
    """List the drafts of the team, the newest first."""
    only_waiting = "true" if waiting else None
    answer = console_client().get(DraftList, "drafts", waiting=only_waiting, words=words, limit=limit, cursor=cursor)
    if as_json:
        print_json(answer)
    else:
        print_table(map(_row, answer.drafts), "There is no draft.", ["devices"])


@draft.command()
@_team_id
@_draft_id
@as_json
def show(team_id: str, draft_id: str, as_json: bool) -> None:
    """Show a draft and the request that would be sent."""
    answer = console_client().get(Draft, "drafts", team_id, draft_id)
    if as_json:
        print_json(answer)
        return
    print_table([_row(answer)], "", ["devices"])
    say(*answer.request_json.replace("\r", "").split("\n"))


@draft.command()
@_team_id
@_draft_id
@as_json
def withdraw(team_id: str, draft_id: str, as_json: bool) -> None:
    """Take a draft back, so that it cannot be approved any more."""
    answer = console_client().post(Draft, "drafts", team_id, draft_id, "withdraw")
    if as_json:
        print_json(answer)
    else:
        say("The draft is withdrawn: it is not sent.")


def _row(found: DraftSummary) -> dict[str, object]:
    return {
        "draft": found.draft_id,
        "team": found.team_id,
        "push": found.title or found.text,
        "status": found.status,
        "devices": found.estimated_devices,
        "created": time_text(found.created_ms),
        "decided by": found.decided_by,
        "reason": found.reason,
    }
