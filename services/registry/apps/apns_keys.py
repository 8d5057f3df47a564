"""Changes of an iOS app's APNs key. InputError names the wrong field and never contains the key."""

import re

from protos.registry.v1.apps_pb2 import APNS_ENVIRONMENT_PRODUCTION, PLATFORM_IOS, ApnsKey, App
from protos.registry.v1.registry_pb2 import ApnsKeyChange
from services.domain.apns.credentials import ENVIRONMENTS, seal_key
from services.domain.master_key import Keys
from services.runtime.errors import InputError

_ID = re.compile(r"[A-Z0-9]{10}")
_TOPIC = re.compile(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")
_TOPIC_LENGTH = 128


def change_apns(app: App, change: ApnsKeyChange, keys: Keys) -> None:
    """Apply the change to the app in place. Fields that the change does not name stay."""
    if app.platform != PLATFORM_IOS:
        raise InputError(f"app {app.appkey} is no iOS app: only iOS apps have APNs keys")
    if change.remove:
        if change != ApnsKeyChange(remove=True):
            raise InputError("an APNs key is removed whole: name no other field of it")
        app.ClearField("apns")
        return
    _check_complete(app, change)
    apns = app.apns
    if change.HasField("key_id"):
        apns.key_id = _checked_id("key id", change.key_id)
    if change.HasField("team_id"):
        apns.team_id = _checked_id("team id", change.team_id)
    _set_topic_and_environment(app, apns, change)
    if change.HasField("pem"):
        apns.sealed_pem = seal_key(app, change.pem, keys)


def _check_complete(app: App, change: ApnsKeyChange) -> None:
    """Check that the first change of an app sets everything without a default."""
    set_fields = {
        "the key": change.HasField("pem"),
        "its key id": change.HasField("key_id"),
        "the team id": change.HasField("team_id"),
    }
    missing = [name for name, is_set in set_fields.items() if not is_set]
    if missing and not app.HasField("apns"):
        raise InputError(f"app {app.appkey} has no APNs key yet; at first give {', '.join(missing)} too")


def _set_topic_and_environment(app: App, apns: ApnsKey, change: ApnsKeyChange) -> None:
    """Set what the key is used for: Apple's topic and environment."""
    if change.HasField("topic") or not apns.topic:
        apns.topic = _checked_topic(change.topic if change.HasField("topic") else app.package)
    if change.HasField("environment"):
        if change.environment not in ENVIRONMENTS:
            raise InputError("the APNs environment must be production, sandbox or both")
        apns.environment = change.environment
    elif not apns.environment:
        apns.environment = APNS_ENVIRONMENT_PRODUCTION


def _checked_id(name: str, given: str) -> str:
    if not _ID.fullmatch(given):
        raise InputError(f"the APNs {name} must have 10 capital letters and digits, as Apple shows it")
    return given


def _checked_topic(topic: str) -> str:
    if len(topic) > _TOPIC_LENGTH or not _TOPIC.fullmatch(topic):
        raise InputError(
            f"the APNs topic must be a bundle id of at most {_TOPIC_LENGTH} characters, like com.example.app"
        )
    return topic
