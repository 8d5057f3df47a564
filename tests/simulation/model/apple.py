"""Checks of iOS devices: the outcome that each message must have by Apple's documented answer."""

from collections.abc import Collection, Iterator, Mapping

from services.apns_simulator.script import scripted_answer
from tests.soak.checks import Observations, Violation
from tests.soak.history import DeviceNumber

_INVALIDATING = frozenset({"Unregistered", "ExpiredToken"})
"""Apple's reasons after which a token is invalid; others concern the push, the app, or the token after a day alone."""

Reasons = Mapping[tuple[int, DeviceNumber], Collection[str]]
"""The reasons with which messages failed on devices, by message id."""


def is_accepted(token: str) -> bool:
    """Return whether Apple accepts pushes to the token, at the first time or at a repetition."""
    answer = scripted_answer(token)
    return answer is None or answer.once


def ios_outcomes(observed: Observations, appkey: str, reasons: Reasons) -> Iterator[Violation]:
    """Check that messages that live long were sent to accepted tokens, and failed with Apple's reason on others."""
    history = observed.history
    for first, sent in history.sent.items():
        if sent.send.appkey != appkey or not observed.must_be_shown(first):
            continue
        for msgid, number in history.audience(first):
            token = history.devices[appkey, number].token
            found = sorted(kind for kind in ("sent", "failed") if history.outcome(kind, msgid, number))
            answer = scripted_answer(token)
            if found != (["sent"] if is_accepted(token) else ["failed"]):
                yield Violation("apple", f"the outcomes on the device with token {token[:8]} are {found}", (msgid,))
            elif answer is not None and not is_accepted(token):
                wrong = set(reasons[msgid, number]) - {answer.reason, "removed"}
                if wrong:
                    text = f"the device with token {token[:8]} failed with {wrong}, not {answer.reason}"
                    yield Violation("apple", text, (msgid,))


def invalid_tokens(refused: Mapping[str, str]) -> set[str]:
    """Return the tokens that have to be listed as invalid after these refusals, given by token with Apple's reason."""
    return {token for token, reason in refused.items() if reason in _INVALIDATING}
