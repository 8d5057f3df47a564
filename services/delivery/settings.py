"""Delivery's settings."""

import os

from services.delivery.channels.apns.sender import APPLE
from services.domain.apns_credentials import Environment
from services.domain.settings import PREFIX, Settings, SettingsError

ROLE_NAME = "delivery"
INTERNET = "internet"


class DeliverySettings(Settings, frozen=True, kw_only=True):
    """Delivery's settings for Apple's push service (APNs) and for channels such as Web Push.

    `apns_url`: base URL of APNs; unset, pushes go to a simulator in this process and nothing leaves the machine.
    `apns_sandbox_url`: base URL of the sandbox environment, for devices of developers.
    `apns_authority`: a PEM file with the certificate authority of both URLs, when they are not Apple's.
    """

    apns_url: str | None = None
    apns_sandbox_url: str = APPLE[Environment.SANDBOX].url
    apns_authority: str | None = None
    webpush: str = "simulator"
    """Where Web Push requests go: "simulator", in this process, so that nothing leaves the machine; or "internet"."""

    channel_grace_s: int = 15
    """Time after the end of a device's connection from which a channel is asked to show its messages."""

    def check(self) -> None:
        super().check()
        if not 1 <= self.channel_grace_s <= 3600:
            raise SettingsError(f"{PREFIX}CHANNEL_GRACE_S is {self.channel_grace_s}; it must be 1 to 3600 seconds")
        if self.webpush not in ("simulator", INTERNET):
            raise SettingsError(f"{PREFIX}WEBPUSH is {self.webpush!r}; it must be simulator or {INTERNET}")
        if self.apns_authority is not None and not os.access(self.apns_authority, os.R_OK):
            raise SettingsError(f"{PREFIX}APNS_AUTHORITY is {self.apns_authority!r}, which cannot be read")
