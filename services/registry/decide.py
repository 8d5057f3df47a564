"""Decisions about commands to devices and about revocations: the next record, or none. Pure."""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, assert_never

from pyroaring import BitMap

from protos.registry.v1.apps_pb2 import PLATFORM_IOS, App, Revocations
from protos.registry.v1.devices_pb2 import (
    REGISTRATION_AUTHORITY_APP_SERVER,
    REGISTRATION_AUTHORITY_CODE,
    REGISTRATION_AUTHORITY_KEY,
    REGISTRATION_AUTHORITY_TOKEN,
    REGISTRATION_AUTHORITY_UNSPECIFIED,
    Address,
    AddressLost,
    AliasLost,
    Attributes,
    ClearAddress,
    ClearAlias,
    Device,
    DeviceCommand,
    NumberRegistration,
    RemoveDevice,
    SetAddress,
    SetAlias,
)
from protos.runtime.v1.log_pb2 import Meta
from services.domain.addresses import WITHOUT_ADDRESSES, address_hash
from services.domain.device_numbers import MAX_NUMBER
from services.domain.recorded_reasons import FixedReason, KeyRevoked
from services.domain.regions import region_name
from services.domain.revocations import RevokedKeys
from services.domain.sealing import stub_token

# Maps the carrier names that devices report to the three codes of filters: cm, cu and ct.
#
# Devices report a name in Chinese or English, often a sub-brand, or a network code (mobile country code 460 and the
# network's two digits). Other carriers stay as reported.

_NAMES = {
    "cm": (
        "中国移动 中国移动通信 中国移动通信集团 移动 移动通信 中移 中移动 全球通 动感地带 神州行 大众卡 和多号"
        " 中国铁通 铁通"
        " cmcc chinamobile chinamobilecommunications chncm chnmobile gotone mzone easyown chinatietong tietong"
        " 46000 46002 46004 46007 46008 46013 46020"
    ),
    "cu": (
        "中国联通 中国联合通信 中国联合网络通信 中国联合网络通信集团 联通 中国网通 网通 沃 世界风 新势力 如意通 新时空"
        " cucc chinaunicom chinaunicomgsm unicom unicomgsm chnunicom chncu chncugsm chinanetcom wo"
        " 46001 46006 46009 46010"
    ),
    "ct": (
        "中国电信 中国电信集团 中国电信天翼 电信 天翼 天翼通 天翼领航 天翼e家 商务领航 我的e家"
        " ctcc chinatelecom chinatelecomcdma chntelecom chnct ctnet surfing esurfing"
        " 46003 46005 46011 46012"
    ),
}
_GENERATION = re.compile("(?:[2-6]g|lte|volte|nr)+$")


def _normalized(name: str) -> str:
    """Normalize width and case; drop spaces, punctuation and generation: "CHINA-MOBILE 4G" is "chinamobile"."""
    letters = "".join(c for c in unicodedata.normalize("NFKC", name).casefold() if c.isalnum())
    return _GENERATION.sub("", letters) or letters


CODES: Mapping[str, str] = MappingProxyType(
    {_normalized(name): code for code, names in _NAMES.items() for name in (code, *names.split())}
)
"""cm, cu or ct by the normalized name, sub-brand or network code."""


def carrier_code(reported: str) -> str:
    """Return cm, cu or ct, or the reported carrier if it is another one."""
    return CODES.get(_normalized(reported), reported)


MAX_DEVICE_BYTES = 256 * 1024
"""Largest record of a device. A command that adds to it beyond that is ignored: the log could not store the record."""

MAX_DEAD_REASON = 200
"""Characters that a device keeps of a vendor's reason for which an address is dead."""

MAX_FORMER_NUMBERS = 100
"""Upper bound of the former numbers that a device keeps: each change takes it out of the indexes under all of them."""

_NEVER_TOO_LARGE = frozenset({"clear_alias", "clear_address", "remove_tags", "remove_stags", "remove"})
"""The commands that are carried out at any size of the record: they add at most some hundred bytes to it."""

_NOTE_MS = 3_600_000
"""Shortest time between noted repetitions of a registration: apps register at each start."""


class FreeNumber(NamedTuple):
    """The partition of a new device, and a device number of its app there that no other device has."""

    partition: int
    number: int


