"""The environment variables from which commands read settings, checked for unknown names."""

import difflib
import importlib
import re
from collections.abc import Collection, Mapping

import msgspec

from carillon.roles import ROLES
from services.domain import settings
from services.domain.role_context import DEFAULT_ADDRESSES
from services.domain.settings import PREFIX, Settings, SettingsError

_OF_TESTS = (f"{PREFIX}TEST_", f"{PREFIX}CRASH_AT")
"""Beginnings of names that only the tests read."""

TOKEN = f"{PREFIX}API_TOKEN"
TOKEN_FILE = f"{PREFIX}API_TOKEN_FILE"
"""Variables of commands that call a console elsewhere: an API token, or the path of a file with one."""

_OF_COMMANDS = {f"{PREFIX}APP_SECRET", TOKEN, TOKEN_FILE}
"""Variables of commands that are no settings of a role; `carillon sign` and `carillon send` read the first one."""

_SERVICE_LINK = re.compile(r".*(_SERVICE_HOST|_SERVICE_PORT(_\w+)?|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
"""Names that Kubernetes gives to the containers of a namespace with a service whose name begins with `carillon`."""


def environment() -> dict[str, str]:
    """Return the process's environment, completed from a .env file.

    SettingsError: a CARILLON_ variable is no setting of any role; the text names the nearest setting.
    """
    env = settings.environment()
    check_names(env)
    return env


def check_names(env: Mapping[str, str]) -> None:
    """Raise the SettingsError of `environment`. Settings of roles are imported only while names are unknown."""
    known = _names(Settings) | _OF_COMMANDS | {f"{PREFIX}{role.upper()}_ADDR" for role in DEFAULT_ADDRESSES}
    unknown = {name for name, value in env.items() if name.startswith(PREFIX) and not _is_foreign(name, value)} - known
    for module in ROLES.values():
        if not unknown:
            return
        known |= _names_of_role(module)
        unknown -= known
    if unknown:
        raise SettingsError("; ".join(f"{name} is no setting: {_advice(name, known)}" for name in sorted(unknown)))


def _names(kind: type[Settings]) -> set[str]:
    return {PREFIX + field.name.upper() for field in msgspec.structs.fields(kind)}


def _names_of_role(main_module: str) -> set[str]:
    """Return the settings of a role, whose types are in the module `settings` beside its main module."""
    module = importlib.import_module(f"{main_module.rpartition('.')[0]}.settings")
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Settings)]
    return set().union(*map(_names, kinds))


def _is_foreign(name: str, value: str) -> bool:
    """Return whether the variable belongs to the tests or to Kubernetes, so it is no misspelt setting."""
    is_link = _SERVICE_LINK.fullmatch(name) or (name.endswith("_PORT") and value.startswith(("tcp://", "udp://")))
    return name.startswith(_OF_TESTS) or bool(is_link)


def _advice(name: str, known: Collection[str]) -> str:
    (nearest,) = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0)
    return f"use {nearest}, or take it out of the environment and the .env file"
