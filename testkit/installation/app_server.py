"""An app server: signs requests as the interface requires, with code of its own."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from testkit import plain_http
from testkit.signing import signed


@dataclass(frozen=True)
class AppCredentials:
    """The app key and the secret key of an app."""

    appkey: str
    secret_key: str


class AppServer:
    """A client of one HTTP interface, at its base URL."""

    def __init__(self, url: str) -> None:
        self._client = plain_http.async_client(base_url=url, timeout=30)

    async def push(self, body: Mapping[str, Any], *secrets: str) -> dict[str, Any]:
        """Send POST /v2/push; return the answer."""
        return await self.call("POST", "/v2/push", body, *secrets)

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        *secrets: str,
        headers: Mapping[str, str] | None = None,
        statuses: Collection[int] = (200,),
    ) -> dict[str, Any]:
        """Send a request signed with these secrets in order; return its answer, whose status is one of `statuses`."""
        content = signed(dict(body), *secrets)
        sent = {"content-type": "application/json", **(headers or {})}
        response = await self._client.request(method, path, content=content, headers=sent)
        assert response.status_code in statuses, response.text
        assert response.headers["content-type"].replace(" ", "").lower() == "application/json;charset=utf-8"
        answer: dict[str, Any] = response.json()
        return answer

    async def device_request(self, frame: Mapping[str, Any]) -> dict[str, Any]:
        """Send a frame of the device protocol to POST /device/v1; return the answer frame."""
        response = await self._client.post("/device/v1", json=frame)
        answer: dict[str, Any] = response.json()
        return answer

    async def close(self) -> None:
        await self._client.aclose()
