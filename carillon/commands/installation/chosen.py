"""The choice between the installation on this machine and one behind a console."""

from carillon.commands.installation.console import console_client
from carillon.commands.installation.local import LocalInstallation
from carillon.commands.installation.options import is_console_named
from carillon.commands.installation.port import Installation
from carillon.commands.installation.remote import RemoteInstallation


def chosen_installation() -> Installation:
    """Return the installation behind the console that options or environment name, else that of this machine."""
    return RemoteInstallation(console_client()) if is_console_named() else LocalInstallation()
