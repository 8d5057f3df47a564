"""What is sealed of a record, and with whose keys: the plan follows from the table of stored values.

A sealed record is its envelope without the personal values, with the sealed ones behind it as another part of the same
message, `meta.sealed`. Without the keys it still reads: *names* stand for tokens and aliases, and texts are missing.

A value is sealed with the key of the person whom it is about: a token or an alias with that of its name, a device's
record with that of the device's number, a push with those of the devices that it lists, if they are few. What is of
nobody in particular (a push to more than 16 devices, the answer to a request) is sealed with a key of app and month.
Broadcasts and multicasts are not sealed.
"""

import itertools
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.protobuf.descriptor import Descriptor
from google.protobuf.message_factory import GetMessageClass

from protos.push.v1.push_pb2 import Devices, SendPush
from protos.registry.v1.erasures_pb2 import PersonErased
from protos.runtime.v1.log_pb2 import Meta
from services.domain.person_keys import SUBJECT, KeyRing, PuncturedError
from services.domain.stored_values import Sort, sort_of
from services.domain.topics import (
    ACCOUNTS,
    DEVICE_COMMANDS,
    DEVICES,
    DRAFTS,
    LOG_INS,
    PUSH_COMMANDS,
    SESSIONS,
    TASK_COMMANDS,
    TASKS,
    TOPICS,
)
from services.log.decoding import SEALED_MARK, merge
from services.log.port import OpenedPart, Path

FEW_DEVICES = 16
"""A push to at most so many devices is sealed with the keys of all of them: it ends with the first erased one."""

SEALED = (Sort.DEVICE_ID, Sort.ALIAS, Sort.ADDRESS, Sort.DEVICE, Sort.TAG, Sort.CONTENT, Sort.REQUEST, Sort.NETWORK)
"""The sorts of values that are sealed. Statistics count by COUNTED; ACCOUNT is of users of the console."""

TEXTS = {"accounts.v1.TeamChanged.settings"}
"""Fields of tokens that are texts with a token in them."""

Subjects: TypeAlias = tuple[bytes, ...]
"""The hashes of those with whose keys a value is sealed: the destruction of one key suffices."""


_NAME_IT, _MOVE, _ENTER = "a name stands for it", "it is moved", "something in it is one of these"


class _Field(NamedTuple):
    """A field that is sealed, or has such fields inside, and what is done with it.

    `kind` is that of a name, "token" or "alias". `inner` is the plan of a message.
    """

    act: str
    name: str
    number: int
    has_presence: bool
    is_repeated: bool
    kind: str = ""
    inner: "_Plan | None" = None


class _Plan(NamedTuple):
    """The fields of a message that are sealed, or that have such a field inside, in the order of their numbers.

    `names` and `steps` are the same way, from the envelope or the element of a repeated field around it, which is of
    the class `root`, to the message.
    """

    fields: Sequence[_Field]
    root: type[Any]
    names: tuple[str, ...]
    steps: Path


def _plan(
    message: Descriptor,
    root: type[Any],
    names: tuple[str, ...] = (),
    steps: Path = (),
    above: tuple[Descriptor, ...] = (),
) -> _Plan | None:
    """Return the plan of a message; None: nothing in it is sealed. `above`: the messages around it."""
    found: list[_Field] = []
    for field in sorted(message.fields, key=lambda field: field.number):
        what = (field.name, field.number, field.has_presence, field.is_repeated)
        inner = field.message_type
        if inner is not None:
            if inner in above or inner.GetOptions().map_entry:
                continue
            if field.is_repeated:
                plan = _plan(inner, GetMessageClass(inner), above=(*above, message))
            else:
                plan = _plan(inner, root, (*names, field.name), (*steps, (field.number, 0)), (*above, message))
            if plan:
                found.append(_Field(_ENTER, *what, inner=plan))
        elif not field.GetOptions().deprecated and (sort := sort_of(field)) in SEALED:
            is_text = field.full_name.removeprefix("protos.") in TEXTS
            act = _NAME_IT if sort in {Sort.DEVICE_ID, Sort.ALIAS} and not is_text else _MOVE
            found.append(_Field(act, *what, _KINDS.get(sort, "")))
    return _Plan(tuple(found), root, names, steps) if found else None


