"""Credentials of an app at Xiaomi's push service: its package and secret, from Xiaomi's developer console."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from protos.registry.v1.apps_pb2 import CHANNEL_XIAOMI, App
from services.domain.channel_credentials.fields import (
    ChannelVendor,
    CredentialField,
    CredentialsForm,
    FieldKind,
    words,
)
from services.domain.channel_credentials.limits import LIMIT_FIELDS, LIMITS_SHOWN, VendorLimits, limits_of
from services.domain.channel_credentials.readers import (
    DEFAULT_CATEGORY,
    RECEIPTS_URL,
    channels_of,
    id_reader,
    read_all_channels,
    read_receipts_url,
    read_secret,
)
from services.domain.channel_credentials.stored import open_credentials
from services.domain.channel_receipts.receipts import SETTING as RECEIPTS
from services.domain.channel_receipts.receipts import Callback, callback_of
from services.domain.channel_receipts.xiaomi import XIAOMI_RECEIPTS
from services.domain.master_key import Keys

XIAOMI_URL = "https://api.xmpush.xiaomi.com"


@dataclass(frozen=True, slots=True)
class XiaomiCredentials:
    """Credentials of an app.

    `channels`, `callback`: what its messages bear; they have no part in who it is. `channels`: Xiaomi's notification
    channels by category. `callback`: where receipts go; None: there are none.
    """

    package: str
    app_secret: str = field(repr=False)
    channels: Mapping[str, str] = field(default_factory=dict, compare=False)
    callback: Callback | None = field(default=None, compare=False)
    limits: VendorLimits = field(default=VendorLimits(), compare=False)

    def channel(self, category: str) -> str:
        """Return the notification channel of a message of a category; "": there is none."""
        return self.channels.get(category) or self.channels.get(DEFAULT_CATEGORY, "")


XIAOMI = CredentialsForm(
    CHANNEL_XIAOMI,
    words("Xiaomi"),
    (
        CredentialField(
            "package",
            FieldKind.TEXT,
            id_reader("package"),
            words("Package name"),
            words("That of the Android app, as in Xiaomi's developer console."),
            is_needed=True,
        ),
        CredentialField(
            "app_secret",
            FieldKind.SECRET,
            read_secret,
            words("App secret"),
            words("From Xiaomi's developer console, App information. It is stored encrypted and never shown."),
        ),
        CredentialField(
            "channels",
            FieldKind.LIST,
            read_all_channels,
            words("Notification channels"),
            words("Xiaomi's id for each category, such as MARKETING=104234 or IM=104235. Others go by MARKETING's."),
            is_needed=True,
        ),
        CredentialField(
            RECEIPTS_URL,
            FieldKind.TEXT,
            read_receipts_url,
            words("Address for receipts"),
            words("Where the vendor reaches the v2 interface, such as https://push.example.org. Empty: no receipts."),
        ),
        *LIMIT_FIELDS,
    ),
    {
        "package": words("Package name at Xiaomi"),
        "channels": words("Notification channels at Xiaomi"),
        RECEIPTS_URL: words("Address for Xiaomi's receipts"),
        RECEIPTS: words("Token of the URL for Xiaomi's receipts"),
        **LIMITS_SHOWN,
    },
    ChannelVendor(
        "Xiaomi",
        "Xiaomi",
        f"CARILLON_XIAOMI_URL={XIAOMI_URL} sends to Xiaomi.",
        "Xiaomi judges a message to an address that nobody has.",
    ),
    receipts=XIAOMI_RECEIPTS,
)


def open_xiaomi(app: App, keys: Keys) -> XiaomiCredentials | None:
    """Decrypt the app's credentials; None if it has none. CarillonError: they were sealed with another master key."""
    opened = open_credentials(app, CHANNEL_XIAOMI, keys)
    if opened is None:
        return None
    settings = opened.settings
    return XiaomiCredentials(
        package=settings["package"],
        app_secret=opened.secret,
        channels=channels_of(settings.get("channels", "")),
        callback=callback_of(app, CHANNEL_XIAOMI, settings.get(RECEIPTS_URL, ""), keys),
        limits=limits_of(settings),
    )
