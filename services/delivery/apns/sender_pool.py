"""The process's senders: one for each Apple endpoint and signing key, shared by all apps with that key."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from protos.registry.v1.apps_pb2 import App
from services.delivery.apns.in_flight import Timeouts
from services.delivery.apns.provider_tokens import ProviderToken
from services.delivery.apns.sender import ApnsSender
from services.domain.apns.credentials import ApnsCredentials, Environment
from services.runtime.process.clock import Clock


class CredentialsSource(Protocol):
    def __call__(self, app: App) -> ApnsCredentials | None:
        """Return the app's credentials, or None if it has no usable key, so that nothing can be sent for it."""
        ...


@dataclass(frozen=True, slots=True)
class ApnsEndpoint:
    """URL of one of Apple's services. `authority`: PEM text of trusted certificates; None for the system's."""

    url: str
    authority: str | None = None


APPLE = {
    Environment.PRODUCTION: ApnsEndpoint("https://api.push.apple.com"),
    Environment.SANDBOX: ApnsEndpoint("https://api.sandbox.push.apple.com"),
}


class SenderPool:
    """Makes and shares the senders. `endpoints`: production and the sandbox."""

    def __init__(
        self, endpoints: Mapping[Environment, ApnsEndpoint], clock: Clock, timeouts: Timeouts | None = None
    ) -> None:
        self._endpoints = endpoints
        self._clock = clock
        self._timeouts = timeouts
        self._provider_tokens: dict[tuple[str, str, str], ProviderToken] = {}
        self._senders: dict[tuple[str, str, str, str], ApnsSender] = {}

    def get(self, credentials: ApnsCredentials, sandbox: bool = False) -> ApnsSender:
        """The sender for an app; `sandbox`: to the sandbox of an app that uses both environments. InvalidKeyError."""
        key = (credentials.team_id, credentials.key_id, credentials.key_pem)
        to_sandbox = sandbox or credentials.environment is Environment.SANDBOX
        endpoint = self._endpoints[Environment.SANDBOX if to_sandbox else Environment.PRODUCTION]
        sender = self._senders.get((endpoint.url, *key))
        if sender is None:
            provider_token = self._provider_tokens.get(key) or ProviderToken(credentials, self._clock)
            self._provider_tokens[key] = provider_token
            sender = ApnsSender(endpoint.url, provider_token, self._clock, endpoint.authority, self._timeouts)
            self._senders[endpoint.url, *key] = sender
        return sender

    async def close(self) -> None:
        await asyncio.gather(*(sender.close() for sender in self._senders.values()))
