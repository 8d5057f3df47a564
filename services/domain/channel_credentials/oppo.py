"""Credentials of an app at OPPO's push service: its key and master secret, from OPPO's developer console."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from protos.registry.v1.apps_pb2 import CHANNEL_OPPO, App
from services.domain.channel_credentials.fields import (
    ChannelVendor,
    CredentialField,
    CredentialsForm,
    FieldKind,
    words,
)
from services.domain.channel_credentials.limits import LIMIT_FIELDS, LIMITS_SHOWN, VendorLimits, limits_of
from services.domain.channel_credentials.readers import (
    RECEIPTS_URL,
    channels_of,
    id_reader,
    read_categories,
    read_channels,
    read_receipts_url,
    read_secret,
)
from services.domain.channel_credentials.stored import open_credentials
from services.domain.channel_receipts.oppo import OPPO_RECEIPTS
from services.domain.channel_receipts.receipts import SETTING as RECEIPTS
from services.domain.channel_receipts.receipts import Callback, callback_of
from services.domain.master_key import Keys

OPPO_URL = "https://api.push.oppomobile.com"


@dataclass(frozen=True, slots=True)
class OppoCredentials:
    """Credentials of an app.

    `categories`, `channels`, `callback`: what its messages bear; they have no part in who it is. `categories`: those
    that OPPO has granted. `channels`: its notification channels by category. `callback`: where receipts go; None: there
    are none.
    """

    app_key: str
    master_secret: str = field(repr=False)
    categories: frozenset[str] = field(default=frozenset(), compare=False)
    channels: Mapping[str, str] = field(default_factory=dict, compare=False)
    callback: Callback | None = field(default=None, compare=False)
    limits: VendorLimits = field(default=VendorLimits(), compare=False)


OPPO = CredentialsForm(
    CHANNEL_OPPO,
    words("OPPO"),
    (
        CredentialField(
            "app_key",
            FieldKind.TEXT,
            id_reader("app_key"),
            words("App key"),
            words("From OPPO's push console, Application configuration."),
            is_needed=True,
        ),
        CredentialField(
            "master_secret",
            FieldKind.SECRET,
            read_secret,
            words("Master secret"),
            words("It stands below the app key. It is stored encrypted and never shown."),
        ),
        CredentialField(
            "categories",
            FieldKind.LIST,
            read_categories,
            words("Granted categories"),
            words("Those that the vendor has granted the app, such as IM or ORDER. All other messages are MARKETING."),
        ),
        CredentialField(
            "channels",
            FieldKind.LIST,
            read_channels,
            words("Notification channels"),
            words("The vendor's id for each category, such as IM=chat. Messages of other categories name none."),
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
        "app_key": words("OPPO's app key"),
        "categories": words("Categories granted by OPPO"),
        "channels": words("Notification channels at OPPO"),
        RECEIPTS_URL: words("Address for OPPO's receipts"),
        RECEIPTS: words("Token of the URL for OPPO's receipts"),
        **LIMITS_SHOWN,
    },
    ChannelVendor(
        "OPPO",
        "OPPO",
        f"CARILLON_OPPO_URL={OPPO_URL} sends to OPPO.",
        "OPPO judges a message to an address that nobody has.",
    ),
    receipts=OPPO_RECEIPTS,
)


def open_oppo(app: App, keys: Keys) -> OppoCredentials | None:
    """Decrypt the app's credentials; None if it has none. CarillonError: they were sealed with another master key."""
    opened = open_credentials(app, CHANNEL_OPPO, keys)
    if opened is None:
        return None
    settings = opened.settings
    return OppoCredentials(
        app_key=settings["app_key"],
        master_secret=opened.secret,
        categories=frozenset(filter(None, settings.get("categories", "").split(","))),
        channels=channels_of(settings.get("channels", "")),
        callback=callback_of(app, CHANNEL_OPPO, settings.get(RECEIPTS_URL, ""), keys),
        limits=limits_of(settings),
    )
