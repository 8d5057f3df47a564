"""The `carillon` command: a group that imports each subcommand only when it is used."""

import importlib
import io
import json
from pathlib import Path
from typing import IO, Any

import click

from services.process.build import build
from services.process.logs import configure, printable

COMMANDS = {
    "acls": "carillon.commands.acls",
    "address": "carillon.commands.address",
    "apns-simulator": "carillon.commands.apns_simulator",
    "app": "carillon.commands.app",
    "archive": "carillon.archive",
    "audience": "carillon.commands.audience",
    "audit": "carillon.commands.audit",
    "backup": "carillon.commands.backup",
    "certs": "carillon.commands.certs",
    "device": "carillon.commands.device",
    "draft": "carillon.commands.draft",
    "keys": "carillon.commands.keys",
    "person": "carillon.commands.person",
    "push": "carillon.commands.push",
    "replay": "carillon.replay",
    "restore": "carillon.commands.backup",
    "send": "carillon.commands.send",
    "serve": "carillon.serve",
    "sign": "carillon.commands.send",
    "statistics": "carillon.commands.statistics",
    "status": "carillon.commands.status",
    "task": "carillon.commands.task",
    "team": "carillon.commands.teams",
    "token": "carillon.commands.tokens",
    "up": "carillon.up",
    "up-analytics": "carillon.children.analytics",
    "up-console": "carillon.children.console",
    "upgrade": "carillon.commands.upgrade",
    "user": "carillon.commands.users",
    "webhook": "carillon.commands.webhooks",
}
"""Module of each subcommand. The subcommand's object in it has the same name, with `_` for `-`."""


FROM_ELSEWHERE = (
    *("address", "app", "audience", "audit", "device", "draft", "person", "push", "statistics", "status", "task"),
    *("team", "token"),
)
"""Subcommands that can ask a console elsewhere, or say themselves why they do not."""

_AS_JSON = "--json"


class ShownError(click.ClickException):
    """An error of a command, without control characters: it may quote what a device wrote.

    With --json it is one line of JSON on standard error. The exit code is that of the error.
    """

    def __init__(self, error: click.ClickException, *, as_json: bool) -> None:
        super().__init__(error.format_message())
        self._error = error
        self._as_json = as_json

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return self._error.exit_code

    def show(self, file: IO[Any] | None = None) -> None:
        if self._as_json:
            lines = [json.dumps({"error": self.message}, ensure_ascii=False)]
        else:
            shown = io.StringIO()
            self._error.show(shown)
            lines = shown.getvalue().rstrip("\n").split("\n")
        click.echo("\n".join(map(printable, lines)), file=file, err=True)


class LazyGroup(click.Group):
    """A group that imports a subcommand on use, so that short commands do not import every role."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_AS_JSON] = _AS_JSON in args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            raise ShownError(error, as_json=ctx.meta[_AS_JSON]) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name.replace("-", "_"))
        return command


def _version(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    """Print the version and the commit, and end the command."""
    if is_asked and not context.resilient_parsing:
        click.echo(f"carillon, version {build()}")
        context.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
@click.option("--url", metavar="URL", help="Ask the console at this address, with an API token: https://HOST.")
@click.option("--token-file", type=click.Path(path_type=Path), help="The file with the API token.")
@click.pass_context
def main(context: click.Context, url: str | None, token_file: Path | None) -> None:
    """Carillon: self-hosted push messaging. Start with `carillon up`.

    With --url and --token-file these ask a console elsewhere: app list, show, set, pause, resume, rotate-secret and
    drop-old-secret; audience; audit without export; device find; draft; person; push; statistics; task; team list;
    token whoami. The others work on the machine.
    """
    configure("WARNING")
    if url is None and token_file is None:
        return
    if context.invoked_subcommand not in FROM_ELSEWHERE:
        raise click.UsageError(f"carillon {context.invoked_subcommand} works on the machine alone, without --url")
    options = importlib.import_module("carillon.installation.options")
    context.meta[options.META] = options.ConsoleOptions(url, token_file)
