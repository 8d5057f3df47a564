"""String tags of devices in the v2 interface: endpoints, requests, answers."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
from falcon.asgi import Request, Response

from edge.core.admission import Admission, AdmittedRequest
from edge.core.answers import TOKEN_NOT_FOUND, Content, Reply, answer
from edge.core.parsing.fields import (
    NAME_BYTES,
    AnyToken,
    Appkey,
    Name,
    Rule,
    Shown,
    Sign,
    Success,
    Text,
    described,
    required_one_of,
    shaped_by,
)
from edge.core.parsing.typed import ABSENT, convert, decode
from edge.core.signature import AppRef
from edge.v2.apps import SIGN_BY_LIST, AnyApps, NamedApps, listed_apps, with_platforms
from protos.registry.v1.devices_pb2 import AddStags, Device, DeviceCommand, RemoveStags
from protos.registry.v1.registry_pb2 import GetDevicesRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.log_pb2 import Origin
from services.domain.apps import AppDirectory
from services.domain.command_writer import Command, CommandWriter, device_command
from services.domain.identity import proven_by_server
from services.domain.ios_tokens import spellings
from services.domain.limits import MAX_DEVICE_STAGS, has_room
from services.domain.topics import device_key
from services.errors import InputError
from services.log.topics import partition_of
from services.replica.peers import Peers

# String tags of devices: added, deleted and listed by app servers.

_AT_ONCE = 100

StagsByToken = Mapping[str, Sequence[str]]


class TagOutcome(Enum):
    DONE = 0
    UNKNOWN = 1
    FULL = 2


class AppTokens(NamedTuple):
    """Tokens of devices of one app."""

    app: AppRef
    tokens: Sequence[str]


class StringTags:
    """Reads and changes the string tags of devices. A call looks up all its devices together and appends once."""

    def __init__(self, writer: CommandWriter, peers: Peers, apps: AppDirectory, partitions: int) -> None:
        self._writer = writer
        self._apps = apps
        self._registries = [RegistryServiceStub(channel) for channel in peers.all("registry")]
        self._partitions = partitions

    async def of(self, queries: Sequence[AppTokens]) -> list[dict[str, Sequence[str]]]:
        """Return for each app the string tags of the devices that exist, by token."""
        found = await asyncio.gather(*(self._devices(app.appkey, tokens) for app, tokens in queries))
        return [{token: list(device.stags) for token, device in devices.items()} for devices in found]

    async def add(self, changes: Sequence[tuple[AppRef, StagsByToken]], origin: Origin) -> list[list[TagOutcome]]:
        """Add tags to devices and return an outcome per token for each app, once targeting has applied the change."""
        return await self._change(changes, origin, adding=True)

    async def remove(self, changes: Sequence[tuple[AppRef, StagsByToken]], origin: Origin) -> list[list[TagOutcome]]:
        """Remove tags from devices; a tag that a device does not have is no error."""
        return await self._change(changes, origin, adding=False)

    async def _change(
        self, changes: Sequence[tuple[AppRef, StagsByToken]], origin: Origin, *, adding: bool
    ) -> list[list[TagOutcome]]:
        found = await asyncio.gather(*(self._devices(app.appkey, list(by_token)) for app, by_token in changes))
        outcomes: list[list[TagOutcome]] = []
        commands: list[Command] = []
        for (app, by_token), devices in zip(changes, found, strict=True):
            outcomes.append([])
            for token, stags in by_token.items():
                outcome = _outcome(devices.get(token), stags, adding=adding)
                outcomes[-1].append(outcome)
                if outcome is TagOutcome.DONE:
                    commands.append(self._command(app.appkey, devices[token].token, stags, adding=adding))
        await self._writer.append_and_wait(commands, origin)
        return outcomes

    async def _devices(self, appkey: str, tokens: Sequence[str]) -> dict[str, Device]:
        """Look up the devices that exist, by token as it is given."""
        by_instance: dict[int, list[str]] = {}
        for token in dict.fromkeys(name for given in tokens for name in spellings(given)):
            partition = partition_of(device_key(appkey, token), self._partitions)
            by_instance.setdefault(partition % len(self._registries), []).append(token)
        requests = [
            self._registries[instance].GetDevices(GetDevicesRequest(appkey=appkey, tokens=own[at : at + _AT_ONCE]))
            for instance, own in by_instance.items()
            for at in range(0, len(own), _AT_ONCE)
        ]
        found = {device.token: device for answer in await asyncio.gather(*requests) for device in answer.devices}
        registered = {given: next((name for name in spellings(given) if name in found), None) for given in tokens}
        return {given: found[name] for given, name in registered.items() if name is not None}

    def _command(self, appkey: str, token: str, stags: Sequence[str], *, adding: bool) -> Command:
        command = DeviceCommand(appkey=appkey, token=token)
        if adding:
            command.add_stags.CopyFrom(AddStags(stags=stags, proven=proven_by_server(self._apps.get(appkey), stags)))
        else:
            command.remove_stags.CopyFrom(RemoveStags(stags=stags))
        return device_command(command)


def _outcome(device: Device | None, stags: Sequence[str], *, adding: bool) -> TagOutcome:
    if device is None:
        return TagOutcome.UNKNOWN
    if adding and not has_room(device.stags, stags):
        return TagOutcome.FULL
    return TagOutcome.DONE


# Requests about string tags, with their limits and descriptions. InputError names the field.

MAX_TOKENS = 1000
MAX_STAGS = 100

_TOKENS = msgspec.Meta(min_length=1, max_length=MAX_TOKENS)
_STAGS = msgspec.Meta(min_length=1, max_length=MAX_STAGS)
_NOT_EMPTY = msgspec.Meta(min_length=1)
StagLists = Annotated[dict[AnyToken, Annotated[list[Name], _STAGS]], _TOKENS]
TokenList = Annotated[list[AnyToken], _TOKENS]
ByApp = Annotated[dict[str, Any], _NOT_EMPTY]
_CHANGES = Shown(StagLists, Annotated[dict[Appkey, StagLists], _NOT_EMPTY])
_QUERIES = Shown(TokenList, Annotated[dict[Appkey, TokenList], _NOT_EMPTY])
_PARAMS = ("params", "param")
_CHANGE_RULES = (
    required_one_of(*_PARAMS),
    shaped_by(
        "appkey",
        _PARAMS,
        {"additionalProperties": {"type": "object"}},
        {"additionalProperties": {"type": "array"}},
    ),
)
_QUERY_RULES = (
    required_one_of(*_PARAMS),
    shaped_by("appkey", _PARAMS, {"type": ["object", "null"]}, {"type": ["array", "null"]}),
)
_Action = Annotated[Literal["stag"], described("Always stag.")]


class TagsSigned(msgspec.Struct, frozen=True):
    """The fields of every request about string tags that authentication reads."""

    appkey: Annotated[AnyApps, described("An app or a list of apps.")]
    sign: Annotated[Sign, SIGN_BY_LIST]


class TagChange(msgspec.Struct, frozen=True):
    """POST and DELETE /v2/device. `param` is accepted in place of `params`."""

    shown_rules: ClassVar[tuple[Rule, ...]] = _CHANGE_RULES

    action: _Action
    params: Annotated[
        msgspec.Raw,
        _CHANGES,
        described("From token to string tags; with a list of apps from appkey to such an object."),
    ] = ABSENT
    param: Annotated[msgspec.Raw, _CHANGES, described("The same as params.")] = ABSENT


class TagQuery(msgspec.Struct, frozen=True):
    """POST /v2/deviceinfo. `param` is accepted in place of `params`."""

    shown_rules: ClassVar[tuple[Rule, ...]] = _QUERY_RULES

    action: _Action
    params: Annotated[msgspec.Raw, _QUERIES, described("Tokens; with a list of apps from appkey to such a list.")] = (
        ABSENT
    )
    param: Annotated[msgspec.Raw, _QUERIES, described("The same as params.")] = ABSENT


def tag_change(raw: bytes, apps: NamedApps) -> list[tuple[AppRef, StagsByToken]]:
    """Parse a change of tags into the tags by token for each app, in the order of the request."""
    changes: list[tuple[AppRef, StagsByToken]] = _per_app(decode(TagChange, raw), apps, StagLists)
    for app, by_token in changes:
        at = f"params.{app.appkey}" if apps.listed else "params"
        for token, stags in by_token.items():
            if max(map(len, map(str.encode, stags))) > NAME_BYTES:
                index = next(index for index, stag in enumerate(stags) if len(stag.encode()) > NAME_BYTES)
                raise InputError(f"{at}.{token}[{index}] must have 1 to {NAME_BYTES} bytes")
    return changes


def tag_query(raw: bytes, apps: NamedApps) -> list[AppTokens]:
    """Parse a query into the tokens for each app, in the order of the request."""
    return [AppTokens(app, tokens) for app, tokens in _per_app(decode(TagQuery, raw), apps, TokenList)]


def _per_app(body: TagChange | TagQuery, apps: NamedApps, kind: Any) -> list[tuple[AppRef, Any]]:
    """Return the part of `params` for each app, empty for an app that it leaves out."""
    params = _params(body)
    if not apps.listed:
        return [(apps.apps[0], decode(kind, params, "params"))]
    by_app: dict[str, Any] = decode(ByApp, params, "params")
    for appkey in by_app:
        if appkey not in apps.appkeys:
            raise InputError(f"params.{appkey} is none of the apps in appkey")
    found = [
        (app, convert(kind, by_app[app.appkey], f"params.{app.appkey}") if app.appkey in by_app else kind.__origin__())
        for app in apps.apps
    ]
    _check_count(sum(len(of_app) for _, of_app in found))
    return found


def _params(body: TagChange | TagQuery) -> msgspec.Raw:
    given = [raw for raw in (body.params, body.param) if raw != ABSENT]
    if not given:
        raise InputError("params is missing")
    if len(given) == 2 and decode(Any, given[0]) != decode(Any, given[1]):
        raise InputError("params and param differ; give one of them")
    return given[0]


def _check_count(tokens: int) -> None:
    if tokens > MAX_TOKENS:
        raise InputError(f"params must have at most {MAX_TOKENS} tokens in all")


# Answers about the string tags of devices.

_Token = Annotated[str, described("The device.")]


class TokenOutcome(Reply, frozen=True):
    """The outcome of a change of one device's tags."""

    token: _Token
    result: Annotated[
        Literal[0, 400, 401],
        described("0; 400 when the device has too many tags; 401 when the token is unknown."),
    ]
    desc: Text


