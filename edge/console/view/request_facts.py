"""What the request of a push says beside its content."""

from collections.abc import Callable
from typing import NamedTuple

from edge.console.send.composed_pushes import ComposedPush
from edge.console.view.message_preview import previews
from protos.push.v1.push_pb2 import Audience
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID


class RequestFacts(NamedTuple):
    """The push of one app in a request. `qps` 0: as fast as possible. `click`: what a click does; "" where unknown."""

    audience: Audience
    period_s: int
    qps: int
    click: str


def request_facts(composed: ComposedPush, appkey: str, gettext: Callable[[str], str]) -> RequestFacts | None:
    """Return the facts of the app's push; None if the request sends none to it."""
    push = next((push for push in composed.order.pushes if push.app.appkey == appkey), None)
    if push is None:
        return None
    is_android = push.app.platform == PLATFORM_ANDROID
    clicks = (preview.effect for preview in previews(composed, gettext) if preview.is_android == is_android)
    return RequestFacts(push.audience, push.period_s, push.qps, next(clicks, ""))