_KINDS = {Sort.DEVICE_ID: "token", Sort.ALIAS: "alias"}


# With whose keys.


class Owner(NamedTuple):
    """With whose keys the values of a message are sealed, and the app whose names stand in it.

    `subjects` is None where they are not sealed. `is_of_push`: it is that of the only push of the record.
    """

    appkey: str
    subjects: Subjects | None
    is_of_push: bool = False


class _Subjects:
    """Finds the subjects of one process's key ring."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring

    def of_name(self, kind: str, appkey: str, name: str) -> bytes:
        """Return the latest subject of a name: after an erasure the same token or alias begins anew."""
        for generation in itertools.count():
            subject = self._ring.subject(kind, appkey, name, str(generation))
            try:
                self._ring.cipher(subject)
            except PuncturedError:
                continue
            return subject
        raise AssertionError("a count ends")

    def of_value(self, kind: str, appkey: str, value: str) -> bytes:
        return self.of_name(kind, appkey, value if is_name(value) else self._ring.name(kind, appkey, value))

    def of_number(self, appkey: str, partition: int, number: int) -> bytes:
        return self._ring.subject("number", appkey, str(partition), str(number))

    def of_month(self, appkey: str, time_ms: int) -> bytes:
        try:
            month = f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m}"
        except (OverflowError, ValueError, OSError):
            month = ""
        return self._ring.subject("month", appkey, month)

    def of_push(self, send: SendPush, time_ms: int) -> Subjects | None:
        audience = send.audience
        match audience.WhichOneof("audience"):
            case "devices":
                devices, appkey = audience.devices, send.appkey
                count = _listed_count(devices)
                found = [self.of_number(appkey, *pair) for pair in _listed(devices)] if count <= FEW_DEVICES else []
            case "tokens":
                found = self._of_values("token", send.appkey, audience.tokens.tokens)
            case "aliases":
                found = self._of_values("alias", send.appkey, audience.aliases.aliases)
            case _:
                return None
        if len(found) > 1:
            found = list(dict.fromkeys(found))
        return tuple(found) or (self.of_month(send.appkey, time_ms),)

    def _of_values(self, kind: str, appkey: str, values: Sequence[str]) -> list[bytes]:
        return [self.of_value(kind, appkey, value) for value in values] if len(values) <= FEW_DEVICES else []


def listed_devices(send: SendPush) -> list[tuple[int, int]]:
    """Return partition and number of each device that a push lists."""
    return _listed(send.audience.devices)


def _listed(devices: Devices) -> list[tuple[int, int]]:
    count = _listed_count(devices)
    partitions = struct.unpack_from(f"<{count}H", devices.partitions)
    return list(zip(partitions, struct.unpack_from(f"<{count}I", devices.numbers), strict=True))


def _listed_count(devices: Devices) -> int:
    return min(len(devices.partitions) // 2, len(devices.numbers) // 4)


class _SubjectsBefore(_Subjects):
    """The subjects as they were before an erasure: all that were erased are _ERASED."""

    def __init__(self, ring: KeyRing, erased: PersonErased) -> None:
        super().__init__(ring)
        self._erased = erased.appkey
        self._names = {("token", device.token_name) for device in erased.devices}
        self._names |= {("alias", name) for name in erased.alias_names}
        self._numbers = {
            (device.partition, number)
            for device in erased.devices
            for number in (device.number, *device.former_numbers)
        }

    def of_name(self, kind: str, appkey: str, name: str) -> bytes:
        if appkey == self._erased and (kind, name) in self._names:
            return _ERASED
        return self._ring.subject(kind, appkey, name)

    def of_number(self, appkey: str, partition: int, number: int) -> bytes:
        if appkey == self._erased and (partition, number) in self._numbers:
            return _ERASED
        return super().of_number(appkey, partition, number)


_ERASED = b""


def ended_by_erasure(send: SendPush) -> bool:
    """Return whether the contents of a push went with a person whom it lists by token or alias."""
    listed = [*send.audience.tokens.tokens, *send.audience.aliases.aliases]
    return len(listed) <= FEW_DEVICES and any(is_name(value) for value in listed)


def is_name(value: str) -> bool:
    """Return whether a token or an alias is a name already, which stands for another value."""
    return value.startswith("~") and _NAME.fullmatch(value) is not None


_NAME = re.compile("~[a-z2-7]{26}(/[0-9]{1,10})?")


def stub_token(name: str, number: int) -> str:
    """Return what stands for the token in the record of an erased device; `name` is that of its token.

    It counts as a name. The token may register again, and be erased again under another number.
    """
    return f"{name}/{number}"


class Sealer:
    """Splits records into what stays readable and what is sealed, and opens what is sealed."""

    def __init__(self, ring: KeyRing) -> None:
        self.ring = ring
        self._ring = ring
        self._subjects = _Subjects(ring)

    def named_subject(self, kind: str, appkey: str, name: str) -> bytes:
        """Return the subject with whose key the token or alias is sealed that has this name."""
        return self._subjects.of_name(kind, appkey, name)

    def numbered_subject(self, appkey: str, partition: int, number: int) -> bytes:
        """Return the subject with whose key the records of a device are sealed."""
        return self._subjects.of_number(appkey, partition, number)

    def sealed(self, topic: str, partition: int, envelope: Any) -> bytes | None:
        """Take what is personal out of the envelope and return it sealed; None: there is nothing."""
        owner_of = _OWNERS.get(topic)
        if owner_of is None:
            return None
        splitting = _Splitting(self._ring, self._subjects, envelope.meta.time_ms)
        owner = owner_of(self._subjects, envelope, partition)
        splitting.split(envelope, _plan_of(topic), owner, ())
        parts = splitting.sealed(topic.encode())
        return b"".join([MARK, *parts]) if parts else None

    def without(self, topic: str, partition: int, envelope: Any, erased: PersonErased) -> Any | None:
        """Return the envelope as it opens where it was sealed before the erasure; None: it does not change."""
        left = type(envelope)()
        left.CopyFrom(envelope)
        subjects = _SubjectsBefore(self._ring, erased)
        splitting = _Splitting(self._ring, subjects, envelope.meta.time_ms)
        splitting.split(left, _plan_of(topic), _OWNERS[topic](subjects, left, partition), ())
        return left if splitting.merge_into(left, _ERASED) else None

    def opened(self, topic: str, sealed: bytes) -> tuple[OpenedPart, ...]:
        """Return the parts of a sealed value that the keys at hand open; none of a damaged one."""
        found: list[OpenedPart] = []
        try:
            for subjects, nonce, content in _parts(sealed):
                try:
                    packed = self._cipher(subjects).decrypt(nonce, content, topic.encode())
                except (PuncturedError, InvalidTag):
                    continue
                found += _unpacked(packed)
        except (struct.error, IndexError, ValueError):
            return ()
        return tuple(found)

    def _cipher(self, subjects: Subjects) -> AESGCM:
        return self._ring.cipher(subjects[0]) if len(subjects) == 1 else self._ring.cipher_of_all(subjects)


class _Splitting:
    """What is taken out of one record, by subjects: parts of its envelope, and of each element of a repeated field."""

    def __init__(self, ring: KeyRing, subjects: _Subjects, time_ms: int) -> None:
        self._ring = ring
        self._subjects = subjects
        self._time_ms = time_ms
        self._found: dict[Subjects, dict[Path, Any]] = {}

    def split(self, message: Any, plan: _Plan, owner: Owner, path: Path) -> None:
        """Take the personal values out of a message; `path`: that to the element of a repeated field around it."""
        target = None
        for act, name, number, has_presence, is_repeated, kind, inner in plan.fields:
            if has_presence and not message.HasField(name):
                continue
            value = getattr(message, name)
            if inner is not None:
                if is_repeated:
                    for index, one in enumerate(value):
                        self.split(one, inner, self._owner_in(one, owner), (*path, *plan.steps, (number, index)))
                else:
                    self.split(value, inner, owner if owner.is_of_push else self._owner_in(value, owner), path)
            elif not (value or has_presence):
                continue
            elif act is _MOVE:
                if owner.subjects is not None:
                    if target is None:
                        target = self._target(owner.subjects, plan, path)
                    if is_repeated:
                        getattr(target, name).MergeFrom(value)
                    else:
                        setattr(target, name, value)
                    message.ClearField(name)
            elif is_repeated:
                self._name_each(value, kind, owner, (*path, *plan.steps), number)
            elif value and not is_name(value):
                stands = self._ring.name(kind, owner.appkey, value)
                subjects = (self._subjects.of_name(kind, owner.appkey, stands),)
                setattr(self._target(subjects, plan, path), name, value)
                setattr(message, name, stands)

    def _owner_in(self, message: Any, owner: Owner) -> Owner:
        """Return the owner of a message's values; `owner`: that of the message around it."""
        if owner.is_of_push:
            return owner
        if isinstance(message, SendPush):
            return Owner(message.appkey, self._subjects.of_push(message, self._time_ms))
        appkey = getattr(message, "appkey", "")
        return owner._replace(appkey=appkey) if appkey else owner

    def _name_each(self, values: Any, kind: str, owner: Owner, way: Path, number: int) -> None:
        """Put names in the place of the values of a list; `way`: that to the message of the list."""
        for index, value in enumerate(values):
            if value and not is_name(value):
                name = self._ring.name(kind, owner.appkey, value)
                subjects = (self._subjects.of_name(kind, owner.appkey, name),)
                self._found.setdefault(subjects, {})[*way, (number, index)] = value.encode()
                values[index] = name

    def _target(self, subjects: Subjects, plan: _Plan, path: Path) -> Any:
        """Return the message to which the values with these subjects are moved."""
        by_path = self._found.get(subjects)
        if by_path is None:
            by_path = self._found[subjects] = {}
        target = by_path.get(path)
        if target is None:
            target = by_path[path] = plan.root()
        for step in plan.names:
            target = getattr(target, step)
        return target

    def merge_into(self, message: Any, erased: bytes) -> bool:
        """Put back what was taken out, but for what is about this subject; return whether there was anything."""
        for subjects, by_path in self._found.items():
            if erased not in subjects:
                for path, value in by_path.items():
                    merge(message, path, value if isinstance(value, bytes) else value.SerializeToString())
        return any(erased in subjects for subjects in self._found)

    def sealed(self, topic: bytes) -> list[bytes]:
        """Return each part. What is about a person whose key is destroyed is left out: nobody may read it any more."""
        parts: list[bytes] = []
        for subjects, by_path in self._found.items():
            try:
                many = len(subjects) > 1
                cipher = self._ring.cipher_of_all(subjects) if many else self._ring.cipher(subjects[0])
            except PuncturedError:
                continue
            nonce = os.urandom(_NONCE)
            content = cipher.encrypt(nonce, _packed(by_path), topic)
            parts += [bytes([len(subjects)]), *subjects, _LENGTH.pack(len(content)), nonce, content]
        return parts


