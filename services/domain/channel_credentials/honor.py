"""Credentials of an app at Honor's push service: its ids and secret, from Honor's developer console."""

from dataclasses import dataclass, field

from protos.registry.v1.apps_pb2 import CHANNEL_HONOR, App
from services.domain.channel_credentials.fields import (
    ChannelVendor,
    CredentialField,
    CredentialsForm,
    FieldKind,
    words,
)
from services.domain.channel_credentials.limits import LIMIT_FIELDS, LIMITS_SHOWN, VendorLimits, limits_of
from services.domain.channel_credentials.readers import id_reader, read_badge_class, read_categories, read_secret
from services.domain.channel_credentials.stored import open_credentials
from services.domain.master_key import Keys

HONOR_URL = "https://push-api.cloud.honor.com"
HONOR_TOKEN_URL = "https://iam.developer.honor.com/auth/token"  # noqa: S105  # an address, no secret


@dataclass(frozen=True, slots=True)
class HonorCredentials:
    """Credentials of an app.

    `categories`, `badge_class`: what its messages may bear; they have no part in who it is. `categories`: those of
    messages that serve, which Honor shows at once; all others it treats as marketing. `badge_class`: the class of the
    activity that the launcher starts, "" for no badges.
    """

    app_id: str
    client_id: str
    client_secret: str = field(repr=False)
    categories: frozenset[str] = field(default=frozenset(), compare=False)
    badge_class: str = field(default="", compare=False)
    limits: VendorLimits = field(default=VendorLimits(), compare=False)


HONOR = CredentialsForm(
    CHANNEL_HONOR,
    words("Honor"),
    (
        CredentialField(
            "app_id",
            FieldKind.TEXT,
            id_reader("app_id"),
            words("App ID"),
            words("From Honor's developer console, on the page of the app's push service."),
            is_needed=True,
        ),
        CredentialField(
            "client_id",
            FieldKind.TEXT,
            id_reader("client_id"),
            words("Client ID"),
            words("From the same page."),
            is_needed=True,
        ),
        CredentialField(
            "client_secret",
            FieldKind.SECRET,
            read_secret,
            words("Client secret"),
            words("It stands below the client ID. It is stored encrypted and never shown."),
        ),
        CredentialField(
            "categories",
            FieldKind.LIST,
            read_categories,
            words("Categories that serve"),
            words("Messages of these categories, such as IM or ORDER, are sent as service. All others are marketing."),
        ),
        CredentialField(
            "badge_class",
            FieldKind.TEXT,
            read_badge_class,
            words("Class for badges"),
            words("The activity that the launcher starts, with its package. Without it messages change no badge."),
        ),
        *LIMIT_FIELDS,
    ),
    {
        "app_id": words("Honor's app ID"),
        "client_id": words("Honor's client ID"),
        "categories": words("Categories that serve, at Honor"),
        "badge_class": words("Class for badges at Honor"),
        **LIMITS_SHOWN,
    },
    ChannelVendor(
        "Honor",
        "Honor",
        f"CARILLON_HONOR_URL={HONOR_URL} sends to Honor.",
        "Honor judges a test message to an address that nobody has.",
    ),
)


def open_honor(app: App, keys: Keys) -> HonorCredentials | None:
    """Decrypt the app's credentials; None if it has none. CarillonError: they were sealed with another master key."""
    opened = open_credentials(app, CHANNEL_HONOR, keys)
    if opened is None:
        return None
    settings = opened.settings
    return HonorCredentials(
        app_id=settings["app_id"],
        client_id=settings["client_id"],
        client_secret=opened.secret,
        categories=frozenset(filter(None, settings.get("categories", "").split(","))),
        badge_class=settings.get("badge_class", ""),
        limits=limits_of(settings),
    )
