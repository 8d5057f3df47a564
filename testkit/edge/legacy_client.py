"""An app server's calls to the legacy interfaces of an edge."""

from typing import Any

import httpx

from protos.registry.v1.apps_pb2 import App
from testkit.edge.role import EdgeInstallation
from testkit.signing import signed

Answer = dict[str, Any]


class LegacyClient:
    """Calls the legacy interfaces of an edge. It adds the appkey, unless a body has its own, and the sign."""

    def __init__(self, installation: EdgeInstallation) -> None:
        self.installation = installation

    async def android(self, app: App, path: str = "/push", method: str = "POST", /, **body: Any) -> Answer:
        return await self._call(self.installation.android, app, method, path, body)

    async def ios(self, app: App, path: str = "/push", method: str = "POST", /, **body: Any) -> Answer:
        return await self._call(self.installation.ios, app, method, path, body)

    async def _call(
        self, http: httpx.AsyncClient, app: App, method: str, path: str, body: dict[str, Any]
    ) -> dict[str, Any]:
        content = signed({"appkey": app.appkey, **body}, self.installation.secrets[app.appkey])
        return await self.raw(http, method, path, content)

    @staticmethod
    async def raw(http: httpx.AsyncClient, method: str, path: str, content: bytes) -> Answer:
        response = await http.request(method, path, content=content)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/json;charset=utf-8"
        answer: Answer = response.json()
        return answer
