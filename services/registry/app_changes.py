"""What changed about an app, told without its secrets."""

from protos.registry.v1.apps_pb2 import ApnsEnvironment, App


def settings_changed(before: App, after: App) -> list[str]:
    """A line for each setting that is otherwise now, such as `default_period_s 3600`."""
    known, told = _told(before), _told(after)
    return [f"{name} {value}" for name, value in told.items() if value != known[name]] + _resealed(before, after)


def _told(app: App) -> dict[str, str]:
    apns = app.apns
    environment = ApnsEnvironment.Name(apns.environment).removeprefix("APNS_ENVIRONMENT_").lower()
    return {
        "name": app.name,
        "ack_info": "on" if app.ack_info_enabled else "off",
        "default_period_s": str(app.default_period_s),
        "apns_key": f"{apns.key_id} of {apns.team_id}" if app.HasField("apns") else "none",
        "apns_topic": apns.topic or "none",
        "apns_environment": environment if app.HasField("apns") else "none",
    }


def _resealed(before: App, after: App) -> list[str]:
    is_new = after.HasField("apns") and after.apns.sealed_pem != before.apns.sealed_pem
    return ["a new APNs key file"] if is_new else []