def decide(
    command: DeviceCommand,
    device: Device | None,
    app: App | None,
    free: FreeNumber,
    *,
    is_revoked: bool = False,
    offset: int = 0,
) -> Device | None:
    """Return the device's next record; None if nothing changes, or the app or the device is unknown.

    All times are the command's, so that the same command always gives the same record. `is_revoked`: the key with the
    device's number is revoked. `offset` is the command's in its partition.
    """
    if app is None:
        return None
    changed = Device()
    if command.WhichOneof("command") == "register":
        registered = (
            _registered(command, device, free, is_revoked) if command.register.platform == app.platform else None
        )
        if registered is None:
            return None
        changed = registered
        _merge_attributes(changed, command.register.attributes)
    elif (
        device is None
        or is_revoked
        or _is_superseded(command, device)
        or (device.removed_ms and not _brings_back(command, device))
    ):
        return None
    else:
        changed.CopyFrom(returned(device, command.meta.time_ms) if device.removed_ms else device)
        changed.session = max(command.session, device.session)
        _change(changed, command)
    if changed == device:
        return None
    if device is not None:
        _keep_history(changed, device, offset)
    is_bounded = command.WhichOneof("command") not in _NEVER_TOO_LARGE
    return None if is_bounded and changed.ByteSize() > MAX_DEVICE_BYTES else changed


def counted(attributes: Attributes) -> Attributes:
    """Return the attributes that statistics count by, for the records that keep what a device was counted under."""
    found = Attributes()
    found.CopyFrom(attributes)
    found.ClearField("model")
    return found


def _keep_history(changed: Device, device: Device, offset: int) -> None:
    """Carry over what only the former record holds: how its number registered, and the revision of its attributes.

    The topic is compacted, so the former record will be gone. A number's present attributes are those of its
    registration, or of its latest AttributeChange; a new number has no AttributeChange yet.
    """
    registrations = [
        NumberRegistration(number=kept.number, registered_ms=kept.registered_ms, attributes=counted(kept.attributes))
        for kept in device.registrations
    ]
    is_same_number = changed.number == device.number
    is_unchanged = changed.attributes == device.attributes and changed.registered_ms == device.registered_ms
    is_kept = any(registration.number == device.number for registration in registrations)
    if not is_kept and not (is_same_number and is_unchanged):
        registrations.append(
            NumberRegistration(
                number=device.number, registered_ms=device.registered_ms, attributes=counted(device.attributes)
            )
        )
    changed.ClearField("registrations")
    changed.registrations.extend(registrations[-MAX_FORMER_NUMBERS - 1 :])
    if not is_same_number:
        changed.ClearField("attributes_revision")
    elif changed.attributes != device.attributes:
        changed.attributes_revision = offset + 1
    else:
        changed.attributes_revision = device.attributes_revision


def _registered(command: DeviceCommand, device: Device | None, free: FreeNumber, is_revoked: bool) -> Device | None:
    """Return the registered device; None where the command's authority does not suffice.

    The key of a device follows from its number. So the number stays where the device has proved its key or the app's
    server vouches for it. A possession code, or the token alone once the device is removed, gives another number.
    """
    register, authority = command.register, command.register.authority
    if device is None:
        return _new_device(command, free, ())
    proves_number = register.proven_number == device.number
    if is_revoked:
        if authority not in (REGISTRATION_AUTHORITY_APP_SERVER, REGISTRATION_AUTHORITY_UNSPECIFIED):
            return None
        return _new_device(command, free, _former_numbers(device))
    if device.removed_ms:
        if _is_silent(device) and authority == REGISTRATION_AUTHORITY_KEY and proves_number:
            return returned(device, command.meta.time_ms)
        keeps_number = authority in (REGISTRATION_AUTHORITY_APP_SERVER, REGISTRATION_AUTHORITY_UNSPECIFIED) or (
            authority == REGISTRATION_AUTHORITY_KEY and proves_number
        )
        if keeps_number:
            return _new_device(command, FreeNumber(device.partition, device.number), device.former_numbers)
        return _new_device(command, free, _former_numbers(device))
    if authority == REGISTRATION_AUTHORITY_TOKEN:
        return None
    if authority in (REGISTRATION_AUTHORITY_KEY, REGISTRATION_AUTHORITY_CODE) and not proves_number:
        return None
    changed = Device()
    changed.CopyFrom(device)
    if authority == REGISTRATION_AUTHORITY_CODE:
        changed.number = free.number
        changed.former_numbers[:] = _former_numbers(device)
        changed.registered_again_ms = command.meta.time_ms
    else:
        _note_repeated_registration(changed, command.meta.time_ms)
    return changed


