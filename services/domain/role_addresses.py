"""Addresses of the roles that others call, from the settings CARILLON_<ROLE>_ADDR."""

from collections.abc import Mapping

from services.runtime.process.settings import addresses

DEFAULT_ADDRESSES = {
    "registry": "127.0.0.1:7401",
    "targeting": "127.0.0.1:7402",
    "scheduling": "127.0.0.1:7403",
    "delivery": "127.0.0.1:7404",
    "analytics": "127.0.0.1:7405",
    "accounts": "127.0.0.1:7406",
}
"""Default addresses of the roles that others call; CARILLON_<ROLE>_ADDR overrides them."""

ROLES_WITH_STANDBYS = frozenset({"registry", "scheduling", "targeting", "delivery"})
"""Roles of which several processes may have the same shard: one owns it, the others stand by."""

_REGISTRY = "/protos.registry.v1.RegistryService"
HAZARDOUS = frozenset(
    {
        "/protos.targeting.v1.TargetingService/Resolve",
        f"{_REGISTRY}/CreateApp",
        f"{_REGISTRY}/RotateSecret",
        f"{_REGISTRY}/TakeBroadcasts",
        f"{_REGISTRY}/RevokeDeviceKey",
        f"{_REGISTRY}/RevokeAppKeys",
    }
)
"""Methods that are not repeated after a call that may have been carried out; the caller decides. A repeated call of the
registry would take effect a second time: create another app, for example. Delivery counts the attempts to resolve an
audience, because the audience itself may have made the owner crash."""


def role_addresses(role: str, env: Mapping[str, str]) -> list[str]:
    """Return the addresses of the role's instances, in order."""
    return addresses(role, env) or [DEFAULT_ADDRESSES[role]]
