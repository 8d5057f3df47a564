"""The definitions of the roles behind edge and gateway, which run in a world as they are."""

from collections.abc import Mapping
from typing import Any

import services.delivery.main
import services.registry.main
import services.scheduling.main
import services.targeting.main
from services.domain.role import RoleDefinition

STATEFUL_ROLES: Mapping[str, RoleDefinition[Any]] = {
    "registry": services.registry.main.ROLE,
    "targeting": services.targeting.main.ROLE,
    "scheduling": services.scheduling.main.ROLE,
    "delivery": services.delivery.main.ROLE,
}
