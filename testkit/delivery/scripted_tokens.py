"""Device tokens whose prefix selects the answer of the APNs simulator to their pushes."""

from services.apns_simulator.script import BY_PREFIX, ScriptedAnswer
from services.push_simulator.connection import Fault


def prefix_of(status: int, reason: str = "", fault: Fault | None = None, once: bool = False) -> str:
    """Return the token prefix that selects an answer. StopIteration: no prefix selects it."""
    wanted = ScriptedAnswer(status, reason, fault, once)
    return next(prefix for prefix, answer in BY_PREFIX.items() if answer == wanted)


def token_with(prefix: str, number: int = 0) -> str:
    """Return a device token with a prefix that selects one of the simulator's answers."""
    return f"{prefix}{number:0{64 - len(prefix)}x}"
