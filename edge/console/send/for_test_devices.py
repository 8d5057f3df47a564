"""A push to the test devices of a team alone, in place of its audience."""

from collections.abc import Sequence

import msgspec

from edge.console.send.composed_pushes import ComposedPush
from edge.console.send.request_from_form import Body
from protos.accounts.v1.accounts_pb2 import TeamDevice

_TIMES = ("timed", "send_time", "send_time_interval")


def for_test_devices(composed: ComposedPush, devices: Sequence[TeamDevice]) -> Body:
    """Return the request for the same message to these devices, at once. Each belongs to an app of the push."""
    body: Body = msgspec.json.decode(composed.text)
    apps = composed.order.apps
    android = [device.token for device in devices if apps.android and device.appkey == apps.android.appkey]
    ios = [device.token for device in devices if apps.ios and device.appkey == apps.ios[0].appkey]
    tokens = {platform: found for platform, found in (("android", android), ("ios", ios)) if found}
    body["sendTo"] = {"appkey": body["sendTo"]["appkey"], "userScope": 5, "token": tokens}
    return _without_times(body)


def at_once(text: str) -> str:
    """Return the text of a request without the time of sending. A text that is no request stays as it is."""
    try:
        body = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return msgspec.json.encode(_without_times(body)).decode() if isinstance(body, dict) else text


def _without_times(body: Body) -> Body:
    option = body.get("option")
    if isinstance(option, dict):
        body["option"] = {name: value for name, value in option.items() if name not in _TIMES}
    return body
