"""Credentials of channels in an app's record: found, opened, and sealed anew with another master key."""

from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from protos.registry.v1.apps_pb2 import App, Channel, ChannelCredentials
from services.domain.addresses import channel_name
from services.domain.master_key import Keys
from services.errors import CarillonError
from services.process.logs import logger

Credentials = TypeVar("Credentials")


class OpenedCredentials(NamedTuple):
    """Decrypted credentials of an app on one channel."""

    secret: str
    settings: Mapping[str, str]


def credentials_of(app: App, channel: "Channel.ValueType") -> ChannelCredentials | None:
    """Return the app's credentials, whose secret is sealed; None if it has none on the channel."""
    return next((each for each in app.channels if each.channel == channel), None)


def settings_of(app: App, channel: "Channel.ValueType") -> dict[str, str]:
    """Return what may be shown of the app's credentials by name; nothing for an app without."""
    credentials = credentials_of(app, channel)
    return {each.name: each.value for each in credentials.settings} if credentials else {}


def open_credentials(app: App, channel: "Channel.ValueType", keys: Keys) -> OpenedCredentials | None:
    """Decrypt the app's credentials; None if it has none. CarillonError: they were sealed with another master key."""
    credentials = credentials_of(app, channel)
    if credentials is None:
        return None
    return OpenedCredentials(
        keys.open(credentials.sealed_secret, sealing_context(app, channel)), settings_of(app, channel)
    )


def seal_channels_anew(app: App, keys: Keys) -> None:
    """Seal the app's secrets on all channels, also those of a newer writer, with the key in force, in place."""
    for each in app.channels:
        each.sealed_secret = keys.sealed_anew(each.sealed_secret, sealing_context(app, each.channel)) or (
            each.sealed_secret
        )


def sealing_context(app: App, channel: int) -> str:
    """Encryption context that differs from those of the app's other secrets, so that they cannot be swapped."""
    return f"{app.appkey}/{channel_name(channel)}"


class CredentialsCache(Generic[Credentials]):
    """Decrypted credentials of one channel by app, decrypted again when the app's record changes.

    Credentials sealed with another master key are logged once and treated as missing.
    """

    def __init__(self, opened: Callable[[App, Keys], Credentials | None], keys: Keys) -> None:
        """`opened` returns an app's credentials, None for none; CarillonError: they cannot be decrypted."""
        self._opened = opened
        self._keys = keys
        self._by_appkey: dict[str, tuple[App, Credentials | None]] = {}

    def __call__(self, app: App) -> Credentials | None:
        cached = self._by_appkey.get(app.appkey)
        if cached is None or cached[0] is not app:
            cached = self._by_appkey[app.appkey] = app, self._open(app)
        return cached[1]

    def _open(self, app: App) -> Credentials | None:
        try:
            return self._opened(app, self._keys)
        except CarillonError as error:
            logger.error(
                "an app's credentials for a channel cannot be decrypted: they were sealed with another master key; "
                "bring that key back, or set them again with `carillon app set APPKEY`",
                appkey=app.appkey,
                error=str(error),
            )
            return None
