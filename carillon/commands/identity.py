"""`carillon app set --identity...`: the proofs of aliases and identity tags by the app's server."""

import codecs
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from protos.registry.v1.registry_pb2 import IdentityChange, IdentityKeys, IdentityTags
from services.domain.identity import MAX_KEY_BYTES, MODES, public_key
from services.errors import InputError

_NONE = ("", "none", "off")
_OPTIONS = ("identity", "identity_key", "identity_tags")

Command = TypeVar("Command", bound=Callable[..., Any])


def identity_options(command: Command) -> Command:
    """Decorate a command with the options whose values `identity_change` takes."""
    options = (
        click.option(
            "--identity",
            type=click.Choice(list(MODES)),
            help="off: whoever has the app can set any alias, and gets its pushes. accept: a device that has proven its"
            " alias comes before all others. require: aliases and identity tags without a proof are refused.",
        ),
        click.option(
            "--identity-key",
            multiple=True,
            metavar="FILE",
            help="The public key, in PEM, by which your server's proofs are verified: EC P-256 or Ed25519. It replaces"
            " those there are; give it twice to have two while your servers change over. `none` removes them.",
        ),
        click.option(
            "--identity-tags",
            metavar="TAG,...",
            help="Tags that address one person as an alias does: string tags such as vip, beginnings such as user:*,"
            " number tags such as 7 and ranges such as 30000..32767. `none` removes them.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def identity_change(options: dict[str, Any]) -> IdentityChange | None:
    """Take these options out of a command's; return the change, None if none was given. BadParameter: no public key."""
    mode, files, tags = (options.pop(name) for name in _OPTIONS)
    if mode is None and not files and tags is None:
        return None
    return IdentityChange(
        mode=None if mode is None else MODES[mode],
        keys=_keys(files) if files else None,
        tags=None if tags is None else IdentityTags(tags=_listed(tags)),
    )


def _keys(files: Sequence[str]) -> IdentityKeys:
    given = [file for file in files if file.strip() not in _NONE]
    if given and len(given) < len(files):
        raise _wrong("`none` stands alone: it removes the keys")
    return IdentityKeys(pems=[_read(Path(file)) for file in given])


def _read(path: Path) -> str:
    """Return the PEM text of a public key. It is checked here too, so that a private key never leaves this process."""
    try:
        with path.open("rb") as file:
            text = file.read(4 * MAX_KEY_BYTES).removeprefix(codecs.BOM_UTF8).decode("ascii")
        public_key(text, str(path))
    except OSError as error:
        raise _wrong(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _wrong(f"{path} is no text in PEM form") from None
    except InputError as error:
        raise _wrong(str(error)) from None
    return text


def _listed(tags: str) -> list[str]:
    return [] if tags.strip() in _NONE else [tag.strip() for tag in tags.split(",")]


def _wrong(text: str) -> click.BadParameter:
    return click.BadParameter(text, param_hint="--identity-key")
