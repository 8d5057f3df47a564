"""The form of an app's settings: its fields as the app has them, and the change that a sent form asks for.

The registry checks values, as those of `carillon app set`; here only the form of numbers and choices is checked.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from protos.registry.v1.apps_pb2 import (
    APNS_ENVIRONMENT_BOTH,
    APNS_ENVIRONMENT_PRODUCTION,
    APNS_ENVIRONMENT_SANDBOX,
    PLATFORM_IOS,
    ApnsEnvironment,
    App,
    Quotas,
)
from protos.registry.v1.registry_pb2 import (
    AllowFromChange,
    ApnsKeyChange,
    ChannelChange,
    IdentityChange,
    IdentityKeys,
    IdentityTags,
    UpdateAppRequest,
    WebOrigins,
)
from services.domain.addresses import ROUTES, route_name
from services.domain.channel_credentials.fields import CredentialsForm, FieldKind
from services.domain.channel_credentials.forms import FORMS
from services.domain.channel_credentials.stored import credentials_of, settings_of
from services.domain.identity import MODES, identity_mode_name
from services.errors import Code, InputError

Form = Mapping[str, str]

QUOTAS = tuple(Quotas.DESCRIPTOR.fields_by_name)
ENVIRONMENT_NAMES: Mapping["ApnsEnvironment.ValueType", Literal["production", "sandbox", "both"]] = MappingProxyType(
    {
        APNS_ENVIRONMENT_PRODUCTION: "production",
        APNS_ENVIRONMENT_SANDBOX: "sandbox",
        APNS_ENVIRONMENT_BOTH: "both",
    }
)
ENVIRONMENTS: Mapping[str, "ApnsEnvironment.ValueType"] = MappingProxyType(
    {name: number for number, name in ENVIRONMENT_NAMES.items()}
)
_UNITS_S = {"d": 86_400, "h": 3600, "min": 60, "s": 1}
_MAX_DIGITS = 15
_REMOVE = "remove"
_REGISTRATIONS: Final = "registrations_per_minute"
"""The quota of which an empty field means the installation's, and 0 none."""
_PEM = re.compile(r"-----BEGIN [A-Z ]+-----[^-]*-----END [A-Z ]+-----")


