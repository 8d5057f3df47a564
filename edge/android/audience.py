"""The audience of a legacy Android push, which follows from the fields that are given."""

import json

import msgspec

from edge.android.bodies import OPTFILTER_BYTES, AndroidFilter, AndroidPushBody
from edge.core.parsing import targets
from edge.core.parsing.fields import NAME_BYTES
from edge.core.parsing.typed import ABSENT, decode
from protos.push.v1.push_pb2 import (
    KIND_BROADCAST,
    KIND_MULTICAST,
    KIND_UNICAST,
    Aliases,
    Audience,
    Everyone,
    Filter,
    Kind,
    TagGroup,
    Tokens,
)
from services.domain.limits import check_filter_size
from services.errors import InputError


def kind_of(body: AndroidPushBody) -> "Kind.ValueType":
    """Return broadcast, multicast or unicast. InputError: fields that exclude each other."""
    filtered = body.filter is not None or body.filter_v2 is not None or body.optfilter != ABSENT
    named = body.token is not None or body.alias is not None
    if filtered and named:
        raise InputError("token or alias cannot be combined with a filter")
    if body.filter is not None and body.filter_v2 is not None:
        raise InputError("filter and filter_v2 cannot both be given")
    if named:
        return KIND_UNICAST
    return KIND_MULTICAST if filtered else KIND_BROADCAST


def audiences(body: AndroidPushBody) -> list[Audience]:
    """Return one audience, or two when tokens and aliases are named, tokens first. Repeated tokens stay."""
    match kind_of(body):
        case Kind.KIND_UNICAST:
            return [*_by_token(body), *_by_alias(body)]
        case Kind.KIND_MULTICAST:
            return [Audience(filter=_filter(body))]
        case _:
            return [Audience(everyone=Everyone())]


def _by_token(body: AndroidPushBody) -> list[Audience]:
    return [] if body.token is None else [Audience(tokens=Tokens(tokens=_listed(body.token)))]


def _by_alias(body: AndroidPushBody) -> list[Audience]:
    if body.alias is None:
        return []
    aliases = _listed(body.alias)
    if isinstance(body.alias, str) and len(body.alias.encode()) > NAME_BYTES:
        raise InputError(f"alias must have 1 to {NAME_BYTES} bytes")
    all_devices = body.alias_send_all == 1
    return [Audience(aliases=Aliases(aliases=dict.fromkeys(aliases), all_devices=all_devices))]


def _listed(given: str | list[str]) -> list[str]:
    return [given] if isinstance(given, str) else given


def _filter(body: AndroidPushBody) -> Filter:
    """Return the filter: `filter` is one group of tags, `filter_v2` several; optfilter is ANDed with them."""
    found = Filter() if body.optfilter == ABSENT else _options(body.optfilter)
    if body.filter is not None:
        found.tags.append(TagGroup(tags=body.filter))
    for group in body.filter_v2 or ():
        found.tags.append(TagGroup(tags=group))
    check_filter_size(found, {"tags": "filter_v2", "attributes": "optfilter", "activity": "optfilter"})
    return found


def _options(raw: msgspec.Raw) -> Filter:
    """Decode optfilter. Its size limit holds for its compact JSON, as it was signed."""
    given = decode(dict[str, object], raw, "optfilter")
    if len(json.dumps(given, ensure_ascii=False, separators=(",", ":")).encode()) > OPTFILTER_BYTES:
        raise InputError(f"optfilter must have at most {OPTFILTER_BYTES} bytes")
    for name in given:
        if name not in AndroidFilter.__struct_fields__:
            raise InputError(f"optfilter.{name} is not known")
    return targets.read(raw, "optfilter")
