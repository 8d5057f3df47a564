"""The form of a channel's credentials: which fields people fill in, how each is checked, and what is shown later."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from protos.registry.v1.apps_pb2 import Channel
from services.domain.channel_receipts.receipts import VendorReceipts

MAX_VALUE_LENGTH = 16 * 1024
NEW = "new"
"""The value of a field whose secret Carillon makes."""


class FieldKind(Enum):
    """How people give a field. Those with a secret are never shown again."""

    TEXT = "a line"
    LIST = "entries, between commas or on lines"
    SECRET = "the content of a file with the secret"  # noqa: S105  # what it is, no secret
    MADE = f"{NEW!r}, by which Carillon makes the secret"


class FieldValue(NamedTuple):
    """The part of an app's credentials that the value of one field becomes.

    `secret`: None leaves the present one. `settings`: the settings, which may be shown.
    """

    settings: Mapping[str, str]
    secret: str | None = None


@dataclass(frozen=True, slots=True)
class CredentialField:
    """A field. `read` checks a value given at the path of the second argument; InputError, which quotes no secret.

    `is_needed`: an app's first credentials need it. `label` and `hint` are the words for people, marked by `words`.
    """

    name: str
    kind: FieldKind
    read: Callable[[str, str], FieldValue]
    label: str
    hint: str = ""
    is_needed: bool = False


class ChannelVendor(NamedTuple):
    """Who runs the push services of a channel, in the words of commands and of the start.

    `name`: such as Google. `service`: what a simulator answers in the place of. `setting`: how requests reach it
    instead. `check`: what it does to try out credentials; "" if it cannot.
    """

    name: str
    service: str
    setting: str
    check: str = ""


@dataclass(frozen=True, slots=True)
class CredentialsForm:
    """The fields that people fill in for one channel, in order; exactly one field has the secret.

    `shown`: the settings that are shown, with their labels for people. `receipts`: how the vendor tells later what
    became of messages; None if it tells nothing.
    """

    channel: "Channel.ValueType"
    title: str
    fields: tuple[CredentialField, ...]
    shown: Mapping[str, str]
    vendor: ChannelVendor
    hint: str = ""
    receipts: VendorReceipts | None = None
    by_name: Mapping[str, CredentialField] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {each.name: each for each in self.fields})

    @property
    def name(self) -> str:
        """The channel's name, such as "webpush"."""
        return Channel.Name(self.channel).removeprefix("CHANNEL_").lower()

    @property
    def secret_field(self) -> CredentialField:
        return next(each for each in self.fields if each.kind in (FieldKind.SECRET, FieldKind.MADE))

    def path(self, name: str) -> str:
        """Return the name of a field or setting among those of all channels, such as "webpush_contact"."""
        return f"{self.name}_{name}"


def field_option(form: CredentialsForm, field: CredentialField) -> str:
    """Return the option of `carillon app set` for a field; the one whose secret is made bears the channel's name."""
    if field.kind is FieldKind.MADE:
        return f"--{form.name}"
    return f"--{form.name}-{field.name.replace('_', '-')}"


def words(text: str) -> str:
    """Mark a text for the catalogues of the console, which translates it where it is shown."""
    return text
