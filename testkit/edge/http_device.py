"""A device that sends frames to POST /device/v1, and the possession codes that it is pushed."""

import json
from typing import Any

from protos.registry.v1.apps_pb2 import App
from services.domain.device_protocol.possession import opened_code
from testkit.edge.role import EdgeInstallation


class HttpDevice:
    """A device that sends frames over HTTP and stores its token and key."""

    def __init__(self, installation: EdgeInstallation, app: App, token: str | None = None) -> None:
        self._installation = installation
        self.identity: dict[str, Any] = {"appkey": app.appkey}
        if token is not None:
            self.identity["token"] = token

    async def send(self, kind: str, **fields: Any) -> dict[str, Any]:
        frame = {"type": kind, **self.identity, **fields}
        return await self._installation.post(json.dumps(frame).encode(), "/device/v1")

    async def hello(self, **fields: Any) -> dict[str, Any]:
        welcome = await self.send("hello", **fields)
        assert welcome["type"] == "welcome", welcome
        self.identity |= {"token": welcome["token"], "key": welcome["key"]}
        return welcome

    async def prove_possession(self) -> dict[str, Any]:
        """Say hello without a key, then with the code that is pushed; return the welcome."""
        self.identity.pop("key", None)
        refused = await self.send("hello")
        assert (refused["type"], refused["code"], refused["reason"]) == ("error", 401, "possession")
        return await self.hello(code=(await pushed_codes(self._installation))[-1])


async def pushed_codes(installation: EdgeInstallation) -> list[str]:
    """Return the possession codes that were pushed, in order."""
    return [
        opened_code(installation.context.keys, sealed, push.appkey)
        for push in await installation.sent()
        if (sealed := push.message.ios.sealed_possession_code)
    ]