class TokenTags(Reply, frozen=True):
    token: _Token
    result: Annotated[Literal[0, 401], described("0, or 401 when the token is unknown.")]
    desc: Text
    infolist: Annotated[list[str], described("Its string tags.")]


class TagsChanged(Reply, frozen=True):
    """The answer for one app; for a list of apps, the value under each appkey."""

    result: Success
    desc: Text
    detailsinfo: Annotated[list[TokenOutcome], described("An entry per token, in the order of the request.")]


class TagsFound(Reply, frozen=True):
    """The answer for one app; for a list of apps, the value under each appkey."""

    result: Success
    desc: Text
    detailsinfo: Annotated[list[TokenTags], described("An entry per token, in the order of the request.")]


def by_app(part: type[Reply]) -> Any:
    """Return the type of the answer for a list of apps: the answer for one app under each appkey."""
    schema = {
        "type": "object",
        "properties": {"result": {"const": 0}, "desc": {"type": "string"}},
        "required": ["result", "desc"],
        "additionalProperties": {"$ref": f"#/components/schemas/{part.__name__}"},
    }
    return Annotated[Any, msgspec.Meta(extra_json_schema=schema)]


def change_reply(
    apps: NamedApps, changes: Sequence[tuple[AppRef, StagsByToken]], outcomes: Sequence[Sequence[TagOutcome]], done: str
) -> Reply | Content:
    """Answer a change with the outcome for each device; `done` is the text of a success."""
    parts = [
        TagsChanged(
            result=0,
            desc=done,
            detailsinfo=[_changed(token, outcome, done) for token, outcome in zip(by_token, of_app, strict=True)],
        )
        for (_, by_token), of_app in zip(changes, outcomes, strict=True)
    ]
    return _reply(apps, parts, done)