def _former_numbers(device: Device) -> Sequence[int]:
    """Return the former numbers of a device that gets another one."""
    return [*device.former_numbers, device.number][-MAX_FORMER_NUMBERS:]


def returned(device: Device, time_ms: int) -> Device:
    """Return a device that was removed for its silence, as it was before; `time_ms`: when it gave a sign of life."""
    changed = Device()
    changed.CopyFrom(device)
    changed.ClearField("removed_ms")
    changed.ClearField("removed_reason")
    changed.ClearField("silent_since_ms")
    changed.registered_again_ms = max(device.registered_again_ms, time_ms)
    return changed


def _brings_back(command: DeviceCommand, device: Device) -> bool:
    """Return whether the device was removed for its silence, and has itself caused this command, by its key."""
    is_own = command.session or command.WhichOneof("command") in ("begin_session", "set_attributes")
    return _is_silent(device) and bool(is_own)


def _is_silent(device: Device) -> bool:
    return device.removed_reason == FixedReason.SILENT


def _is_superseded(command: DeviceCommand, device: Device) -> bool:
    """Return whether the device has sent requests over a later connection than the command's."""
    return 0 < command.session < device.session


def _new_device(command: DeviceCommand, number: FreeNumber, former_numbers: Sequence[int]) -> Device:
    """Return a device without alias, tags and attributes."""
    return Device(
        appkey=command.appkey,
        token=command.token,
        platform=command.register.platform,
        partition=number.partition,
        number=number.number,
        registered_ms=command.meta.time_ms,
        former_numbers=former_numbers,
    )


def _note_repeated_registration(device: Device, time_ms: int) -> None:
    """Note when an iOS token registers again, so that Apple's late answers do not remove it."""
    is_due = time_ms > device.registered_ms and time_ms - device.registered_again_ms >= _NOTE_MS
    if device.platform == PLATFORM_IOS and is_due:
        device.registered_again_ms = time_ms


def _change(device: Device, command: DeviceCommand) -> None:
    match command.WhichOneof("command"):
        case "set_alias":
            _set_alias(device, command.set_alias, command.meta.time_ms)
        case "clear_alias":
            _clear_alias(device, command.clear_alias, command.meta.time_ms)
        case "add_tags":
            device.tags[:] = sorted({*device.tags, *command.add_tags.tags})
            device.proven_tags[:] = sorted({*device.proven_tags, *command.add_tags.proven})
        case "remove_tags":
            device.tags[:] = sorted({*device.tags}.difference(command.remove_tags.tags))
            device.proven_tags[:] = sorted({*device.proven_tags}.difference(command.remove_tags.tags))
        case "add_stags":
            device.stags[:] = sorted({*device.stags, *command.add_stags.stags})
            device.proven_stags[:] = sorted({*device.proven_stags, *command.add_stags.proven})
        case "remove_stags":
            device.stags[:] = sorted({*device.stags}.difference(command.remove_stags.stags))
            device.proven_stags[:] = sorted({*device.proven_stags}.difference(command.remove_stags.stags))
        case "set_attributes":
            _merge_attributes(device, command.set_attributes.attributes)
        case "remove":
            _remove(device, command.remove, command.meta.time_ms)
        case "set_address":
            _set_address(device, command.set_address, command.meta.time_ms)
        case "clear_address":
            _clear_address(device, command.clear_address, command.meta.time_ms)
        case "register" | "revoke_key" | "revoke_all_keys" | "reserve_numbers" | "begin_session" | None:
            pass
        case unexpected:
            assert_never(unexpected)


def _set_alias(device: Device, change: SetAlias, time_ms: int) -> None:
    """Set the alias. A proof of the present alias is noted; a repetition without one leaves it proven."""
    if not change.alias:
        return
    if change.alias != device.alias:
        device.alias = change.alias
        device.alias_set_ms = time_ms
        device.alias_proven = False
        device.ClearField("alias_lost")
    device.alias_proven = device.alias_proven or change.proven