# By topic, whose values stand in an envelope outside of pushes. Other topics have no personal values but addresses of
# administrators, and positions.


def _of_command(subjects: _Subjects, command: Any, _partition: int) -> Owner:
    if not command.token:
        return Owner(command.appkey, None)
    return Owner(command.appkey, (subjects.of_value("token", command.appkey, command.token),))


def _of_device(subjects: _Subjects, fact: Any, partition: int) -> Owner:
    if fact.WhichOneof("fact") != "device":
        return Owner("", None)
    return Owner(fact.device.appkey, (subjects.of_number(fact.device.appkey, partition, fact.device.number),))


def _of_push_command(subjects: _Subjects, command: Any, _partition: int) -> Owner:
    if command.WhichOneof("command") != "send":
        return Owner("", None)
    return Owner(command.send.appkey, subjects.of_push(command.send, command.meta.time_ms), is_of_push=True)


def _of_sessions(subjects: _Subjects, fact: Any, partition: int) -> Owner:
    if fact.WhichOneof("fact") != "batch" or not fact.batch.events:
        return Owner("", None)
    event = fact.batch.events[0]
    return Owner(event.appkey, (subjects.of_number(event.appkey, partition, event.number),))


def _of_month(subjects: _Subjects, envelope: Any, _partition: int) -> Owner:
    return Owner("", (subjects.of_month("", envelope.meta.time_ms),))


