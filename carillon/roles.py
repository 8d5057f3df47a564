"""The table of all roles."""

import importlib
from typing import Any

from services.domain.role import RoleDefinition

ROLES = {
    "registry": "services.registry.main",
    "targeting": "services.targeting.main",
    "delivery": "services.delivery.main",
    "scheduling": "services.scheduling.main",
    "analytics": "analytics.main",
    "gateway": "services.gateway.main",
    "edge": "edge.main",
}
"""Module of each role's definition, in starting order: back ends before the roles that accept requests."""


def role_definition(role: str) -> RoleDefinition[Any]:
    """Import the role's main module and return its definition."""
    definition: RoleDefinition[Any] = importlib.import_module(ROLES[role]).ROLE
    return definition


def replayable_roles() -> list[str]:
    """Return the roles whose state can be rebuilt from the log; imports every role."""
    return [role for role in ROLES if role_definition(role).replay is not None]