def _clear_alias(device: Device, clear: ClearAlias, time_ms: int) -> None:
    is_meant = not clear.HasField("only_alias") or clear.only_alias == device.alias
    if not device.HasField("alias") or not is_meant or (clear.only_unproven and device.alias_proven):
        return
    if clear.HasField("taken"):
        device.alias_lost.CopyFrom(
            AliasLost(
                alias=device.alias,
                lost_ms=time_ms,
                to_token=clear.taken.token,
                to_proven=clear.taken.proven,
                was_proven=device.alias_proven,
            )
        )
    for field in ("alias", "alias_set_ms", "alias_proven"):
        device.ClearField(field)


def _set_address(device: Device, change: SetAddress, time_ms: int) -> None:
    """Set the address on its channel, unless the device has it with the same keys: apps set it at each start."""
    if device.platform == PLATFORM_IOS or change.channel in WITHOUT_ADDRESSES or not change.address:
        return
    present = _address_on(device, change.channel)
    new = Address(channel=change.channel, address=change.address, p256dh=change.p256dh, auth=change.auth)
    if present is not None:
        new.since_ms = present.since_ms
        if new == present:
            return
    new.since_ms = time_ms
    others = [each for each in device.addresses if each.channel != change.channel]
    _replace(device, sorted([*others, new], key=lambda each: each.channel))
    _forget_loss(device, change.channel)


def _clear_address(device: Device, clear: ClearAddress, time_ms: int) -> None:
    """Remove the address on a channel, if it is the one that is meant; a loss that the app did not ask for is noted."""
    present = _address_on(device, clear.channel)
    if present is None:
        return
    hash_ = address_hash(present.channel, present.address)
    if clear.only_hash and clear.only_hash != hash_:
        return
    if clear.known_before_ms and present.since_ms >= clear.known_before_ms:
        return
    _replace(device, [each for each in device.addresses if each.channel != clear.channel])
    _forget_loss(device, clear.channel)
    if clear.dead_reason or clear.to_token:
        loss = AddressLost(
            channel=clear.channel,
            hash=hash_,
            lost_ms=max(time_ms, 1),
            dead_reason=clear.dead_reason[:MAX_DEAD_REASON],
            to_token=clear.to_token,
        )
        losses = sorted([*device.addresses_lost, loss], key=lambda each: each.channel)
        device.ClearField("addresses_lost")
        device.addresses_lost.extend(losses)


def _address_on(device: Device, channel: int) -> Address | None:
    return next((each for each in device.addresses if each.channel == channel), None)


def _replace(device: Device, addresses: Sequence[Address]) -> None:
    kept = [*addresses]
    device.ClearField("addresses")
    device.addresses.extend(kept)


def _forget_loss(device: Device, channel: int) -> None:
    kept = [each for each in device.addresses_lost if each.channel != channel]
    if len(kept) < len(device.addresses_lost):
        device.ClearField("addresses_lost")
        device.addresses_lost.extend(kept)


def _remove(device: Device, remove: RemoveDevice, time_ms: int) -> None:
    if not remove.registered_before_ms or _latest_registration_ms(device, time_ms) < remove.registered_before_ms:
        device.removed_ms = max(time_ms, 1)
        device.removed_reason = remove.reason or FixedReason.UNREGISTERED
        forget_addresses(device)


def erased(device: Device, token_name: str, time_ms: int) -> Device:
    """Return the stub of an erased device: what statistics count by its number, and nothing that tells who it was."""
    stub = Device(
        appkey=device.appkey,
        token=stub_token(token_name, device.number),
        platform=device.platform,
        partition=device.partition,
        number=device.number,
        former_numbers=device.former_numbers,
        registered_ms=device.registered_ms,
        attributes=counted(device.attributes),
        attributes_revision=device.attributes_revision,
        removed_ms=max(time_ms, 1),
        removed_reason=FixedReason.ERASED,
    )
    stub.registrations.extend(
        NumberRegistration(number=kept.number, registered_ms=kept.registered_ms, attributes=counted(kept.attributes))
        for kept in device.registrations
    )
    return stub


def forget_addresses(device: Device) -> None:
    """Erase the addresses of a device that is removed for good: nothing is sent to them, and they are personal."""
    device.ClearField("addresses")
    device.ClearField("addresses_lost")


def _latest_registration_ms(device: Device, time_ms: int) -> int:
    """Return when the device may have registered last: after a repetition is noted, none is noted for an hour.

    Such an unnoted one counts for another hour, in which Apple's answers from before it may still come.
    """
    latest_ms = max(device.registered_ms, device.registered_again_ms)
    may_be_unnoted = device.registered_again_ms and time_ms - latest_ms < 2 * _NOTE_MS
    return latest_ms + _NOTE_MS - 1 if may_be_unnoted else latest_ms


