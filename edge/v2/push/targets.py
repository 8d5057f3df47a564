"""sendTo of a v2 push: an audience for each app, with the limits and descriptions of its fields."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import msgspec

from edge.core.parsing import targets as optfilter
from edge.core.parsing.fields import (
    LIST_LIMIT,
    NAME_BYTES,
    Aliases,
    AnyIosToken,
    AnyTokens,
    IosAppkey,
    IosToken,
    Name,
    NotEmpty,
    Rule,
    Shown,
    Token,
    described,
    required_where,
)
from edge.core.parsing.targets import check_misspelt
from edge.core.parsing.typed import ABSENT, convert, decode
from edge.core.signature import AppRef
from edge.v2.apps import Appkeys, PushApps
from protos.push.v1 import push_pb2
from protos.push.v1.push_pb2 import Audience, Everyone, Filter, StagGroup, TagGroup, Tokens
from services.domain.ios_tokens import ios_token, ios_tokens
from services.domain.limits import (
    MAX_ENTRIES,
    MAX_GROUP_TAGS,
    MAX_GROUPS,
    check_count,
    check_filter_size,
    check_written,
)
from services.errors import Code, InputError

TAG_LIMIT = 32727
NAME_CHARACTERS = 40
"""Limit of a string tag in a filter, in code points. A device's string tags are limited in bytes, see `NAME_BYTES`."""


Names = Annotated[list[str], msgspec.Meta(min_length=1, max_length=LIST_LIMIT)]
Tag = Annotated[int, msgspec.Meta(ge=-TAG_LIMIT, le=TAG_LIMIT)]
_GROUPS = msgspec.Meta(max_length=MAX_GROUPS)
_GROUP = msgspec.Meta(min_length=1, max_length=MAX_GROUP_TAGS)
_FLAT = msgspec.Meta(max_length=MAX_GROUP_TAGS)
_Stag = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARACTERS)]
TagLists = Annotated[list[Tag | Annotated[list[Tag], _GROUP]], _GROUPS]
StagLists = Annotated[list[_Stag | Annotated[list[_Stag], _GROUP]], _GROUPS]

# Unions of two kinds of lists, which msgspec cannot decode: `_groups` tells them apart.
_TAGS = Shown(Annotated[list[Annotated[list[Tag], _GROUP]], _GROUPS], Annotated[list[Tag], _FLAT], None)
_STAGS = Shown(Annotated[list[Annotated[list[_Stag], _GROUP]], _GROUPS], Annotated[list[_Stag], _FLAT], None)
_IosTokens = Annotated[list[AnyIosToken], msgspec.Meta(min_length=1, max_length=LIST_LIMIT)]
_TokensByApp = Annotated[dict[IosAppkey, IosToken | _IosTokens], msgspec.Meta(min_length=1)]


class TokenTargets(msgspec.Struct, frozen=True):
    android: Annotated[
        Token | AnyTokens | None, described("A token or a list of tokens. A repeated token is sent to again.")
    ] = None
    ios: Annotated[
        msgspec.Raw,
        Shown(IosToken | _IosTokens | _TokensByApp | None),
        described("As android; when the iOS apps are a list, an object from appkey to a token or a list."),
    ] = ABSENT


class OptFilters(msgspec.Struct, frozen=True):
    android: Annotated[
        msgspec.Raw,
        Shown(optfilter.DeviceFilter | None),
        described("The filter; all of its options must match."),
    ] = ABSENT


class SendTo(msgspec.Struct, frozen=True):
    shown_rules: ClassVar[tuple[Rule, ...]] = (
        required_where("userScope", [0], "appkey.android", "appkey.ios"),
        required_where("userScope", [1, 7, 8], "appkey.android"),
        required_where("userScope", [2], "appkey.ios"),
        required_where("userScope", [3, 4], "alias"),
        required_where("userScope", [5], "token"),
        required_where("userScope", [7, 8], "optfilter.android"),
    )

    appkey: Annotated[msgspec.Raw, Shown(Appkeys), described("The apps. userScope 0 needs both platforms.")]
    user_scope: Annotated[
        int,
        msgspec.Meta(ge=0, le=8),
        described(
            "0 all devices on both platforms; 1 all on Android, 2 all on iOS; 3 the most recently active device of each"
            " alias, 4 all of its devices; 5 tokens; 6 tags or string tags; 7 device attributes (Android); 8 tags and"
            " device attributes (Android). Targets that do not belong to the scope are absent or empty. A filter has at"
            f" most {MAX_ENTRIES} tags and values in all."
        ),
    ] = msgspec.field(name="userScope")
    tag: Annotated[
        msgspec.Raw,
        _TAGS,
        described("Groups of number tags: a device has all tags of at least one group. A flat list is one group."),
    ] = ABSENT
    not_tag: Annotated[msgspec.Raw, _TAGS, described("As tag, excluded.")] = ABSENT
    stag: Annotated[msgspec.Raw, _STAGS, described("Groups of string tags; not together with tag or not_tag.")] = ABSENT
    not_stag: Annotated[msgspec.Raw, _STAGS, described("As stag, excluded.")] = ABSENT
    alias: Annotated[
        msgspec.Raw, Shown(Name | Aliases | None), described("An alias or a list; not together with a filter.")
    ] = ABSENT
    token: Annotated[
        msgspec.Raw, Shown(TokenTargets | None), described("Tokens by platform; not together with a filter.")
    ] = ABSENT
    optfilter: Annotated[msgspec.Raw, Shown(OptFilters | None), described("Device attributes, for Android.")] = ABSENT


