"""Delivery's settings."""

import os

from services.domain.apns_credentials import APPLE_URLS, Environment
from services.domain.channel_credentials.fcm import GOOGLE_TOKEN_URI
from services.domain.channel_credentials.hms import HUAWEI_TOKEN_URL
from services.domain.channel_credentials.honor import HONOR_TOKEN_URL
from services.domain.settings import PREFIX, Settings, SettingsError

ROLE_NAME = "delivery"
INTERNET = "internet"


class DeliverySettings(Settings, frozen=True, kw_only=True):
    """Delivery's settings for Apple's push service (APNs) and for channels such as Web Push, FCM and HMS.

    `apns_url`: base URL of APNs; unset, pushes go to a simulator in this process and nothing leaves the machine.
    `apns_sandbox_url`: base URL of the sandbox environment, for devices of developers.
    `apns_authority`: a PEM file with the certificate authority of both URLs, when they are not Apple's.
    `fcm_url`: base URL of FCM; unset, messages go to a simulator in this process and nothing leaves the machine.
    `fcm_token_url`: where access tokens of service accounts come from.
    `fcm_authority`: a PEM file with the certificate authority of both URLs, when they are not Google's.
    `hms_url`: base URL of Huawei's Push Kit; unset, messages go to a simulator in this process.
    `hms_token_url`: where access tokens of Huawei's clients come from.
    `hms_authority`: a PEM file with the certificate authority of both URLs, when they are not Huawei's.
    `harmony_url`: base URL of Huawei's Push Kit for HarmonyOS 5 and later; unset, messages go to a simulator.
    `harmony_authority`: a PEM file with the certificate authority of this URL, when it is not Huawei's.
    `honor_url`, `xiaomi_url`, `oppo_url`, `vivo_url`: base URLs of these vendors' push services; unset, messages go to
    simulators.
    `honor_token_url`: where access tokens of Honor's clients come from.
    `honor_authority`, `xiaomi_authority`, `oppo_authority`, `vivo_authority`: PEM files with the certificate authority
    of these URLs, when they are not the vendors'.
    """

    apns_url: str | None = None
    apns_sandbox_url: str = APPLE_URLS[Environment.SANDBOX]
    apns_authority: str | None = None
    webpush: str = "simulator"
    """Where Web Push requests go: "simulator", in this process, so that nothing leaves the machine; or "internet"."""

    fcm_url: str | None = None
    fcm_token_url: str = GOOGLE_TOKEN_URI
    fcm_authority: str | None = None
    hms_url: str | None = None
    hms_token_url: str = HUAWEI_TOKEN_URL
    hms_authority: str | None = None
    harmony_url: str | None = None
    harmony_authority: str | None = None
    honor_url: str | None = None
    honor_token_url: str = HONOR_TOKEN_URL
    honor_authority: str | None = None
    xiaomi_url: str | None = None
    xiaomi_authority: str | None = None
    oppo_url: str | None = None
    oppo_authority: str | None = None
    vivo_url: str | None = None
    vivo_authority: str | None = None
    channel_grace_s: int = 15
    """Time after the end of a device's connection from which a channel is asked to show its messages.

    It is longer than a frame and its acknowledgement take to and from a gateway; otherwise a channel might show a
    message that the device has shown already.
    """

    def check(self) -> None:
        super().check()
        if not 5 <= self.channel_grace_s <= 3600:
            raise SettingsError(
                f"{PREFIX}CHANNEL_GRACE_S is {self.channel_grace_s}; it must be 5 to 3600 seconds, because a message"
                " may be on its way to a device for some seconds, and a channel would show it again"
            )
        if self.webpush not in ("simulator", INTERNET):
            raise SettingsError(f"{PREFIX}WEBPUSH is {self.webpush!r}; it must be simulator or {INTERNET}")
        authorities = {
            "APNS_AUTHORITY": self.apns_authority,
            "FCM_AUTHORITY": self.fcm_authority,
            "HMS_AUTHORITY": self.hms_authority,
            "HARMONY_AUTHORITY": self.harmony_authority,
            "HONOR_AUTHORITY": self.honor_authority,
            "XIAOMI_AUTHORITY": self.xiaomi_authority,
            "OPPO_AUTHORITY": self.oppo_authority,
            "VIVO_AUTHORITY": self.vivo_authority,
        }
        for name, authority in authorities.items():
            if authority is not None and not os.access(authority, os.R_OK):
                raise SettingsError(f"{PREFIX}{name} is {authority!r}, which cannot be read")