def query_reply(
    apps: NamedApps, queries: Sequence[AppTokens], found: Sequence[Mapping[str, Sequence[str]]]
) -> Reply | Content:
    """Answer a query with the string tags of each device."""
    parts = [
        TagsFound(result=0, desc="ok", detailsinfo=[_tags(token, by_token) for token in query.tokens])
        for query, by_token in zip(queries, found, strict=True)
    ]
    return _reply(apps, parts, "ok")


def _changed(token: str, outcome: TagOutcome, done: str) -> TokenOutcome:
    match outcome:
        case TagOutcome.DONE:
            return TokenOutcome(token=token, result=0, desc=done)
        case TagOutcome.UNKNOWN:
            return TokenOutcome(token=token, result=401, desc=TOKEN_NOT_FOUND)
        case TagOutcome.FULL:
            desc = f"input error: a device has at most {MAX_DEVICE_STAGS} stags"
            return TokenOutcome(token=token, result=400, desc=desc)


def _tags(token: str, by_token: Mapping[str, Sequence[str]]) -> TokenTags:
    if token not in by_token:
        return TokenTags(token=token, result=401, desc=TOKEN_NOT_FOUND, infolist=[])
    return TokenTags(token=token, result=0, desc="ok", infolist=list(by_token[token]))


def _reply(apps: NamedApps, parts: Iterable[Reply], desc: str) -> Reply | Content:
    """Return the part of the one app, or the parts under the appkeys of a list of apps."""
    if not apps.listed:
        return next(iter(parts))
    return {"result": 0, "desc": desc} | dict(zip(apps.appkeys, parts, strict=True))