_EMPTY, _EMPTY_IN_SPACES = (b'""',), (b"[]", b"{}")
_SomeNames = NotEmpty | Names
_NamesOrNone = NotEmpty | Names | None
_TagListsOrNone = TagLists | None
_StagListsOrNone = StagLists | None
_TokensOrNone = TokenTargets | None
_OptFiltersOrNone = OptFilters | None


_TAG_FIELDS = ("tag", "not_tag", "stag", "not_stag")
ALL_TARGETS = (*_TAG_FIELDS, "alias", "token", "optfilter")
TARGETS: Mapping[int, Collection[str]] = MappingProxyType(
    {3: ("alias",), 4: ("alias",), 5: ("token",), 6: _TAG_FIELDS, 7: ("optfilter",), 8: (*_TAG_FIELDS, "optfilter")}
)
"""The fields that name the targets of each userScope; the others have none."""

_NAMES = {f"{name}s": f"sendTo.{name}" for name in _TAG_FIELDS} | dict.fromkeys(
    ("attributes", "models", "activity"), "sendTo.optfilter.android"
)


_KEYS = {field.encode_name for field in msgspec.structs.fields(SendTo)}


class AppAudience(msgspec.Struct, frozen=True):
    """The audience of one app's push. `is_single_token`: the request names a token, not a list."""

    app: AppRef
    audience: Audience
    is_single_token: bool = False


def check_keys(given: Iterable[str]) -> None:
    """Check that no key of sendTo is a misspelt target. InputError: a key is misspelt."""
    check_misspelt(given, _KEYS, ALL_TARGETS, "sendTo.")


def app_audiences(send_to: SendTo, apps: PushApps) -> list[AppAudience]:
    """Return an audience for each app of the push, Android first.

    InputError: a field that would narrow the audience does not belong to the userScope.
    """
    given = _given(send_to)
    if {"token", "alias"}.intersection(given) and {*_TAG_FIELDS, "optfilter"}.intersection(given):
        raise InputError("sendTo: token or alias cannot be combined with a filter")
    for name in given:
        if name not in TARGETS.get(send_to.user_scope, ()):
            raise InputError(f"sendTo.{name} does not belong to userScope {send_to.user_scope}: leave it out or empty")
    if send_to.user_scope == 5:
        return _by_token(decode(_TokensOrNone, send_to.token, "sendTo.token"), apps)
    audience = _audience(send_to)
    every_app = (apps.android, *apps.ios) if apps.android else apps.ios
    return [AppAudience(app, audience) for app in every_app]


def _audience(send_to: SendTo) -> Audience:
    match send_to.user_scope:
        case 0 | 1 | 2:
            return Audience(everyone=Everyone())
        case 3 | 4:
            return Audience(
                aliases=push_pb2.Aliases(aliases=_aliases(send_to.alias), all_devices=send_to.user_scope == 4)
            )
        case scope:
            wanted = _tag_filter(send_to) if scope != 7 else Filter()
            if scope != 6:
                wanted.MergeFrom(_opt_filter(send_to.optfilter))
            check_filter_size(wanted, _NAMES)
            return Audience(filter=wanted)


def _given(send_to: SendTo) -> list[str]:
    """Return the names of the targets that are not empty."""
    fields = [(name, raw) for name in ALL_TARGETS if (raw := getattr(send_to, name)) != ABSENT]
    return [name for name, raw in fields if bytes(raw) not in _EMPTY and _without_spaces(raw) not in _EMPTY_IN_SPACES]


def _without_spaces(raw: msgspec.Raw) -> bytes:
    return bytes(raw).translate(None, b" \t\r\n")


