"""The simulator's behaviour: settings, and scripted answers, which the first characters of a device token select."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

# Configurable behaviour of the simulator.


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Limits and latency of the simulator's connections.

    A connection allows `first_streams` concurrent streams until one push had a valid provider token, then `streams`.
    `latency_ms` delays every response. `window` is the initial flow-control window of a stream in bytes. After
    `goaway_every` pushes a connection sends GOAWAY (0: never). `topics` are the bundle ids that exist (empty: all).
    """

    streams: int = 1000
    first_streams: int = 1
    latency_ms: int = 0
    window: int = 65_535
    goaway_every: int = 0
    topics: frozenset[str] = frozenset()


# Apple's documented refusals of a push: (HTTP status, reason).
#
# Source: "Handling notification responses from APNs" in Apple's developer documentation.

APPLE_REASONS: frozenset[tuple[int, str]] = frozenset(
    (
        (400, "BadCollapseId"),
        (400, "BadDeviceToken"),
        (400, "BadExpirationDate"),
        (400, "BadMessageId"),
        (400, "BadPriority"),
        (400, "BadTopic"),
        (400, "DeviceTokenNotForTopic"),
        (400, "DuplicateHeaders"),
        (400, "IdleTimeout"),
        (400, "InvalidPushType"),
        (400, "MissingDeviceToken"),
        (400, "MissingTopic"),
        (400, "PayloadEmpty"),
        (400, "TopicDisallowed"),
        (403, "BadCertificate"),
        (403, "BadCertificateEnvironment"),
        (403, "BadEnvironmentKeyIdInToken"),
        (403, "BadEnvironmentKeyInToken"),
        (403, "ExpiredProviderToken"),
        (403, "Forbidden"),
        (403, "InvalidProviderToken"),
        (403, "MissingProviderToken"),
        (403, "UnrelatedKeyIdInToken"),
        (404, "BadPath"),
        (405, "MethodNotAllowed"),
        (410, "ExpiredToken"),
        (410, "Unregistered"),
        (413, "PayloadTooLarge"),
        (429, "TooManyProviderTokenUpdates"),
        (429, "TooManyRequests"),
        (500, "InternalServerError"),
        (503, "ServiceUnavailable"),
        (503, "Shutdown"),
    )
)


class Fault(Enum):
    """Misbehaviour of the server in addition to, or in place of, an answer."""

    SILENCE = "no answer to this push, ever"
    RESET = "RST_STREAM with INTERNAL_ERROR"
    REFUSE = "RST_STREAM with REFUSED_STREAM: the push was not processed"
    CUT = "the TCP connection is aborted"
    GOAWAY = "GOAWAY that includes this push, which is answered"
    GOAWAY_BEFORE = "GOAWAY that excludes this push"
    HALF_OPEN = "the connection sends nothing more, not even ping acknowledgements"
    ONE_STREAM = "one concurrent stream until the next push is accepted"


class ScriptedAnswer(NamedTuple):
    """A refusal, or a fault; `once`: only for the first push to the token."""

    status: int = 0
    reason: str = ""
    fault: Fault | None = None
    once: bool = False


def _by_prefix() -> dict[str, ScriptedAnswer]:
    reasons = sorted(APPLE_REASONS)
    numbered = {(status, reason): [r for s, r in reasons if s == status].index(reason) for status, reason in reasons}
    answers = {
        f"e{status}{number:02x}": ScriptedAnswer(status, reason) for (status, reason), number in numbered.items()
    }
    answers |= {"dead": ScriptedAnswer(410, "Unregistered"), "e410ff": ScriptedAnswer(410)}
    answers |= {f"ee{number:02x}": ScriptedAnswer(fault=fault) for number, fault in enumerate(Fault, 1)}
    once = {"c" + prefix[1:]: answer._replace(once=True) for prefix, answer in answers.items() if prefix[0] == "e"}
    return answers | once


BY_PREFIX = _by_prefix()
"""Scripted answers by token prefix of four or six characters."""


def scripted_answer(token: str) -> ScriptedAnswer | None:
    return BY_PREFIX.get(token[:6]) or BY_PREFIX.get(token[:4])


def script_table() -> str:
    """Return the prefixes and their answers as text for `--help`."""
    return "\n".join(f"  {prefix:8}{_described(answer)}" for prefix, answer in BY_PREFIX.items() if not answer.once)


def _described(answer: ScriptedAnswer) -> str:
    return answer.fault.value if answer.fault else f"{answer.status} {answer.reason or 'without a reason'}"
