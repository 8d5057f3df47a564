"""The simulator's behaviour: settings, and scripted answers, which the first characters of a device token select."""

from dataclasses import dataclass
from typing import NamedTuple

from services.domain.apns_payload import MAX_PAYLOAD_BYTES
from services.push_simulator.connection import ConnectionBehaviour, Fault

# Configurable behaviour of the simulator.


@dataclass(frozen=True, slots=True)
class Behaviour(ConnectionBehaviour):
    """Behaviour of the connections. `topics` are the bundle ids that exist (empty: all)."""

    topics: frozenset[str] = frozenset()
    kept_bytes: int = MAX_PAYLOAD_BYTES + 1


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
