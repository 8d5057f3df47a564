"""Provider tokens: issue, renewal and validation by Apple's rules."""

import base64
import json

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from services.apns_simulator.keys import AppleKeys, new_key, public_key
from services.delivery.channels.apns.provider_tokens import InvalidKeyError, ProviderToken
from services.delivery.channels.apns.request import ApnsResult
from services.domain.apns_credentials import ApnsCredentials
from services.process.clock import ManualClock
from testkit.delivery.apns import Team, make_push, running_simulator, send, send_for_statuses, submit
from testkit.waiting import until_holds

NOW_MS = 1_800_000_420_000
MINUTE_S = 60
CREDENTIALS = ApnsCredentials("KEY1234567", "TEAM123456", "org.example.app", new_key())


def registered_keys() -> AppleKeys:
    keys = AppleKeys()
    keys.register(CREDENTIALS.team_id, CREDENTIALS.key_id, public_key(CREDENTIALS.key_pem))
    return keys


def claims(token: str) -> dict[str, object]:
    body = token.split(".")[1]
    return dict(json.loads(base64.urlsafe_b64decode(body + "==")))


def test_a_token_names_team_key_and_time_of_issue() -> None:
    clock = ManualClock(NOW_MS)
    token = ProviderToken(CREDENTIALS, clock).text()
    header, _, _ = token.split(".")
    assert json.loads(base64.urlsafe_b64decode(header + "==")) == {"alg": "ES256", "kid": "KEY1234567"}
    assert claims(token)["iss"] == "TEAM123456"
    assert NOW_MS // 1000 - 35 * 60 <= int(str(claims(token)["iat"])) <= NOW_MS // 1000 - 5 * 60
    assert registered_keys().refusal(f"bearer {token}", NOW_MS) is None


@given(st.integers(0, 7200), st.lists(st.integers(1, 3600), max_size=40))
def test_apple_accepts_every_token_at_any_time_of_start(start_s: int, steps: list[int]) -> None:
    clock = ManualClock(NOW_MS + start_s * 1000)
    provider_token, keys = ProviderToken(CREDENTIALS, clock), registered_keys()
    for seconds in steps:
        clock.move(seconds)
        assert keys.refusal(f"bearer {provider_token.text()}", clock.now_ms()) is None


def test_processes_with_the_same_key_use_the_same_token() -> None:
    clock = ManualClock(NOW_MS)
    first = ProviderToken(CREDENTIALS, clock)
    texts = set()
    for _ in range(10):
        texts.add(first.text())
        texts.add(ProviderToken(CREDENTIALS, clock).text())
        clock.move(MINUTE_S)
    assert len(texts) == 1


@given(
    st.integers(0, 7200),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 7200)), max_size=40),
)
def test_apple_accepts_every_token_of_several_processes_or_the_one_that_follows(
    start_s: int, sends: list[tuple[int, int]]
) -> None:
    """Where one process sends for the first time after another one has just begun to use the scheduled token before."""
    clock, keys = ManualClock(NOW_MS + start_s * 1000), registered_keys()
    processes = [ProviderToken(CREDENTIALS, clock) for _ in range(3)]
    for index, seconds in sends:
        clock.move(seconds)
        refused = processes[index].text()
        refusal = keys.refusal(f"bearer {refused}", clock.now_ms())
        if refusal is not None:
            assert refusal == (429, "TooManyProviderTokenUpdates")
            for _ in range(2):  # several pushes were sent with it
                processes[index].hold(refused)
            assert keys.refusal(f"bearer {processes[index].text()}", clock.now_ms()) is None


def test_an_expired_token_is_renewed_at_most_every_twenty_minutes() -> None:
    clock = ManualClock(NOW_MS)
    provider_token = ProviderToken(CREDENTIALS, clock)
    old = provider_token.text()
    assert provider_token.renew(old)
    new = provider_token.text()
    assert new != old
    assert provider_token.renew(old)
    assert provider_token.text() == new
    assert not provider_token.renew(new)
    clock.move(20 * MINUTE_S)
    assert provider_token.renew(new)


