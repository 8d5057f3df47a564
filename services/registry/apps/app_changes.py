"""Descriptions of changes to an app's settings, without its secrets."""

from datetime import UTC, datetime

from protos.registry.v1.apps_pb2 import ApnsEnvironment, App, Quotas
from services.domain.identity import identity_mode_name, key_ids


def settings_changed(before: App, after: App) -> list[str]:
    """Return a line for each changed setting, such as `default_period_s 3600`."""
    old, new = _settings(before), _settings(after)
    changed = [f"{name} {value}" for name, value in new.items() if value != old[name]]
    return changed + _key_file_change(before, after)


def secret_kept(app: App) -> list[str]:
    """Return a line for the rotation of a secret whose former one stays valid for a while."""
    return [f"old_secret {_old_secret(app)}"] if app.old_sealed_secret else []


def _old_secret(app: App) -> str:
    if not app.old_sealed_secret:
        return "none"
    until = datetime.fromtimestamp(app.old_secret_until_ms / 1000, UTC)
    return f"valid until {until.isoformat(sep=' ', timespec='seconds')}"


def _settings(app: App) -> dict[str, str]:
    apns = app.apns
    environment = ApnsEnvironment.Name(apns.environment).removeprefix("APNS_ENVIRONMENT_").lower()
    return {
        "name": app.name,
        "ack_info": "on" if app.ack_info_enabled else "off",
        "default_period_s": str(app.default_period_s),
        "apns_key": f"{apns.key_id} of {apns.team_id}" if app.HasField("apns") else "none",
        "apns_topic": apns.topic or "none",
        "apns_environment": environment if app.HasField("apns") else "none",
        "allow_from": ",".join(app.allow_from) or "everywhere",
        "identity": identity_mode_name(app),
        "identity_keys": ",".join(key_ids(app)) or "none",
        "identity_tags": ",".join(app.identity.tags) or "none",
        "replay_safe": "required" if app.replay_safe_required else "optional",
        "old_secret": _old_secret(app),
        **{name: str(getattr(app.quotas, name) or "off") for name in Quotas.DESCRIPTOR.fields_by_name},
        **({} if app.quotas.HasField("registrations_per_minute") else {"registrations_per_minute": "default"}),
    }


def _key_file_change(before: App, after: App) -> list[str]:
    is_new = after.HasField("apns") and after.apns.sealed_pem != before.apns.sealed_pem
    return ["a new APNs key file"] if is_new else []
