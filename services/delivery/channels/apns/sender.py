"""Sends pushes to Apple's services: one sender for each endpoint and signing key, shared by apps."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, assert_never
from weakref import WeakValueDictionary

from protos.registry.v1.apps_pb2 import App
from services.delivery.channels.apns.provider_tokens import ProviderToken
from services.delivery.channels.apns.request import (
    UNKNOWN,
    ApnsPush,
    ApnsResult,
    header_block,
    local_refusal,
    parse_response,
)
from services.delivery.channels.apns.responses import ResponseAction, handling_of, label
from services.delivery.channels.http2.frames import Response
from services.delivery.channels.http2.sender import CONNECTIONS, ConnectionSlot, Http2Sender
from services.delivery.channels.http2.service_connection import ServiceConnection, Timeouts, WireRequest
from services.delivery.channels.shared_senders import SharedSenders
from services.domain.apns_credentials import ApnsCredentials, Environment
from services.process.clock import Clock
from services.process.logs import logger
from services.process.metrics import APNS_ANSWERS

_STATUSES_BEFORE_PROOF = frozenset((403, 429))
"""Statuses below 500 that do not prove that Apple has accepted the provider token."""


class ApnsAnswers:
    """Reads Apple's responses."""

    def read(self, response: Response) -> ApnsResult:
        return parse_response(response.status, response.body)

    def unknown(self, reason: str) -> ApnsResult:
        return ApnsResult(UNKNOWN, reason)

    def proves(self, answer: ApnsResult) -> bool:
        return answer.status < 500 and answer.status not in _STATUSES_BEFORE_PROOF


class ApnsSender(Http2Sender[ApnsPush, ApnsResult]):
    """Sends pushes to one endpoint with one key; until Apple has accepted one on a connection, one at a time."""

    def __init__(
        self,
        url: str,
        provider_token: ProviderToken,
        clock: Clock,
        authority: str | None = None,
        timeouts: Timeouts | None = None,
        connections: int = CONNECTIONS,
    ) -> None:
        super().__init__("Apple", "apns", url, ApnsAnswers(), clock, authority, timeouts, connections)
        self._provider_token = provider_token

    def _wire(self, request: ApnsPush) -> WireRequest | ApnsResult:
        if refusal := local_refusal(request):
            return refusal
        token = self._provider_token.text()
        return WireRequest(header_block(request, self._authority, token), request.payload, token)

    def _maintain(
        self,
        slot: ConnectionSlot[ApnsPush, ApnsResult],
        connection: ServiceConnection[ApnsPush, ApnsResult],
        token: str,
        answer: ApnsResult,
    ) -> None:
        APNS_ANSWERS.labels(label(answer)).inc()
        match handling_of(answer).action:
            case (
                ResponseAction.ACCEPT
                | ResponseAction.REMOVE
                | ResponseAction.TRY_OTHER_ENVIRONMENT
                | ResponseAction.FAIL
            ):
                slot.circuit.close()
            case ResponseAction.RENEW_TOKEN:
                if not self._provider_token.renew(token):
                    logger.error("Apple calls a new provider token expired: is this machine's clock right?")
            case ResponseAction.HOLD_TOKEN:
                logger.warning("Apple saw too many provider tokens; the one before is used", host=self._host)
                self._provider_token.hold(token)
                slot.circuit.trip(self._clock.now_ms())
                connection.drain()
            case ResponseAction.BACK_OFF:
                if slot.circuit.trip(self._clock.now_ms()):
                    logger.warning("the push service has a fault; its connection backs off", host=self._host)
            case ResponseAction.RECONNECT:
                connection.drain()
            case ResponseAction.REPEAT | ResponseAction.STOP_APP | ResponseAction.DELAY_DEVICE:
                pass
            case unknown:
                assert_never(unknown)


# The process's senders: one for each Apple endpoint and signing key, shared by all apps with that key.


class CredentialsSource(Protocol):
    def __call__(self, app: App) -> ApnsCredentials | None:
        """Return the app's credentials, or None if it has no usable key, so that nothing can be sent for it."""
        ...


@dataclass(frozen=True, slots=True)
class ApnsEndpoint:
    """URL of one of Apple's services. `authority`: PEM text of trusted certificates; None for the system's."""

    url: str
    authority: str | None = None


class ApnsSenderPool:
    """Makes and shares the senders. `endpoints`: production and the sandbox."""

    def __init__(
        self, endpoints: Mapping[Environment, ApnsEndpoint], clock: Clock, timeouts: Timeouts | None = None
    ) -> None:
        self._endpoints = endpoints
        self._clock = clock
        self._timeouts = timeouts
        self._provider_tokens: WeakValueDictionary[tuple[str, str, str], ProviderToken] = WeakValueDictionary()
        self._senders: SharedSenders[tuple[str, str, str, str], ApnsSender] = SharedSenders("Apple", clock)

    def get(self, credentials: ApnsCredentials, sandbox: bool = False) -> ApnsSender:
        """Return an app's sender, to send by it now; `sandbox`: to the sandbox, if the app uses both.

        InvalidKeyError: bad key.
        """
        key = (credentials.team_id, credentials.key_id, credentials.key_pem)
        to_sandbox = sandbox or credentials.environment is Environment.SANDBOX
        endpoint = self._endpoints[Environment.SANDBOX if to_sandbox else Environment.PRODUCTION]

        def make() -> ApnsSender:
            provider_token = self._provider_tokens.get(key) or ProviderToken(credentials, self._clock)
            self._provider_tokens[key] = provider_token
            return ApnsSender(endpoint.url, provider_token, self._clock, endpoint.authority, self._timeouts)

        return self._senders.get((endpoint.url, *key), make)

    async def close(self) -> None:
        await self._senders.close()