def form_of(app: App) -> dict[str, str]:
    """Return the fields of the form. Private keys are not among them: what is stored of one is never shown."""
    unit = next(unit for unit, length in _UNITS_S.items() if app.default_period_s % length == 0)
    fields = {
        "name": app.name,
        "period": str(app.default_period_s // _UNITS_S[unit]),
        "period_unit": unit,
        "acks": "on" if app.ack_info_enabled else "off",
        "allow_from": "\n".join(app.allow_from),
        "channel_route": route_name(app),
        "identity": identity_mode_name(app),
        "identity_keys": "".join(app.identity.keys),
        "identity_tags": "\n".join(app.identity.tags),
    }
    fields |= {name: str(getattr(app.quotas, name) or "") for name in QUOTAS}
    if app.quotas.HasField(_REGISTRATIONS):
        fields[_REGISTRATIONS] = str(app.quotas.registrations_per_minute)
    if app.platform == PLATFORM_IOS:
        fields |= {"key_id": app.apns.key_id, "apple_team": app.apns.team_id, "topic": app.apns.topic or app.package}
        fields["apns_reports"] = "on" if app.apns_reports else "off"
        fields["environment"] = ENVIRONMENT_NAMES.get(app.apns.environment, "production")
    else:
        fields |= {**_fields_of_channels(app), "web_origins": "\n".join(app.web_origins)}
    return fields


def difference_of(app: App, form: Form, shown: Form, *, with_quotas: bool) -> UpdateAppRequest:
    """Return the change of the fields that differ from the form that was shown; of all if `shown` is empty.

    InputError as for `_change_of`.
    """
    change = _change_of(app, form, with_quotas=with_quotas)
    if not shown:
        return change
    same = _change_of(app, shown, with_quotas=with_quotas)
    for name in (
        "name",
        "default_period_s",
        "ack_info_enabled",
        "allow_from",
        "channel_route",
        "web_origins",
        "apns_reports",
    ):
        if getattr(change, name) == getattr(same, name):
            change.ClearField(name)
    _drop_same(change, same, "apns")
    _drop_same(change, same, "quotas")
    _drop_same(change, same, "identity")
    _drop_same_channels(change, same)
    return change


def _drop_same(change: UpdateAppRequest, same: UpdateAppRequest, name: Literal["apns", "quotas", "identity"]) -> None:
    """Drop the fields of a part that have the same value in `same`, and the part itself once it is empty."""
    part, other = getattr(change, name), getattr(same, name)
    for field, value in other.ListFields():
        if (not field.has_presence or part.HasField(field.name)) and getattr(part, field.name) == value:
            part.ClearField(field.name)
    if not part.ListFields():
        change.ClearField(name)


def _drop_same_channels(change: UpdateAppRequest, same: UpdateAppRequest) -> None:
    """Drop the fields of channels that have the same value in `same`, and channels whose fields were all dropped."""
    others = {each.channel: each.fields for each in same.channels}
    for each in change.channels:
        for name, value in others.get(each.channel, {}).items():
            if each.fields.get(name) == value:
                del each.fields[name]
    kept = [each for each in change.channels if each.fields or each.remove]
    del change.channels[:]
    change.channels.extend(kept)


def _change_of(app: App, form: Form, *, with_quotas: bool) -> UpdateAppRequest:
    """Return the change of all that the form has. InputError: a field is no number, or no choice of the form."""
    change = UpdateAppRequest(
        appkey=app.appkey,
        name=form.get("name", "").strip(),
        default_period_s=_period_s(form),
        allow_from=AllowFromChange(networks=_listed(form, "allow_from")),
    )
    if app.platform == PLATFORM_IOS:
        if (apns := _apns_change(app, form)) is not None:
            change.apns.CopyFrom(apns)
        if (reports := form.get("apns_reports")) is not None:
            change.apns_reports = reports == "on"
    else:
        change.ack_info_enabled = form.get("acks") == "on"
        if (route := ROUTES.get(form.get("channel_route", ""))) is not None:
            change.channel_route = route
        changes = (_channel_change(app, form, channel) for channel in FORMS.values())
        change.channels.extend(each for each in changes if each is not None)
        if "web_origins" in form:
            change.web_origins.CopyFrom(WebOrigins(origins=_listed(form, "web_origins")))
    if "identity" in form:
        change.identity.CopyFrom(_identity_change(form))
    if with_quotas:
        for name in QUOTAS:
            setattr(change.quotas, name, _number(name, form.get(name, "")))
        if not form.get(_REGISTRATIONS, "").strip():
            change.quotas.ClearField(_REGISTRATIONS)
            change.quotas.default_registrations = True
    return change


def _listed(form: Form, name: str) -> list[str]:
    """Return the entries of a field, which stand on lines or between commas."""
    return form.get(name, "").replace(",", " ").split()


def _channel_change(app: App, form: Form, channel: CredentialsForm) -> ChannelChange | None:
    """Return what is to change about the credentials on a channel; None for an app that has none and gets none."""
    secret = channel.secret_field
    given = form.get(channel.path(secret.name), "").strip()
    if _REMOVE in (given, form.get(channel.path(_REMOVE))):
        return ChannelChange(channel=channel.channel, remove=True)
    if not given and credentials_of(app, channel.channel) is None:
        return None
    others = {field.name: channel.path(field.name) for field in channel.fields if field is not secret}
    fields = {name: form[path].strip() for name, path in others.items() if path in form}
    if given:
        fields[secret.name] = given
    return ChannelChange(channel=channel.channel, fields=fields) if fields else None


def _fields_of_channels(app: App) -> dict[str, str]:
    """Return the fields of the channels' forms, those with a secret empty."""
    fields = {}
    for channel in FORMS.values():
        settings = settings_of(app, channel.channel)
        for field in channel.fields:
            value = "" if field is channel.secret_field else settings.get(field.name, "")
            fields[channel.path(field.name)] = value.replace(",", "\n") if field.kind is FieldKind.LIST else value
    return fields


def secrets_emptied(form: Form) -> dict[str, str]:
    """Return a form that was sent, to be shown again, without any private key in it."""
    keys = form.get("identity_keys", "")
    files = [each.path(each.secret_field.name) for each in FORMS.values() if each.secret_field.kind is FieldKind.SECRET]
    emptied = dict.fromkeys(("pem", *files), "")
    return {**form, **emptied, "identity_keys": "" if "PRIVATE KEY" in keys else keys}


def _identity_change(form: Form) -> IdentityChange:
    """Return the change of the proofs. Text without a PEM block is passed on, and the registry refuses it."""
    mode = MODES.get(form.get("identity", ""))
    if mode is None:
        raise InputError(Code.NO_PROOF_CHOICE)
    text = form.get("identity_keys", "").strip()
    pems = _PEM.findall(text) or ([text] if text else [])
    tags = form.get("identity_tags", "").replace(",", "\n").splitlines()
    return IdentityChange(
        mode=mode,
        keys=IdentityKeys(pems=[f"{pem.replace(chr(13), '')}\n" for pem in pems]),
        tags=IdentityTags(tags=[stripped for tag in tags if (stripped := tag.strip())]),
    )


def _period_s(form: Form) -> int:
    length = _UNITS_S.get(form.get("period_unit", ""))
    if length is None:
        raise InputError(Code.NO_UNIT)
    return _number("default_period_s", form.get("period", "")) * length


def _number(name: str, text: str) -> int:
    """Return a whole number; nothing is 0."""
    digits = text.strip().replace(",", "")
    if digits and not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS):
        raise InputError(Code.NO_WHOLE_NUMBER, at=name)
    return int(digits or 0)


def _apns_change(app: App, form: Form) -> ApnsKeyChange | None:
    """Return what is to change about the key for Apple; None for an app that has none and gets none."""
    if form.get("apns") == _REMOVE:
        return ApnsKeyChange(remove=True)
    pem, key_id, team_id = (form.get(name, "").strip() for name in ("pem", "key_id", "apple_team"))
    if not (app.HasField("apns") or pem or key_id or team_id):
        return None
    environment = ENVIRONMENTS.get(form.get("environment", ""))
    if environment is None:
        raise InputError(Code.NO_APNS_ENVIRONMENT)
    return ApnsKeyChange(
        pem=f"{pem}\n" if pem else None,
        key_id=key_id or None,
        team_id=team_id or None,
        topic=form.get("topic", "").strip() or None,
        environment=environment,
    )