class TagEndpoint:
    """POST and DELETE /v2/device"""

    def __init__(self, admission: Admission, tags: StringTags, directory: AppDirectory) -> None:
        self._admission = admission
        self._tags = tags
        self._directory = directory

    async def on_post(self, request: Request, response: Response) -> None:
        signed, changes = await self._change(request)
        outcomes = await self._tags.add(changes, signed.origin)
        answer(response, change_reply(signed.apps, changes, outcomes, "add token done"))

    async def on_delete(self, request: Request, response: Response) -> None:
        signed, changes = await self._change(request)
        outcomes = await self._tags.remove(changes, signed.origin)
        answer(response, change_reply(signed.apps, changes, outcomes, "delete token done"))

    async def _change(self, request: Request) -> tuple[AdmittedRequest[NamedApps], list[tuple[AppRef, StagsByToken]]]:
        signed = await self._admission.admit(request, listed_apps)
        apps = with_platforms(signed.apps, self._directory)
        changes = await signed.read(lambda raw: tag_change(raw, apps))
        targets = sum(len(by_token) for _, by_token in changes)
        await signed.enter_list(targets)
        return signed, changes


class TagInfoEndpoint:
    """POST /v2/deviceinfo"""

    def __init__(self, admission: Admission, tags: StringTags, directory: AppDirectory) -> None:
        self._admission = admission
        self._tags = tags
        self._directory = directory

    async def on_post(self, request: Request, response: Response) -> None:
        signed = await self._admission.admit(request, listed_apps)
        apps = with_platforms(signed.apps, self._directory)
        queries = await signed.read(lambda raw: tag_query(raw, apps))
        targets = sum(len(query.tokens) for query in queries)
        await signed.enter_list(targets)
        answer(response, query_reply(signed.apps, queries, await self._tags.of(queries)))
