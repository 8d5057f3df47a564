"""Credentials of an app at Huawei's Push Kit (HMS): its client id and secret, from AppGallery Connect."""

from dataclasses import dataclass, field

from protos.registry.v1.apps_pb2 import CHANNEL_HMS, App
from services.domain.channel_credentials.fields import (
    ChannelVendor,
    CredentialField,
    CredentialsForm,
    FieldKind,
    FieldValue,
    words,
)
from services.domain.channel_credentials.limits import LIMIT_FIELDS, LIMITS_SHOWN, VendorLimits, limits_of
from services.domain.channel_credentials.readers import (
    granted_category,
    id_reader,
    read_badge_class,
    read_categories,
    read_secret,
)
from services.domain.channel_credentials.stored import open_credentials
from services.domain.channel_receipts.hms import HMS_RECEIPTS
from services.domain.channel_receipts.receipts import KEY_SETTING as RECEIPTS_KEY
from services.domain.channel_receipts.receipts import SETTING as RECEIPTS
from services.domain.channel_receipts.receipts import ReceiptTags, read_setting
from services.domain.master_key import Keys

HUAWEI_URL = "https://push-api.cloud.huawei.com"
HUAWEI_TOKEN_URL = "https://oauth-login.cloud.huawei.com/oauth2/v3/token"  # noqa: S105  # an address, no secret


@dataclass(frozen=True, slots=True)
class HmsCredentials:
    """Credentials of an app. `project_id`: "" for the older call, which names the app alone.

    `categories`, `badge_class`: what its messages may bear; they have no part in who it is. `categories`: those that
    Huawei has granted. `badge_class`: the class of the activity that the launcher starts, "" for no badges.
    `receipts`: the marks of messages for which Huawei is asked for receipts; None: it is not.
    """

    client_id: str
    client_secret: str = field(repr=False)
    project_id: str = ""
    categories: frozenset[str] = field(default=frozenset(), compare=False)
    badge_class: str = field(default="", compare=False)
    receipts: ReceiptTags | None = field(default=None, compare=False)
    limits: VendorLimits = field(default=VendorLimits(), compare=False)

    def category(self, wanted: str) -> str:
        """Return the category of a message that is said to be of another one, or of "" for none."""
        return granted_category(wanted, self.categories)


HMS = CredentialsForm(
    CHANNEL_HMS,
    words("Huawei (HMS)"),
    (
        CredentialField(
            "client_id",
            FieldKind.TEXT,
            id_reader("client_id"),
            words("Client ID"),
            words("From AppGallery Connect: Project settings, General information, OAuth 2.0 client ID."),
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
            "project_id",
            FieldKind.TEXT,
            id_reader("project_id", is_optional=True),
            words("Project ID"),
            words("From the same page. Without it messages are sent by version 1 of Huawei's call."),
        ),
        CredentialField(
            "categories",
            FieldKind.LIST,
            read_categories,
            words("Granted categories"),
            words("Those that Huawei has granted the app, such as IM or WORK. All other messages are MARKETING."),
        ),
        CredentialField(
            "badge_class",
            FieldKind.TEXT,
            read_badge_class,
            words("Class for badges"),
            words("The activity that the launcher starts, with its package. Without it messages change no badge."),
        ),
        CredentialField(
            RECEIPTS,
            FieldKind.TEXT,
            lambda value, at: FieldValue(read_setting(value, at)),
            words("Receipts"),
            words("on makes the token of the URL for them, signed also a key for Huawei's signatures, off ends them."),
        ),
        *LIMIT_FIELDS,
    ),
    {
        "client_id": words("Huawei's client ID"),
        "project_id": words("Huawei's project ID"),
        "categories": words("Categories granted by Huawei"),
        "badge_class": words("Class for badges at Huawei"),
        RECEIPTS: words("Token of the URL for Huawei's receipts"),
        RECEIPTS_KEY: words("Key for the signatures of Huawei's receipts"),
        **LIMITS_SHOWN,
    },
    ChannelVendor(
        "Huawei",
        "Huawei (HMS)",
        f"CARILLON_HMS_URL={HUAWEI_URL} sends to Huawei.",
        "Huawei validates a message to an address that nobody has.",
    ),
    receipts=HMS_RECEIPTS,
)


def open_hms(app: App, keys: Keys) -> HmsCredentials | None:
    """Decrypt the app's credentials; None if it has none. CarillonError: they were sealed with another master key."""
    opened = open_credentials(app, CHANNEL_HMS, keys)
    if opened is None:
        return None
    settings = opened.settings
    return HmsCredentials(
        client_id=settings["client_id"],
        client_secret=opened.secret,
        project_id=settings.get("project_id", ""),
        categories=frozenset(filter(None, settings.get("categories", "").split(","))),
        badge_class=settings.get("badge_class", ""),
        receipts=ReceiptTags(app.appkey, CHANNEL_HMS, keys) if settings.get(RECEIPTS) else None,
        limits=limits_of(settings),
    )
