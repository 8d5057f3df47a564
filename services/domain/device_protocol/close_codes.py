"""Close codes of the devices' WebSocket connections: those of goodbyes, and those that may be sent at all."""

from services.domain.device_protocol.answers import GoodbyeReason

CLOSE_CODES: dict[GoodbyeReason, int] = {
    "draining": 1012,
    "replaced": 1000,
    "unauthorized": 1008,
    "protocol": 1002,
    "idle": 1001,
}
_DEFINED_CODES = frozenset([*range(1000, 1004), *range(1007, 1015)])
"""Close codes below 3000 that may be sent: RFC 6455, and 1012 to 1014, which were registered later."""

_PRIVATE_CODES = range(3000, 5000)


def may_be_sent(code: int) -> bool:
    """Return whether an endpoint may send this close code (RFC 6455, 7.4)."""
    return code in _DEFINED_CODES or code in _PRIVATE_CODES