_OWNERS: Mapping[str, Callable[[_Subjects, Any, int], Owner]] = {
    DEVICE_COMMANDS.name: _of_command,
    DEVICES.name: _of_device,
    PUSH_COMMANDS.name: _of_push_command,
    SESSIONS.name: _of_sessions,
    **{topic.name: _of_month for topic in (TASK_COMMANDS, TASKS, ACCOUNTS, LOG_INS, DRAFTS)},
}
SEALED_TOPICS = frozenset(_OWNERS)


@cache
def _plan_of(topic: str) -> _Plan:
    envelope: Any = TOPICS[topic].envelope
    plan = _plan(envelope.DESCRIPTOR, envelope)
    assert plan is not None, "each has the address of whoever asked"
    return plan


# The form in which it is stored.

MARK = SEALED_MARK

_NONCE = 12
_LENGTH = struct.Struct("<I")
_STEP = struct.Struct("<BI")


def _packed(by_path: Mapping[Path, Any]) -> bytes:
    found: list[bytes] = []
    for path, value in by_path.items():
        content = value if isinstance(value, bytes) else value.SerializeToString()
        found += [bytes([len(path)]), *(_STEP.pack(*step) for step in path), _LENGTH.pack(len(content)), content]
    return b"".join(found)


def _unpacked(packed: bytes) -> list[OpenedPart]:
    found: list[OpenedPart] = []
    at = 0
    while at < len(packed):
        begin = at + 1
        at = begin + packed[at] * _STEP.size
        path = tuple(_STEP.iter_unpack(packed[begin:at])) if at > begin else ()
        (length,) = _LENGTH.unpack_from(packed, at)
        at += _LENGTH.size
        found.append((path, packed[at : at + length]))
        at += length
    return found


