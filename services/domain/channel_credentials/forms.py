"""The forms of all channels, and changes of an app's credentials."""

from collections.abc import Mapping
from types import MappingProxyType

from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App, Channel, ChannelSetting
from protos.registry.v1.registry_pb2 import ChannelChange
from services.domain.addresses import channel_name
from services.domain.channel_credentials.fcm import FCM
from services.domain.channel_credentials.fields import MAX_VALUE_LENGTH, CredentialsForm
from services.domain.channel_credentials.harmony import HARMONY
from services.domain.channel_credentials.hms import HMS
from services.domain.channel_credentials.honor import HONOR
from services.domain.channel_credentials.oppo import OPPO
from services.domain.channel_credentials.stored import credentials_of, sealing_context, settings_of
from services.domain.channel_credentials.vivo import VIVO
from services.domain.channel_credentials.webpush import WEB_PUSH
from services.domain.channel_credentials.xiaomi import XIAOMI
from services.domain.master_key import Keys
from services.errors import Code, InputError

_BY_CHANNEL: dict["Channel.ValueType", CredentialsForm] = {
    form.channel: form for form in (WEB_PUSH, FCM, HMS, HARMONY, HONOR, XIAOMI, OPPO, VIVO)
}

FORMS: Mapping["Channel.ValueType", CredentialsForm] = MappingProxyType(_BY_CHANNEL)
"""The form of each channel for which an app may have credentials, in the order in which people see them."""


def change_credentials(app: App, change: ChannelChange, keys: Keys) -> None:
    """Apply the change to the app in place. Fields that the change does not name stay.

    InputError names the wrong field, and never contains a secret.
    """
    form = FORMS.get(change.channel)
    if form is None:
        raise InputError(f"apps have no credentials for the channel {channel_name(change.channel)}")
    if app.platform != PLATFORM_ANDROID:
        raise InputError(
            f"app {app.appkey} is an iOS app, which Apple's service alone reaches: it takes no credentials for"
            f" {form.title}; browsers, also those on iPhones, belong to an Android app"
        )
    if change.remove:
        if change.fields:
            raise InputError(f"the credentials for {form.title} are removed whole: name no field of them")
        kept = [each for each in app.channels if each.channel != change.channel]
        del app.channels[:]
        app.channels.extend(kept)
        return
    _apply(app, form, change.fields, keys)


def _apply(app: App, form: CredentialsForm, given: Mapping[str, str], keys: Keys) -> None:
    for name, value in given.items():
        if name not in form.by_name:
            raise InputError(Code.UNKNOWN, at=form.path(name))
        if len(value.encode()) > MAX_VALUE_LENGTH:
            raise InputError(Code.WRONG_BYTES, at=form.path(name), most=MAX_VALUE_LENGTH)
    stored = credentials_of(app, form.channel)
    if stored is None:
        _check_complete(app, form, given)
    settings = settings_of(app, form.channel)
    secret: str | None = None
    for field in form.fields:
        if field.name in given:
            part = field.read(given[field.name], form.path(field.name))
            settings.update(part.settings)
            secret = secret if part.secret is None else part.secret
    if stored is None:
        stored = app.channels.add(channel=form.channel)
    if secret is not None:
        stored.sealed_secret = keys.seal(secret, sealing_context(app, form.channel))
    del stored.settings[:]
    stored.settings.extend(ChannelSetting(name=name, value=value) for name, value in settings.items() if value)


def _check_complete(app: App, form: CredentialsForm, given: Mapping[str, str]) -> None:
    """Check that an app's first credentials have all that is needed, the secret first."""
    for field in (form.secret_field, *(field for field in form.fields if field.is_needed)):
        if field.name not in given:
            by = f"app {app.appkey}, which has no credentials for {form.title} yet,"
            raise InputError(Code.NEEDED, at=form.path(field.name), by=by)


def settings_lines(app: App) -> dict[str, str]:
    """Return what may be shown of all credentials by path, such as `webpush_contact`; "none" where there is nothing."""
    lines: dict[str, str] = {}
    for form in FORMS.values():
        settings = settings_of(app, form.channel)
        lines |= {form.path(name): settings.get(name, "none") for name in form.shown}
    return lines


def replaced_secrets(before: App, after: App) -> list[str]:
    """Return the paths of the fields whose secret is another one than before; not those that are gone."""
    changed = []
    for form in FORMS.values():
        old, new = credentials_of(before, form.channel), credentials_of(after, form.channel)
        if new is not None and (old is None or old.sealed_secret != new.sealed_secret):
            changed.append(form.path(form.secret_field.name))
    return changed
