"""One receiver of a webhook: its connection, and what its answers mean."""

import re
from collections.abc import Callable
from typing import NamedTuple

from protos.registry.v1.apps_pb2 import WebhookForm
from services.domain.endpoint_connections import Connector
from services.domain.push_endpoints import AllowedHosts, Endpoint, EndpointRefusedError, parse_endpoint
from services.errors import UnavailableError
from services.net.http.client import HttpAnswer, HttpClientConnection, NoAnswerError
from services.webhooks.requests import refused_by_chat

GONE = 410
MAX_RETRY_AFTER_MS = 3_600_000
_SECONDS = re.compile(r"[0-9]{1,9}")


class ReceiverAnswer(NamedTuple):
    """The result of a request. `status`: 0 for no answer. `reason`: for people, without the path of the URL."""

    status: int
    reason: str
    retry_after_ms: int = 0
    is_taken: bool = False


class Receiver:
    """Posts requests, one at a time, over a connection that it keeps while the URL and the server allow."""

    def __init__(self, connector: Connector, hosts: AllowedHosts) -> None:
        self._connector = connector
        self._hosts = hosts
        self._connection: HttpClientConnection | None = None
        self._url = ""

    async def post(
        self, url: str, form: "WebhookForm.ValueType", request: Callable[[Endpoint], bytes]
    ) -> ReceiverAnswer:
        """Send a request. One that fails on a connection which served earlier ones is repeated on a new one: servers
        close idle connections, also while a request is on its way.
        """
        try:
            endpoint = parse_endpoint(url)
            self._hosts.check(endpoint)
            if url != self._url:
                self.close()
                self._url = url
            is_kept = self._connection is not None and self._connection.is_usable
            written = request(endpoint)
            try:
                answer = await self._post(endpoint, written)
            except NoAnswerError:
                if not is_kept:
                    raise
                answer = await self._post(endpoint, written)
        except EndpointRefusedError as error:
            return ReceiverAnswer(0, f"refused: {error}")
        except UnavailableError as error:
            return ReceiverAnswer(0, str(error))
        except NoAnswerError as error:
            return ReceiverAnswer(0, str(error))
        return _read(answer, form)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _post(self, endpoint: Endpoint, written: bytes) -> HttpAnswer:
        if self._connection is None or not self._connection.is_usable:
            self.close()
            _, self._connection = await self._connector.connect(endpoint, self._hosts, HttpClientConnection)
        try:
            return await self._connection.post(written)
        except BaseException:
            self.close()
            raise


def _read(answer: HttpAnswer, form: "WebhookForm.ValueType") -> ReceiverAnswer:
    """Return what an answer means: only 2xx is taken; a redirection is not followed."""
    if not 200 <= answer.status < 300:
        after = answer.headers.get("retry-after", "")
        retry_after_ms = min(int(after) * 1000, MAX_RETRY_AFTER_MS) if _SECONDS.fullmatch(after) else 0
        return ReceiverAnswer(answer.status, f"HTTP {answer.status}", retry_after_ms)
    if refusal := refused_by_chat(form, answer.body):
        return ReceiverAnswer(answer.status, refusal)
    return ReceiverAnswer(answer.status, f"HTTP {answer.status}", is_taken=True)
