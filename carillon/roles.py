"""The table of all roles."""

import importlib
from typing import Any

from services.domain.role import RoleDefinition
from services.errors import CarillonError
from services.process.build import EMBEDDED_PACKAGES, missing_package

ROLES = {
    "registry": "services.registry.main",
    "accounts": "services.accounts.main",
    "targeting": "services.targeting.main",
    "delivery": "services.delivery.main",
    "scheduling": "services.scheduling.main",
    "webhooks": "services.webhooks.main",
    "analytics": "analytics.main",
    "gateway": "services.gateway.main",
    "edge": "edge.main",
    "console": "console.main",
}
"""Module of each role's definition, in starting order: back ends before the roles that accept requests."""

REPLAYABLE = ("registry", "accounts", "targeting", "delivery", "scheduling", "analytics")
"""The roles with a state, which can be rebuilt from the log."""


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
