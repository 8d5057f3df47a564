"""The teams' app servers: they send signed requests to the three interfaces."""

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from demo.content import Text
from demo.moved_clock import NOT_KEPT
from demo.organisation import Installed
from demo.population import DemoDevice
from services.errors import CarillonError
from testkit.installation.app_server import AppServer

_PERIOD_S = 86_400
_MOST_AT_ONCE = 500
_PAUSED = 403
_MORE_ATTEMPTS = 2
Body = dict[str, Any]


class AppServers:
    """The app servers of all teams. Every method raises CarillonError when a request is refused."""

    def __init__(self, v2_url: str, android_url: str, ios_url: str, installed: Installed) -> None:
        self._v2, self._android, self._ios = AppServer(v2_url), AppServer(android_url), AppServer(ios_url)
        self._installed = installed
        self._numbers = itertools.count()

    async def push(
        self, text: Text, apps: Sequence[str], send_to: Mapping[str, Any], **option: Any
    ) -> Mapping[str, Any]:
        """Send a notification with the v2 interface. `apps`: one Android app, one iOS app, or both in this order."""
        keys = {"ios" if app.endswith("_ios") else "android": self._installed.appkeys[app] for app in apps}
        style: Body = {"basic": {"content": text.content, "is_notif": 1}}
        if "android" in keys:
            click = {"click_action": 2, "click_param": text.url} if text.url else {"click_action": 1, "click_param": ""}
            style["android"] = {"title": text.title, "sound": True, **click}
        body = {"sendTo": {"appkey": keys, **send_to}, "msgStyle": style, "option": {"period": _PERIOD_S, **option}}
        return await self._push(body, *apps)

    async def pass_through(self, app: str, content: str, send_to: Mapping[str, Any]) -> None:
        """Send a message that the app alone sees."""
        body = {
            "sendTo": {"appkey": {"android": self._installed.appkeys[app]}, **send_to},
            "msgStyle": {"basic": {"content": content, "is_notif": 0}},
        }
        await self._push(body, app)

    async def legacy_android(self, app: str, text: Text, **target: Any) -> Mapping[str, Any]:
        """Send a notification with the legacy Android interface; without a target it is a broadcast."""
        body = {"message": text.content, "title": text.title, "is_notif": 1, "period": _PERIOD_S, **target}
        return await self._legacy(self._android, "POST", app, body)

    async def legacy_ios(self, app: str, text: Text) -> None:
        """Send a broadcast with the legacy iOS interface."""
        await self._legacy(self._ios, "POST", app, {"message": text.content, "badge": 1, "period": _PERIOD_S})

    async def cancel(self, app: str, msgid: int) -> None:
        """Cancel a broadcast or multicast for the devices that have not received it."""
        await self._legacy(self._android, "DELETE", app, {"msgid": msgid})

    async def cancel_task(self, app: str, task_key: str) -> None:
        body = {"appkey": {"android": self._installed.appkeys[app]}, "task_key": task_key}
        _accepted(await self._call(self._v2, "DELETE", "/v2/timed", body, app))

    async def add_stags(self, app: str, devices: Sequence[DemoDevice]) -> None:
        """Give devices their string tags."""
        for first in range(0, len(devices), _MOST_AT_ONCE):
            some = devices[first : first + _MOST_AT_ONCE]
            params = {device.ios_token or device.storage.saved.token: device.stags for device in some}
            body = {"appkey": self._installed.appkeys[app], "action": "stag", "params": params}
            _accepted(await self._call(self._v2, "POST", "/v2/device", body, app))

    async def close(self) -> None:
        for server in (self._v2, self._android, self._ios):
            await server.close()

    async def _push(self, body: Body, *apps: str) -> Mapping[str, Any]:
        """Send a push, which is refused while its app is paused."""
        answer = await self._call(self._v2, "POST", "/v2/push", body, *apps)
        return answer if answer["result"] == _PAUSED else _accepted(answer)

    async def _legacy(self, server: AppServer, method: str, app: str, body: Body) -> Mapping[str, Any]:
        request = {"appkey": self._installed.appkeys[app], **body}
        return _accepted(await self._call(server, method, "/push", request, app))

    async def _call(self, server: AppServer, method: str, path: str, body: Body, *apps: str) -> Mapping[str, Any]:
        """Send a request, again under its idempotency key if a leap of the clock has cut the connection."""
        headers = {**NOT_KEPT, "idempotency-key": f"demo-{next(self._numbers)}"}
        secrets, statuses = self._installed.secrets_of(*apps), (200, _PAUSED)
        for _ in range(_MORE_ATTEMPTS):
            with contextlib.suppress(httpx.TransportError):
                return await server.call(method, path, body, *secrets, headers=headers, statuses=statuses)
        return await server.call(method, path, body, *secrets, headers=headers, statuses=statuses)


def _accepted(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    if answer["result"] != 0:
        raise CarillonError(f"a request is refused: {answer}")
    return answer
