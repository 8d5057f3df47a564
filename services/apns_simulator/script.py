"""How the stand-in is asked for a certain answer: by the first letters of the device token."""

from enum import Enum
from typing import NamedTuple

from services.delivery.apns.reasons import REASONS


class Fault(Enum):
    """What a service may do in place of an answer."""

    SILENCE = "no answer to this push, ever"
    RESET = "RST_STREAM: INTERNAL_ERROR"
    REFUSE = "RST_STREAM: REFUSED_STREAM, so nothing was done"
    CUT = "the connection is cut without a word"
    GOODBYE = "GOAWAY that counts this push, which is answered"
    GOODBYE_BEFORE = "GOAWAY that does not count this push"
    HALF_OPEN = "the connection says nothing more, not even to a ping"
    ONE_STREAM = "one stream at a time until the next push that is accepted"


class Scripted(NamedTuple):
    """The answer, or what is done in its place; `once`: only for the first push to the token."""

    status: int = 0
    reason: str = ""
    fault: Fault | None = None
    once: bool = False


def _by_prefix() -> dict[str, Scripted]:
    reasons = sorted(REASONS)
    numbered = {(status, reason): [r for s, r in reasons if s == status].index(reason) for status, reason in reasons}
    table = {f"e{status}{number:02x}": Scripted(status, reason) for (status, reason), number in numbered.items()}
    table |= {"dead": Scripted(410, "Unregistered"), "e410ff": Scripted(410)}
    table |= {f"ee{number:02x}": Scripted(fault=fault) for number, fault in enumerate(Fault, 1)}
    return table | {"c" + prefix[1:]: known._replace(once=True) for prefix, known in table.items() if prefix[0] == "e"}


BY_PREFIX = _by_prefix()
"""A prefix is four or six characters long."""


def scripted(token: str) -> Scripted | None:
    return BY_PREFIX.get(token[:6]) or BY_PREFIX.get(token[:4])


def prefix_of(status: int, reason: str = "", fault: Fault | None = None, once: bool = False) -> str:
    """What a token has to begin with. KeyError: nothing like this can be asked for."""
    wanted = Scripted(status, reason, fault, once)
    for prefix, known in BY_PREFIX.items():
        if known == wanted:
            return prefix
    raise KeyError(wanted)


def table() -> str:
    """For people: prefixes and what follows."""
    return "\n".join(f"  {prefix:8}{_said(known)}" for prefix, known in BY_PREFIX.items() if not known.once)


def _said(known: Scripted) -> str:
    return known.fault.value if known.fault else f"{known.status} {known.reason or 'without a reason'}"
