"""`carillon sign`: compute the sign of a request."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import click

from carillon.commands.output import say
from carillon.startup import plain_errors
from edge.core.parsing.canonical import canonical_text
from edge.core.signature import sign_text
from services.domain.settings import environment
from services.domain.text import without_byte_order_mark
from services.errors import InputError

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
