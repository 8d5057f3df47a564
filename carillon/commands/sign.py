"""`carillon sign`: compute the sign of a request."""

from typing import IO

import click

from edge.core.parsing.canonical import canonical_text
from edge.core.signature import sign_text
from services.runtime.errors import InputError

secret_option = click.option(
    "--secret",
    "secrets",
    multiple=True,
    required=True,
    help="An app's secret key. Several: the Android app's first, then the iOS apps' in the order of their appkeys.",
)


@click.command()
@secret_option
@click.argument("file", type=click.File("rb"))
def sign(secrets: tuple[str, ...], file: IO[bytes]) -> None:
    """Print the sign of the request in FILE (- for standard input). An existing sign in it is ignored."""
    click.echo(sign_text(text_in(file), secrets))


def text_in(file: IO[bytes]) -> str:
    """Return the canonical text of the request in a file. click.ClickException: the file holds no request."""
    try:
        return canonical_text(file.read())
    except InputError as error:
        raise click.ClickException(f"the request cannot be signed: {error}") from None
