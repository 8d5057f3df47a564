"""The options of `carillon` that name a console and an API token for commands from another machine.

Every command imports this module, also one that calls no console: so it imports no HTTP client.
"""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import click
import msgspec

from carillon.environment import TOKEN, TOKEN_FILE, environment
from services.errors import CarillonError

META = "carillon.console"
"""The place of the options --url and --token-file in the context of a command."""

_URL = "CARILLON_CONSOLE_URL"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MAX_TOKEN_BYTES = 1024


class ConsoleOptions(msgspec.Struct, frozen=True):
    """The options of `carillon` itself that name a console."""

    url: str | None
    token_file: Path | None


def is_console_named() -> bool:
    """Return whether the options or the environment ask for calls of a console with a token."""
    options = _options()
    env = _environment()
    return any((options.url, options.token_file, env.get(TOKEN), env.get(TOKEN_FILE)))


def refuse_console(command: str, why: str) -> None:
    """Refuse options and variables for a console, which the command cannot ask.

    UsageError: options or the environment name a console or an API token.
    """
    if is_console_named():
        raise click.UsageError(f"{command} {why}; leave out --url, --token-file, {TOKEN} and {TOKEN_FILE}")


def refuse_console_options(command: str, why: str) -> None:
    """Refuse options for a console, which the command does not need; a token in the environment is no error.

    UsageError: options name a console.
    """
    if _options() != ConsoleOptions(None, None):
        raise click.UsageError(f"{command} {why}; leave out carillon's own --url and --token-file")


def console_and_token() -> tuple[str, str]:
    """Return the console's address and the token that the options or the environment name.

    click.UsageError: one is missing.
    """
    options, env = _options(), _environment()
    url = options.url or env.get(_URL, "")
    if not url:
        raise click.UsageError(f"name the console: carillon --url https://HOST --token-file FILE …, or {_URL}")
    file = options.token_file or (Path(env[TOKEN_FILE]) if env.get(TOKEN_FILE) else None)
    token = _read(file) if file else env.get(TOKEN, "")
    if not token:
        raise click.UsageError(f"name a file with an API token: carillon --token-file FILE …, or {TOKEN_FILE}")
    if not (token.isascii() and token.isprintable()):
        raise click.ClickException("the API token has characters that no token has")
    return _checked_url(url), token


def _options() -> ConsoleOptions:
    context = click.get_current_context(silent=True)
    found: ConsoleOptions = (context.meta if context else {}).get(META, ConsoleOptions(None, None))
    return found


def _environment() -> Mapping[str, str]:
    try:
        return environment()
    except CarillonError as error:
        raise click.ClickException(str(error)) from None


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_TOKEN_BYTES).decode("utf-8-sig", errors="replace").strip()
    except OSError as error:
        raise click.ClickException(f"the API token in {path} cannot be read: {error.strerror}") from None


def _checked_url(url: str) -> str:
    """Return the address without a slash at its end. UsageError: a token would travel over a network in clear text."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        raise click.UsageError(f"{url} is no address of a console; use https://HOST")
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise click.UsageError(f"{url} is not encrypted, and an API token is a secret; use https://")
    return url.rstrip("/")
