"""`carillon task`: timed pushes of a team, through the console's interface for programs."""

import click

from carillon.commands.output import as_json, print_json, print_table, say, time_text
from carillon.installation.remote import console_client
from console.pushes.answers import Task, TaskCancelled, TaskList

_appkey = click.argument("appkey")
_task_key = click.argument("task_key", metavar="TASK")


@click.group()
def task() -> None:
    """List and cancel timed pushes with an API token of a team.

    Needs a console: `carillon --url https://HOST --token-file FILE task …`.
    """


@task.command(name="list")
@click.option("--app", "appkey", metavar="APPKEY", help="Only tasks of this app.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="Tasks at most.")
@click.option("--cursor", default="", help="The `next` of the page before.")
@as_json
def list_tasks(appkey: str | None, limit: int, cursor: str, as_json: bool) -> None:
    """List the timed pushes of the team's apps: those that wait, the next one due first, then the others."""
    answer = console_client().get(TaskList, "tasks", appkey=appkey, limit=limit, cursor=cursor)
    if as_json:
        print_json(answer)
    else:
        print_table(map(_row, answer.tasks), "There is no timed push.")


@task.command()
@_appkey
@_task_key
@as_json
def show(appkey: str, task_key: str, as_json: bool) -> None:
    """Show a timed push of an app."""
    answer = console_client().get(Task, "apps", appkey, "tasks", task_key)
    if as_json:
        print_json(answer)
    else:
        print_table([_row(answer)], "")


@task.command()
@_appkey
@_task_key
@as_json
def cancel(appkey: str, task_key: str, as_json: bool) -> None:
    """Cancel a timed push that waits."""
    answer = console_client().post(TaskCancelled, "apps", appkey, "tasks", task_key, "cancel")
    if as_json:
        print_json(answer)
    else:
        say("The timed push is cancelled: it is not sent.")


def _row(found: Task) -> dict[str, object]:
    return {
        "task": found.task_key,
        "status": found.status,
        "due": time_text(found.due_ms),
        "apps": ", ".join(push.appkey for push in found.pushes),
        "push": "; ".join(dict.fromkeys(push.title or push.text for push in found.pushes)),
    }
