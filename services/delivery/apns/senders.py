"""Every sender of the process: one for each of Apple's services and each key, whatever apps share it."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from protos.registry.v1.apps_pb2 import App
from services.delivery.apns.connection import Times
from services.delivery.apns.provider_tokens import ProviderToken
from services.delivery.apns.sender import ApnsSender
from services.domain.apns.credentials import ApnsCredentials, Environment
from services.runtime.process.clock import Clock


class CredentialsOf(Protocol):
    """Where apps' credentials come from."""

    def __call__(self, app: App) -> ApnsCredentials | None:
        """None: the app has no key, so nothing can be sent for it."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """One of Apple's services. `authority`: PEM text of the certificates to trust; None for the system's."""

    url: str
    authority: str | None = None


APPLE = {
    Environment.PRODUCTION: Place("https://api.push.apple.com"),
    Environment.SANDBOX: Place("https://api.sandbox.push.apple.com"),
}


class Senders:
    """`places` has both of Apple's services."""

    def __init__(self, places: Mapping[Environment, Place], clock: Clock, times: Times | None = None) -> None:
        self._places = places
        self._clock = clock
        self._times = times
        self._provider_tokens: dict[tuple[str, str, str], ProviderToken] = {}
        self._senders: dict[tuple[str, str, str, str], ApnsSender] = {}

    def get(self, credentials: ApnsCredentials, elsewhere: bool = False) -> ApnsSender:
        """The sender for an app; `elsewhere`: for the second service of an app that uses both. KeyFaultError."""
        key = (credentials.team_id, credentials.key_id, credentials.key_pem)
        sandbox = elsewhere or credentials.environment is Environment.SANDBOX
        place = self._places[Environment.SANDBOX if sandbox else Environment.PRODUCTION]
        sender = self._senders.get((place.url, *key))
        if sender is None:
            provider_token = self._provider_tokens.get(key) or ProviderToken(credentials, self._clock)
            self._provider_tokens[key] = provider_token
            sender = ApnsSender(place.url, provider_token, self._clock, place.authority, self._times)
            self._senders[place.url, *key] = sender
        return sender

    async def close(self) -> None:
        await asyncio.gather(*(sender.close() for sender in self._senders.values()))
