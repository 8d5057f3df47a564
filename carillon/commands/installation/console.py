"""Commands from elsewhere: calls of `/console/v1` with an API token of a team."""

from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import click
import httpx
import msgspec

from carillon.commands.installation.options import console_and_token

_TIMEOUT_S = 60

Answer = TypeVar("Answer", bound=msgspec.Struct)


class ConsoleClient:
    """Makes calls of `/console/v1`. click.ClickException says why one failed; it never contains the token."""

    def __init__(self, url: str, token: str) -> None:
        self._url = f"{url}/console/v1"
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def get(self, kind: type[Answer], /, *path: str, **query: str | int | None) -> Answer:
        return self._call(kind, "GET", path, query, None, {})

    def post(
        self, kind: type[Answer], /, *path: str, body: bytes = b"{}", key: str = "", **query: str | int | None
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


def console_client() -> ConsoleClient:
    """Return the client that the options or the environment name. click.UsageError: something is missing."""
    return ConsoleClient(*console_and_token())


def _problem(response: httpx.Response) -> str:
    try:
        found: Any = response.json()
    except ValueError:
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("detail"), str):
        return f"{response.url.host} answered HTTP {response.status_code}, which is no answer of a console"
    return str(found["detail"])
