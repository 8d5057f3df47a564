"""The `carillon` command: a group that imports each subcommand only when it is used."""

import importlib

import click

from services.runtime.process.logs import configure

COMMANDS = {
    "apns-simulator": "carillon.commands.apns_simulator",
    "app": "carillon.commands.app.group",
    "audit": "carillon.commands.audit",
    "device": "carillon.commands.device",
    "keys": "carillon.commands.keys",
    "replay": "carillon.replay",
    "send": "carillon.commands.send",
    "serve": "carillon.serve",
    "sign": "carillon.commands.sign",
    "up": "carillon.up",
}
"""Module of each subcommand. The subcommand's object in it has the same name, with `_` for `-`."""


class LazyGroup(click.Group):
    """A group that imports a subcommand on use, so that short commands do not import every role."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name.replace("-", "_"))
        return command


@click.group(cls=LazyGroup)
@click.version_option(package_name="carillon")
def main() -> None:
    """Carillon: self-hosted push messaging. Start with `carillon up`."""
    configure("WARNING")
