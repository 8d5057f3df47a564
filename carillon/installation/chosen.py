"""The choice between the installation on this machine and one behind a console."""

import importlib
from typing import TYPE_CHECKING

from carillon.installation.local import LocalInstallation
from carillon.installation.options import is_console_named
from carillon.installation.port import Installation

if TYPE_CHECKING:
    from carillon.installation.remote import ConsoleClient


def chosen_installation() -> Installation:
    """Return the installation behind the console that options or environment name, else that of this machine."""
    console = named_console()
    if console is None:
        return LocalInstallation()
    # The requests of the console's calls import half of the edge: 0.4 s of CPU time, for a console alone.
    remote: Installation = importlib.import_module("carillon.installation.remote").RemoteInstallation(console)
    return remote


def named_console() -> "ConsoleClient | None":
    """Return the console that options or environment name, or None. The HTTP client is imported only for a console."""
    if not is_console_named():
        return None
    found: ConsoleClient = importlib.import_module("carillon.installation.remote").console_client()
    return found