def test_after_too_many_changes_the_previous_token_is_used_and_none_is_issued() -> None:
    clock = ManualClock(NOW_MS)
    provider_token = ProviderToken(CREDENTIALS, clock)
    old = provider_token.text()
    provider_token.renew(old)
    new = provider_token.text()
    for _ in range(2):  # several pushes were sent with it
        provider_token.hold(new)
        assert provider_token.text() == old
    assert not provider_token.renew(old)
    clock.move(29 * MINUTE_S)
    assert provider_token.text() not in (old, new)


@pytest.mark.parametrize("key", ["", "no key", "public", "rsa", "p384"])
def test_an_invalid_key_is_refused_and_never_quoted(key: str) -> None:
    key_object: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | None = None
    if key == "public":
        key = public_key(CREDENTIALS.key_pem)
    elif key == "rsa":
        key_object = rsa.generate_private_key(65537, 2048)
    elif key == "p384":
        key_object = ec.generate_private_key(ec.SECP384R1())
    if key_object:
        form = serialization.PrivateFormat.PKCS8
        key = key_object.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
    with pytest.raises(InvalidKeyError) as caught:
        ProviderToken(ApnsCredentials("K", "T", "org.example", key), ManualClock(NOW_MS))
    assert len(key) < 20 or key not in str(caught.value)
    assert CREDENTIALS.key_pem not in repr(CREDENTIALS)


def test_the_simulator_refuses_tokens_not_signed_by_a_registered_key() -> None:
    clock = ManualClock(NOW_MS)
    keys, good = registered_keys(), ProviderToken(CREDENTIALS, clock).text()
    head, body, signature = good.split(".")
    other_signature = ProviderToken(ApnsCredentials("KEY1234567", "TEAM123456", "x", new_key()), clock).text()
    unknown_key = ProviderToken(ApnsCredentials("OTHER", "TEAM123456", "x", CREDENTIALS.key_pem), clock).text()
    for bad in (
        other_signature,
        unknown_key,
        f"{head}.{body}",
        f"{head}.{body}.{signature[:-4]}",
        "",
        "a.b.c",
        f"{good}x",
    ):
        assert keys.refusal(f"bearer {bad}", NOW_MS) == (403, "InvalidProviderToken")
    assert keys.refusal(None, NOW_MS) == (403, "MissingProviderToken")
    assert keys.refusal(f"Basic {good}", NOW_MS) == (403, "InvalidProviderToken")
    assert keys.refusal(f"bearer {good}", NOW_MS + 3_600_001) == (403, "ExpiredProviderToken")
    assert keys.refusal(f"bearer {good}", NOW_MS - 3_600_000) == (403, "InvalidProviderToken")


async def test_the_sender_renews_an_expired_token_and_returns_to_the_previous_one() -> None:
    """The sender's clock is 58 minutes behind Apple's; later it changes tokens too fast."""
    clock = ManualClock(NOW_MS)
    async with running_simulator(ManualClock(NOW_MS + 58 * 60_000)) as simulator:
        team = Team(clock)
        team.register_key(simulator)
        sender = team.sender(simulator.url, simulator.authority)
        assert await send(sender, make_push()) == [ApnsResult(403, "ExpiredProviderToken")]
        assert await send_for_statuses(sender, make_push()) == [200]
        used = team.provider_token.text()
        clock.move(31 * MINUTE_S)
        assert team.provider_token.text() != used
        assert await send(sender, make_push()) == [ApnsResult(429, "TooManyProviderTokenUpdates")]
        assert team.provider_token.text() == used
        (waiting,) = submit(sender, make_push())
        await until_holds(lambda: not simulator.connections)
        clock.move(1)
        assert await waiting.result == ApnsResult(200)
        await sender.close()
