"""`carillon send`: sign a request, send it, print the answer."""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from secrets import token_urlsafe
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

import click
import httpx

from carillon.commands.output import say
from carillon.startup import plain_errors
from edge.core.parsing.canonical import canonical_text
from edge.core.replay_protection import NONCE_HEADER, SIGNATURE_HEADER, TIME_HEADER, body_hash, sign_request
from edge.core.signature import sign_text
from services.domain.settings import environment
from services.domain.text import without_byte_order_mark
from services.errors import InputError

# `carillon sign`: compute the sign of a request.

VARIABLE = "CARILLON_APP_SECRET"
"""The environment variable with the secret keys, separated by spaces, where no option gives them."""

_ORDER = "Several: the Android app's first, then the iOS apps' in the order of their appkeys."
Command = TypeVar("Command", bound=Callable[..., Any])


def secret_options(command: Command) -> Command:
    """Decorate a command with the options whose values `secrets_in` accepts."""
    file_type = click.Path(path_type=Path)
    from_file = click.option(
        *("--secret-file", "secret_files"),
        type=file_type,
        multiple=True,
        help="A file with one app's secret key alone; may be repeated. Other users of the host may see what --secret"
        " is given, and the shell's history holds it.",
    )
    given = click.option(
        *("--secret", "secrets"),
        multiple=True,
        help=f"An app's secret key. {_ORDER} Default: {VARIABLE}, with spaces between several.",
    )
    return given(from_file(command))


def secrets_in(secrets: Sequence[str], files: Sequence[Path]) -> Sequence[str]:
    """Return the secret keys of the options, else of the environment.

    click.UsageError: there is none, one is empty or not UTF-8, or options of both kinds are given.
    """
    if secrets and files:
        raise click.UsageError("give all secret keys by --secret, or all by --secret-file: their order counts")
    if not all(secret.strip() for secret in secrets):
        raise click.BadParameter("an empty text is no secret key", param_hint="--secret")
    with plain_errors():
        found = secrets or [_read(file) for file in files] or environment().get(VARIABLE, "").split()
    for secret in found:
        _check_encoding(secret, "--secret" if secrets else VARIABLE)
    if not found:
        raise click.UsageError(f"name the app's secret key: --secret-file, --secret, or {VARIABLE} in the environment")
    return found


def _check_encoding(secret: str, source: str) -> None:
    """Check that a secret key is UTF-8: Python keeps other bytes of options and variables as lone surrogates."""
    try:
        secret.encode()
    except UnicodeEncodeError:
        raise click.UsageError(f"{source} holds bytes that are not UTF-8, as no secret key does") from None


def _read(file: Path) -> str:
    try:
        secret = file.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{file} cannot be read: {error}", param_hint="--secret-file") from None
    if len(secret.split()) != 1:
        raise click.BadParameter(f"{file} must hold one secret key and nothing else", param_hint="--secret-file")
    return secret


@click.command()
@secret_options
@click.argument("file", type=click.File("rb"))
def sign(secrets: Sequence[str], secret_files: Sequence[Path], file: IO[bytes]) -> None:
    """Print the sign of the request in FILE (- for standard input). An existing sign in it is ignored."""
    say(sign_text(text_in(file), secrets_in(secrets, secret_files)))


def text_in(file: IO[bytes]) -> str:
    """Return the canonical text of the request in a file. click.ClickException: the file holds no request."""
    try:
        return canonical_text(without_byte_order_mark(file.read()))
    except InputError as error:
        raise click.ClickException(f"the request cannot be signed: {error}") from None


_TIMEOUT_S = 30


@click.command()
@secret_options
@click.option("--url", required=True, help="Where to send it, such as http://127.0.0.1:8300/v2/push.")
@click.option("--method", type=click.Choice(["POST", "DELETE"]), default="POST", show_default=True)
@click.option("--replay-safe", is_flag=True, help="Add the headers by which a captured request cannot be sent again.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as one line of JSON.")
@click.argument("file", type=click.File("rb"))
def send(
    secrets: Sequence[str],
    secret_files: Sequence[Path],
    url: str,
    method: str,
    replay_safe: bool,
    as_json: bool,
    file: IO[bytes],
) -> None:
    """Sign the request in FILE (- for standard input), send it and print the answer.

    The exit code is 0 when the answer's result is 0, else 1.
    """
    used = secrets_in(secrets, secret_files)
    body = signed_body(text_in(file), used)
    headers = replay_safe_headers(method, url, body, used) if replay_safe else {}
    answer = _send(url, method, body, headers)
    say(*json.dumps(answer, ensure_ascii=False, indent=None if as_json else 2).split("\n"))
    sys.exit(0 if answer.get("result") == 0 else 1)


def signed_body(text: str, secrets: Sequence[str]) -> bytes:
    """Return the request with its sign. It is built from the canonical text, so numbers stay as written."""
    rest = text[1:] if text == "{}" else f",{text[1:]}"
    return f'{{"sign":"{sign_text(text, secrets)}"{rest}'.encode()


def replay_safe_headers(method: str, url: str, body: bytes, secrets: Sequence[str]) -> dict[str, str]:
    """Return the headers of a replay-safe signature, made now with a random nonce."""
    now_s, nonce = int(time.time()), token_urlsafe(24)
    signature = sign_request(method, urlsplit(url).path or "/", now_s, nonce, body_hash(body), secrets)
    return {TIME_HEADER: str(now_s), NONCE_HEADER: nonce, SIGNATURE_HEADER: signature}


def _send(url: str, method: str, body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", **headers}
    try:
        response = httpx.request(method, url, content=body, headers=headers, timeout=_TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise click.ClickException(f"no answer from {url}: {error}") from None
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise click.ClickException(
            f"{url} answered HTTP {response.status_code}, which is no answer of a Carillon interface"
        )
    return answer
