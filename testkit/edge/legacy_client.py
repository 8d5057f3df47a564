"""Calls the legacy interfaces of an edge as an app server does, and checks the rows of tables of rules."""

import json
from typing import Any

import httpx

from protos.registry.v1.apps_pb2 import App
from testkit.edge.role import EdgeInstallation
from testkit.signing import signed

Answer = dict[str, Any]
Row = tuple[dict[str, Any], str | None]
"""A row of a table of rules: a request's fields, and the beginning of the error, None where they are accepted."""

GONE = object()
"""In a row: the field is left out of the request."""


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


def check(answer: dict[str, Any], problem: str | None, fields: dict[str, Any]) -> None:
    """Assert that the answer to a row's request is the expected one."""
    row = json.dumps(fields, default=str)[:200]
    if problem is None:
        assert answer["result"] == 0, (row, answer)
    else:
        assert set(answer) == {"result", "desc"}, row
        assert answer["result"] == 400, row
        assert answer["desc"].startswith(f"input error: {problem}"), (row, answer)
