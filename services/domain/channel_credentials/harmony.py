"""Credentials of an app at Huawei's Push Kit of HarmonyOS 5 and later: the JSON file of a service account."""

from dataclasses import dataclass, field

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from protos.registry.v1.apps_pb2 import CHANNEL_HARMONY, App
from services.domain.channel_credentials.fields import (
    ChannelVendor,
    CredentialField,
    CredentialsForm,
    FieldKind,
    FieldValue,
    words,
)
from services.domain.channel_credentials.hms import HUAWEI_URL
from services.domain.channel_credentials.limits import LIMIT_FIELDS, LIMITS_SHOWN, VendorLimits, limits_of
from services.domain.channel_credentials.readers import granted_category, read_categories
from services.domain.channel_credentials.stored import open_credentials
from services.domain.channel_receipts.hms import HARMONY_RECEIPTS
from services.domain.channel_receipts.receipts import KEY_SETTING as RECEIPTS_KEY
from services.domain.channel_receipts.receipts import SETTING as RECEIPTS
from services.domain.channel_receipts.receipts import ReceiptTags, read_setting
from services.domain.master_key import Keys
from services.errors import Code, InputError

_MIN_KEY_BITS = 2048


@dataclass(frozen=True, slots=True)
class HarmonyAccount:
    """A service account of a project. `sub_account`: who it is, in its signatures. `private_key`: PEM of an RSA key.

    `categories`, `receipts` as in HmsCredentials; they have no part in who it is.
    """

    project_id: str
    key_id: str
    sub_account: str
    private_key: str = field(repr=False)
    categories: frozenset[str] = field(default=frozenset(), compare=False)
    receipts: ReceiptTags | None = field(default=None, compare=False)
    limits: VendorLimits = field(default=VendorLimits(), compare=False)

    def category(self, wanted: str) -> str:
        """Return the category of a message that is said to be of another one, or of "" for none."""
        return granted_category(wanted, self.categories)


class _File(msgspec.Struct):
    project_id: str
    key_id: str
    private_key: str
    sub_account: str


_files = msgspec.json.Decoder(_File)


def _read_account(content: str, at: str) -> FieldValue:
    """Read the file. InputError, whose text never quotes the key."""
    try:
        file = _files.decode(content)
    except (msgspec.DecodeError, RecursionError):
        raise _unreadable(at, "give the JSON file of a service account, as AppGallery Connect made it") from None
    named = {"project": file.project_id, "key_id": file.key_id, "account": file.sub_account}
    if not all(value.isascii() and value.isprintable() and 0 < len(value) <= 200 for value in named.values()):
        raise _unreadable(at, "its project_id, key_id and sub_account must have 1 to 200 printable characters")
    try:
        key = serialization.load_pem_private_key(file.private_key.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, rsa.RSAPrivateKey) or key.key_size < _MIN_KEY_BITS:
        raise _unreadable(at, f"its private_key must be an RSA key of {_MIN_KEY_BITS} bits at least, in PEM")
    return FieldValue(named, file.private_key)


def _unreadable(at: str, problem: str) -> InputError:
    return InputError(Code.UNREADABLE, at=at, problem=problem)


HARMONY = CredentialsForm(
    CHANNEL_HARMONY,
    words("Huawei (HarmonyOS)"),
    (
        CredentialField(
            "service_account",
            FieldKind.SECRET,
            _read_account,
            words("Content of the service account's JSON file"),
            words(
                "From AppGallery Connect: Project settings, API access, Service account. It is stored encrypted and"
                " never shown."
            ),
        ),
        CredentialField(
            "categories",
            FieldKind.LIST,
            read_categories,
            words("Granted categories"),
            words("Those that Huawei has granted the app, such as IM or WORK. All other messages are MARKETING."),
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
        "account": words("Service account for HarmonyOS"),
        "project": words("Huawei's project ID"),
        "key_id": words("Key id of the service account"),
        "categories": words("Categories granted by Huawei"),
        RECEIPTS: words("Token of the URL for Huawei's receipts"),
        RECEIPTS_KEY: words("Key for the signatures of Huawei's receipts"),
        **LIMITS_SHOWN,
    },
    ChannelVendor(
        "Huawei",
        "Huawei (HarmonyOS)",
        f"CARILLON_HARMONY_URL={HUAWEI_URL} sends to Huawei.",
        "Huawei judges a test message to an address that nobody has.",
    ),
    receipts=HARMONY_RECEIPTS,
)


def open_harmony(app: App, keys: Keys) -> HarmonyAccount | None:
    """Decrypt the app's account; None if it has none. CarillonError: it was sealed with another master key."""
    opened = open_credentials(app, CHANNEL_HARMONY, keys)
    if opened is None:
        return None
    settings = opened.settings
    return HarmonyAccount(
        project_id=settings["project"],
        key_id=settings["key_id"],
        sub_account=settings["account"],
        private_key=opened.secret,
        categories=frozenset(filter(None, settings.get("categories", "").split(","))),
        receipts=ReceiptTags(app.appkey, CHANNEL_HARMONY, keys) if settings.get(RECEIPTS) else None,
        limits=limits_of(settings),
    )
