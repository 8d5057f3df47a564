"""Credentials of an app at vivo's push service: its ids and secret, from vivo's developer console."""

from dataclasses import dataclass, field

from protos.registry.v1.apps_pb2 import CHANNEL_VIVO, App
from services.domain.channel_credentials.fields import (
    ChannelVendor,
    CredentialField,
    CredentialsForm,
    FieldKind,
    words,
)
from services.domain.channel_credentials.limits import LIMIT_FIELDS, LIMITS_SHOWN, VendorLimits, limits_of
from services.domain.channel_credentials.readers import id_reader, read_categories, read_secret
from services.domain.channel_credentials.stored import open_credentials
from services.domain.master_key import Keys

VIVO_URL = "https://api-push.vivo.com.cn"


@dataclass(frozen=True, slots=True)
class VivoCredentials:
    """Credentials of an app. `categories`: those that vivo has granted; they have no part in who it is."""

    app_id: str
    app_key: str
    app_secret: str = field(repr=False)
    categories: frozenset[str] = field(default=frozenset(), compare=False)
    limits: VendorLimits = field(default=VendorLimits(), compare=False)


VIVO = CredentialsForm(
    CHANNEL_VIVO,
    words("vivo"),
    (
        CredentialField(
            "app_id",
            FieldKind.TEXT,
            id_reader("app_id"),
            words("App ID"),
            words("From vivo's developer console, Message push, Application information."),
            is_needed=True,
        ),
        CredentialField(
            "app_key",
            FieldKind.TEXT,
            id_reader("app_key"),
            words("App key"),
            words("From the same page."),
            is_needed=True,
        ),
        CredentialField(
            "app_secret",
            FieldKind.SECRET,
            read_secret,
            words("App secret"),
            words("It stands below the app key. It is stored encrypted and never shown."),
        ),
        CredentialField(
            "categories",
            FieldKind.LIST,
            read_categories,
            words("Granted categories"),
            words("Those that the vendor has granted the app, such as IM or ORDER. All other messages are MARKETING."),
        ),
        *LIMIT_FIELDS,
    ),
    {
        "app_id": words("vivo's app ID"),
        "app_key": words("vivo's app key"),
        "categories": words("Categories granted by vivo"),
        **LIMITS_SHOWN,
    },
    ChannelVendor(
        "vivo",
        "vivo",
        f"CARILLON_VIVO_URL={VIVO_URL} sends to vivo.",
        "vivo judges a message to an address that nobody has.",
    ),
)


def open_vivo(app: App, keys: Keys) -> VivoCredentials | None:
    """Decrypt the app's credentials; None if it has none. CarillonError: they were sealed with another master key."""
    opened = open_credentials(app, CHANNEL_VIVO, keys)
    if opened is None:
        return None
    settings = opened.settings
    return VivoCredentials(
        app_id=settings["app_id"],
        app_key=settings["app_key"],
        app_secret=opened.secret,
        categories=frozenset(filter(None, settings.get("categories", "").split(","))),
        limits=limits_of(settings),
    )
