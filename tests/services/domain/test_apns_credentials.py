"""Opened APNs credentials: cached until the app's record changes."""

from structlog.testing import capture_logs

from protos.registry.v1.apps_pb2 import APNS_ENVIRONMENT_SANDBOX, PLATFORM_IOS, ApnsKey, App
from services.domain.apns_credentials import ApnsCredentials, ApnsCredentialsCache, Environment, seal_key
from services.domain.master_key import MasterKey
from testkit.apns.keys import KEY_ID, TEAM_ID, canaries, pem

KEYS = MasterKey(bytes(32))


def app(text: str | None, keys: MasterKey = KEYS) -> App:
    made = App(appkey="1234567890", platform=PLATFORM_IOS, package="com.example.app")
    if text is not None:
        made.apns.CopyFrom(ApnsKey(key_id=KEY_ID, team_id=TEAM_ID, topic="com.example.other"))
        made.apns.sealed_pem = seal_key(made, text, keys)
        made.apns.environment = APNS_ENVIRONMENT_SANDBOX
    return made


def test_credentials_are_opened_once_per_record_of_the_app() -> None:
    credentials_of = ApnsCredentialsCache(KEYS)
    assert credentials_of(app(None)) is None
    first, second = pem(), pem()
    record = app(first)
    found = credentials_of(record)
    assert found == ApnsCredentials(KEY_ID, TEAM_ID, "com.example.other", first, Environment.SANDBOX)
    assert credentials_of(record) is found
    changed = credentials_of(app(second))
    assert changed is not None
    assert changed.key_pem == second
    assert credentials_of(app(None)) is None


def test_credentials_that_cannot_be_opened_count_as_none_and_are_logged_once() -> None:
    text = pem()
    record = app(text, MasterKey(bytes(31) + b"x"))
    credentials_of = ApnsCredentialsCache(KEYS)
    with capture_logs() as logs:
        assert credentials_of(record) is None
        assert credentials_of(record) is None
    (line,) = logs
    assert (line["log_level"], line["appkey"]) == ("error", record.appkey)
    assert not [word for word in canaries(text) if word.decode() in str(line)]


def test_a_record_of_a_newer_version_sends_to_production() -> None:
    record = app(pem())
    record.apns.environment = 9  # type: ignore[assignment]
    found = ApnsCredentialsCache(KEYS)(record)
    assert found is not None
    assert found.environment is Environment.PRODUCTION
