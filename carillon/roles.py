"""The table of all roles."""

import contextlib
import importlib
from typing import Any

from services.domain.role import RoleDefinition
from services.runtime.errors import CarillonError
from services.runtime.process.extras import EMBEDDED_PACKAGES, missing_package

ROLES = {
    "registry": "services.registry.main",
    "accounts": "services.accounts.main",
    "targeting": "services.targeting.main",
    "delivery": "services.delivery.main",
    "scheduling": "services.scheduling.main",
    "analytics": "analytics.main",
    "gateway": "services.gateway.main",
    "edge": "edge.main",
    "console": "edge.console.main",
}
"""Module of each role's definition, in starting order: back ends before the roles that accept requests."""


def role_definition(role: str) -> RoleDefinition[Any]:
    """Import the role's main module and return its definition.

    CarillonError: the role needs a package of the extra `embedded`, which is not installed.
    """
    try:
        definition: RoleDefinition[Any] = importlib.import_module(ROLES[role]).ROLE
    except ModuleNotFoundError as error:
        if error.name not in EMBEDDED_PACKAGES:
            raise
        raise CarillonError(missing_package(f"the role {role}", error.name)) from None
    return definition


def replayable_roles() -> list[str]:
    """Return the roles whose state can be rebuilt from the log by this installation; imports every role."""
    roles = []
    for role in ROLES:
        with contextlib.suppress(CarillonError):
            if role_definition(role).replay is not None:
                roles.append(role)
    return roles
