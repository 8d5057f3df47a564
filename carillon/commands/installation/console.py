"""Commands from elsewhere: calls of `/console/v1` with an API token of a team."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import click
import httpx
import msgspec

from carillon.environment import TOKEN, TOKEN_FILE, environment
from services.runtime.errors import CarillonError

META = "carillon.console"
"""The place of the options --url and --token-file in the context of a command."""

_URL = "CARILLON_CONSOLE_URL"
_TIMEOUT_S = 60
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MAX_TOKEN_BYTES = 1024

Answer = TypeVar("Answer", bound=msgspec.Struct)


class ConsoleOptions(msgspec.Struct, frozen=True):
    """The options of `carillon` itself that name a console."""

    url: str | None
    token_file: Path | None


class ConsoleClient:
    """Makes calls of `/console/v1`. click.ClickException says why one failed; it never contains the token."""

    def __init__(self, url: str, token: str) -> None:
        self._url = f"{_checked_url(url)}/console/v1"
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def get(self, kind: type[Answer], *path: str, **query: str | int | None) -> Answer:
        return self._call(kind, "GET", path, query, None, {})

    def post(
        self, kind: type[Answer], *path: str, body: bytes = b"{}", key: str = "", **query: str | int | None
    ) -> Answer:
        return self._call(kind, "POST", path, query, body, {"Idempotency-Key": key} if key else {})

    def _call(
        self,
        kind: type[Answer],
        method: str,
        path: tuple[str, ...],
        query: Mapping[str, str | int | None],
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> Answer:
        url = "/".join([self._url, *(quote(part, safe="") for part in path)])
        given = {name: value for name, value in query.items() if value is not None}
        try:
            response = httpx.request(
                method, url, params=given, content=body, headers={**self._headers, **headers}, timeout=_TIMEOUT_S
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise click.ClickException(f"no answer from {self._url}: {error}") from None
        if response.status_code != 200:
            raise click.ClickException(_problem(response))
        try:
            return msgspec.json.decode(response.content, type=kind)
        except msgspec.DecodeError:
            raise click.ClickException(f"{self._url} is no console of this version of Carillon") from None


def is_console_named() -> bool:
    """Return whether the options or the environment ask for calls of a console with a token."""
    options = _options()
    env = _environment()
    return any((options.url, options.token_file, env.get(TOKEN), env.get(TOKEN_FILE)))


def console_client() -> ConsoleClient:
    """Return the client that the options or the environment name. click.UsageError: something is missing."""
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
    return ConsoleClient(url, token)


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
            return file.read(_MAX_TOKEN_BYTES).decode(errors="replace").strip()
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


def _problem(response: httpx.Response) -> str:
    try:
        found: Any = response.json()
    except ValueError:
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("detail"), str):
        return f"{response.url.host} answered HTTP {response.status_code}, which is no answer of a console"
    return str(found["detail"])
