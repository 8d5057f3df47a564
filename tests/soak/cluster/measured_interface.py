"""An HTTP interface behind a load balancer, with the time and the answer of each request."""

import time
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import httpx

from testkit import plain_http
from testkit.installation.balancer import SERVED_BY
from testkit.signing import signed
from tests.soak.android_device import SERVER_ERROR
from tests.soak.ledger import now_ms
from tests.soak.senders import Answer

TIMEOUT_S = 15.0


class MeasuredRequest(NamedTuple):
    """One request. `answer`: its `result`; `HTTP 503` for an answer of the load balancer; else the error's name.

    `call`: its method and path. `edge`: the process that answered it; "" where none did.
    """

    begun_ms: int
    ms: int
    answer: str
    call: str = ""
    edge: str = ""


class MeasuredInterface:
    """An HTTP interface of the edges behind a load balancer; each request is noted in `requests`."""

    def __init__(self, url: str, requests: list[MeasuredRequest]) -> None:
        self._client = plain_http.async_client(base_url=url, timeout=TIMEOUT_S)
        self._requests = requests

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        *secrets: str,
        headers: Mapping[str, str] | None = None,
        statuses: Collection[int] = (200,),
    ) -> Answer:
        """Send a request, as HttpInterface says; an answer of the balancer itself counts as none."""
        content = signed(dict(body), *secrets)
        begun_ms, begun_s = now_ms(), time.monotonic()

        def note(answer: str, edge: str = "") -> None:
            ms = round((time.monotonic() - begun_s) * 1000)
            self._requests.append(MeasuredRequest(begun_ms, ms, answer, f"{method} {path}", edge))

        sent = {"content-type": "application/json", **(headers or {})}
        try:
            response = await self._client.request(method, path, content=content, headers=sent)
        except httpx.TransportError as error:
            note(type(error).__name__)
            raise
        if not response.headers.get("content-type", "").startswith("application/json"):
            note(f"HTTP {response.status_code}")
            raise httpx.RemoteProtocolError(f"the balancer answered {response.status_code}")
        assert response.status_code in statuses, response.text
        answer: Answer = response.json()
        note(str(answer["result"]), response.headers.get(SERVED_BY, ""))
        return answer

    async def device_request(self, frame: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a frame of the device protocol; the balancer's own answers and none at all count as errors."""
        try:
            response = await self._client.post("/device/v1", json=frame)
            answer: Mapping[str, Any] = response.json()
        except (httpx.TransportError, ValueError):
            return {"type": "error", "code": SERVER_ERROR}
        return answer

    async def close(self) -> None:
        await self._client.aclose()