def _merge_attributes(device: Device, attributes: Attributes) -> None:
    """Replace the attributes that are reported and not empty."""
    reported = Attributes()
    reported.CopyFrom(attributes)
    reported.carrier = carrier_code(attributes.carrier)
    reported.region = region_name(attributes.region)
    device.attributes.MergeFrom(reported)


# Decisions about commands that revoke device keys: the partition's next revocation record, or none. Pure.

LOST_MARGIN = 1000
"""Numbers reserved beyond that of a device that the log has lost: other lost devices may have greater ones."""


def revoke_one(command: DeviceCommand, device: Device | None, revoked: RevokedKeys) -> Revocations | None:
    """Return the record with the device's number added; None if it is revoked already or the device is unknown."""
    if device is None or device.number in revoked:
        return None
    others = BitMap(revoked.others)
    others.add(device.number)
    return _record(command, device.partition, RevokedKeys(revoked.below, others, revoked.lost))


def revoke_numbers(
    appkey: str, partition: int, numbers: Iterable[int], revoked: RevokedKeys, time_ms: int
) -> Revocations | None:
    """Return the record with the numbers added; None if all are revoked already."""
    missing = [number for number in numbers if number not in revoked]
    if not missing:
        return None
    command = DeviceCommand(meta=Meta(time_ms=time_ms), appkey=appkey)
    return _record(command, partition, RevokedKeys(revoked.below, revoked.others | BitMap(missing), revoked.lost))


def revoke_all(command: DeviceCommand, partition: int, revoked: RevokedKeys, next_number: int) -> Revocations | None:
    """Return the record that revokes all numbers below the next free one; None if they are revoked already."""
    if all(number in revoked for number in range(revoked.below, next_number)):
        return None
    return _record(command, partition, RevokedKeys(next_number))


def reserve(command: DeviceCommand, partition: int, revoked: RevokedKeys, next_number: int) -> Revocations | None:
    """Return the record with the free numbers added that the command asks for; None if it asks for none."""
    asked = command.reserve_numbers
    end = min(max(next_number + asked.count, asked.below), MAX_NUMBER)
    return None if end <= next_number else _reserved(command, partition, revoked, next_number, end)


def proves_lost_number(command: DeviceCommand) -> bool:
    """Return whether the command registers a token by its key.

    If the log does not know the token, it has lost its latest records: no device is ever deleted.
    """
    is_register = command.WhichOneof("command") == "register"
    return is_register and command.register.authority == REGISTRATION_AUTHORITY_KEY


def reserve_lost(command: DeviceCommand, partition: int, revoked: RevokedKeys, next_number: int) -> Revocations | None:
    """Return the record that reserves the free numbers up to the proven one and LOST_MARGIN more.

    None: the proven one was given to another device, or is reserved already.
    """
    proven = command.register.proven_number
    if proven < next_number:
        return None
    return _reserved(command, partition, revoked, next_number, min(proven + 1 + LOST_MARGIN, MAX_NUMBER))


def _reserved(command: DeviceCommand, partition: int, revoked: RevokedKeys, first: int, end: int) -> Revocations:
    """Return the record with the free numbers from `first` to before `end` added as lost ones."""
    others, lost = BitMap(revoked.others), BitMap(revoked.lost)
    for numbers in (others, lost):
        numbers.add_range(first, end)
        numbers.run_optimize()
    return _record(command, partition, RevokedKeys(revoked.below, others, lost))


def removed(device: Device, revocations: Revocations) -> Device:
    """Return the device, removed for the reason of the revocation."""
    changed = Device()
    changed.CopyFrom(device)
    changed.removed_ms = max(revocations.revoked_ms, 1)
    changed.removed_reason = revocations.reason
    forget_addresses(changed)
    return changed


def _record(command: DeviceCommand, partition: int, revoked: RevokedKeys) -> Revocations:
    return Revocations(
        appkey=command.appkey,
        partition=partition,
        below=revoked.below,
        numbers=revoked.others.serialize() if revoked.others else b"",
        lost=revoked.lost.serialize() if revoked.lost else b"",
        revoked_ms=command.meta.time_ms,
        reason=_reason(command.meta),
    )


def _reason(meta: Meta) -> str:
    return str(KeyRevoked(meta.origin.address or meta.origin.interface))
