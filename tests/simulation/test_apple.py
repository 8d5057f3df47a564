"""Worlds with iOS devices: Apple's service has faults, and wrong handling of its answers is found."""

from collections.abc import Callable

import pytest

from services.delivery.channels.apns import responses
from services.delivery.channels.apns.request import ApnsResult
from services.delivery.channels.apns.responses import ApnsHandling, ResponseAction, handling_of
from tests.simulation.kernel.faults import Fault
from tests.simulation.kernel.running import run_world
from tests.simulation.model.apple import invalid_tokens, is_accepted
from tests.simulation.world.plan import STATEFUL, Plan
from tests.simulation.world.run import InstallationWorld

PLAN = Plan(
    partitions=2,
    processes=dict.fromkeys((*STATEFUL, "gateway", "edge"), 1),
    devices=2,
    rate=5.0,
    load_s=15.0,
    snapshot_s=20,
    has_ios=True,
)
SEEDS = range(30)
FAULTS = [
    Fault(2, "apple_fails", amount=5),
    Fault(4, "apple_closes"),
    Fault(6, "apple_away", amount=8),
    Fault(8, "apple_loses"),
]


def test_the_expected_outcome_of_a_token_is_what_apple_documents() -> None:
    assert is_accepted("00" * 32)
    assert not is_accepted("dead" * 16)
    refused = {"a": "Unregistered", "b": "DeviceTokenNotForTopic", "c": "BadDeviceToken", "d": "ExpiredToken"}
    assert invalid_tokens(refused) == {"a", "d"}


def instead(action: ResponseAction, *, of: ResponseAction) -> Callable[[ApnsResult], ApnsHandling]:
    """Return a wrong handling of Apple's answers, which takes one action in place of another."""

    def handling(result: ApnsResult) -> ApnsHandling:
        right = handling_of(result)
        return right._replace(action=action) if right.action is of else right

    return handling


WRONG = {
    "an invalid token is kept": instead(ResponseAction.FAIL, of=ResponseAction.REMOVE),
    "a refused push counts as sent": instead(ResponseAction.ACCEPT, of=ResponseAction.FAIL),
    "a token is removed because of its topic": instead(ResponseAction.REMOVE, of=ResponseAction.FAIL),
    "a throttled push fails": instead(ResponseAction.FAIL, of=ResponseAction.DELAY_DEVICE),
    "a push without an answer fails": instead(ResponseAction.FAIL, of=ResponseAction.REPEAT),
    "a push that Apple could not take fails": instead(ResponseAction.FAIL, of=ResponseAction.BACK_OFF),
}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_service_that_handles_an_answer_wrongly_is_found(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    right = run_world(InstallationWorld(PLAN), SEEDS[0], FAULTS)
    assert not right.findings
    assert right.counts["APNs"] > right.counts["sent to APNs"] > 0
    monkeypatch.setattr(responses, "handling_of", WRONG[wrong])
    found = (run_world(InstallationWorld(PLAN), seed, FAULTS).findings for seed in SEEDS)
    assert any(any(finding.startswith(("apple: ", "pending: ", "shown: ")) for finding in each) for each in found)