def _aliases(raw: msgspec.Raw) -> list[str]:
    given: str | list[str] | None = decode(_NamesOrNone, raw, "sendTo.alias")
    if given is None:
        raise InputError(Code.MISSING, at="sendTo.alias")
    if isinstance(given, str):
        _check_bytes(given, "sendTo.alias")
        return [given]
    return given


def _check_bytes(name: str, path: str) -> None:
    if not 1 <= len(name.encode()) <= NAME_BYTES:
        raise InputError(Code.WRONG_BYTES, at=path, most=NAME_BYTES)


def _tag_filter(send_to: SendTo) -> Filter:
    tags, not_tags = (_tag_groups(send_to.tag, "sendTo.tag"), _tag_groups(send_to.not_tag, "sendTo.not_tag"))
    stags, not_stags = (_stag_groups(send_to.stag, "sendTo.stag"), _stag_groups(send_to.not_stag, "sendTo.not_stag"))
    if (tags or not_tags) and (stags or not_stags):
        raise InputError(Code.TAGS_OF_BOTH_KINDS)
    if not (tags or not_tags or stags or not_stags):
        raise InputError(Code.NO_TAGS)
    return Filter(tags=tags, not_tags=not_tags, stags=stags, not_stags=not_stags)


def _tag_groups(raw: msgspec.Raw, path: str) -> list[TagGroup]:
    return [TagGroup(tags=group) for group in _groups(_TagListsOrNone, raw, path)]


def _stag_groups(raw: msgspec.Raw, path: str) -> list[StagGroup]:
    return [StagGroup(stags=group) for group in _groups(_StagListsOrNone, raw, path)]


def _groups(kind: Any, raw: msgspec.Raw, path: str) -> list[list[Any]]:
    """Return the OR of AND groups; a flat list is one group."""
    check_written(bytes(raw), path)
    lists: Sequence[Any] = decode(kind, raw, path) or []
    nested = [isinstance(entry, list) for entry in lists]
    if all(nested):
        check_count(sum(map(len, lists)), path)
        return list(lists)
    if any(nested):
        raise InputError(Code.WRONG_TYPE, at=path, kinds="a list of lists")
    if len(lists) > MAX_GROUP_TAGS:
        raise InputError(Code.FLAT_LIST_TOO_LONG, at=path, most=MAX_GROUP_TAGS)
    return [list(lists)]


def _opt_filter(raw: msgspec.Raw) -> Filter:
    by_platform: OptFilters | None = decode(_OptFiltersOrNone, raw, "sendTo.optfilter")
    if by_platform is None:
        raise InputError(Code.MISSING, at="sendTo.optfilter")
    if by_platform.android == ABSENT:
        raise InputError(Code.MISSING, at="sendTo.optfilter.android")
    return optfilter.read(by_platform.android, "sendTo.optfilter.android")


def _by_token(given: TokenTargets | None, apps: PushApps) -> list[AppAudience]:
    if given is None:
        raise InputError(Code.MISSING, at="sendTo.token")
    found: list[AppAudience] = []
    if given.android is not None:
        if apps.android is None:
            raise InputError(Code.NEEDED, at="sendTo.appkey.android", by="sendTo.token.android")
        found.append(_token_audience(apps.android, given.android))
    if given.ios != ABSENT:
        if not apps.ios:
            raise InputError(Code.NEEDED, at="sendTo.appkey.ios", by="sendTo.token.ios")
        found += _ios_tokens(given.ios, apps)
    if not found:
        raise InputError(Code.NO_TOKENS, at="sendTo.token")
    return found


def _ios_tokens(raw: msgspec.Raw, apps: PushApps) -> list[AppAudience]:
    path = "sendTo.token.ios"
    if not apps.ios_listed:
        return [_ios_audience(apps.ios[0], decode(_SomeNames, raw, path), path)]
    by_app: dict[str, Any] = decode(dict[str, Any], raw, path)
    of_request = {app.appkey: app for app in apps.ios}
    if not by_app:
        raise InputError(Code.EMPTY, at=path)
    for appkey in by_app:
        if appkey not in of_request:
            raise InputError(f"{path}.{appkey} is not one of sendTo.appkey.ios")
    return [
        _ios_audience(app, convert(_SomeNames, by_app[app.appkey], f"{path}.{app.appkey}"), f"{path}.{app.appkey}")
        for app in apps.ios
        if app.appkey in by_app
    ]


def _ios_audience(app: AppRef, given: str | list[str], path: str) -> AppAudience:
    return _token_audience(app, ios_token(given, path) if isinstance(given, str) else ios_tokens(given))


def _token_audience(app: AppRef, given: str | list[str]) -> AppAudience:
    tokens = [given] if isinstance(given, str) else given
    return AppAudience(app, Audience(tokens=Tokens(tokens=tokens)), is_single_token=isinstance(given, str))
