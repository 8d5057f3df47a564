"""Bodies of POST /v2/push."""

from typing import Any

from protos.registry.v1.apps_pb2 import App


def broadcast(app: App, **more: Any) -> dict[str, Any]:
    """Return the smallest valid body: a push to every device of an Android app."""
    return {
        "sendTo": {"appkey": {"android": app.appkey}, "userScope": 1},
        "msgStyle": {"basic": {"content": "hello", "is_notif": 1}},
        **more,
    }


def push_to(app: App | None, user_scope: int, ios: Any = None, **fields: Any) -> dict[str, Any]:
    """Return a body for an Android app, iOS appkeys or both; `fields` stand in sendTo."""
    appkey = {name: key for name, key in (("android", app and app.appkey), ("ios", ios)) if key}
    return {
        "sendTo": {"appkey": appkey, "userScope": user_scope, **fields},
        "msgStyle": {"basic": {"content": "hello", "is_notif": 1}},
    }