def _parts(sealed: bytes) -> Iterator[tuple[Subjects, bytes, bytes]]:
    """Yield subjects, nonce and sealed content of each part."""
    at = len(MARK)
    while at < len(sealed):
        end = at + 1 + sealed[at] * SUBJECT
        subjects = tuple(sealed[start : start + SUBJECT] for start in range(at + 1, end, SUBJECT))
        (length,) = _LENGTH.unpack_from(sealed, end)
        at = end + _LENGTH.size + _NONCE
        yield subjects, sealed[at - _NONCE : at], sealed[at : at + length]
        at += length


def sealed_part(value: bytes) -> bytes | None:
    """Return what is sealed of a record's value, which is found without decoding the record; None: nothing."""
    if MARK not in value:
        return None
    at, end = 0, len(value)
    try:
        while at < end:
            tag, at = (value[at], at + 1) if value[at] < _LONG else _varint(value, at)
            match tag & 7:
                case 2:
                    length, at = (value[at], at + 1) if value[at] < _LONG else _varint(value, at)
                    if tag == _META and value.startswith(_SEALED, at):
                        _, begin = _varint(value, at + len(_SEALED))
                        if value.startswith(MARK, begin):
                            return value[begin : at + length]
                    at += length
                case 0:
                    _, at = _varint(value, at)
                case 1:
                    at += 8
                case 5:
                    at += 4
                case _:
                    return None
    except IndexError:
        return None
    return None


def _varint(value: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, and the place behind it."""
    found = shift = 0
    while True:
        byte = value[at]
        found |= (byte & 127) << shift
        at += 1
        if byte < _LONG:
            return found, at
        shift += 7


_LONG = 128
"""The first byte of a number of more than one byte is at least this."""

_META = 1 << 3 | 2
_SEALED = Meta(sealed=b"x").SerializeToString()[:-2]
