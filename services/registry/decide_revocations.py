"""Decisions about commands that revoke device keys: the partition's next revocation record, or none. Pure."""

from pyroaring import BitMap

from protos.registry.v1.apps_pb2 import Revocations
from protos.registry.v1.devices_pb2 import REGISTRATION_AUTHORITY_KEY, Device, DeviceCommand
from protos.runtime.v1.log_pb2 import Meta
from services.domain.device_numbers import MAX_NUMBER
from services.domain.recorded_reasons import KeyRevoked
from services.domain.revocations import RevokedKeys

LOST_MARGIN = 1000
"""Numbers that are reserved beyond the one that a device of a log that went back has shown: others may be greater."""


def revoke_one(command: DeviceCommand, device: Device | None, revoked: RevokedKeys) -> Revocations | None:
    """Return the record with the device's number added; None if it is revoked already or the device is unknown."""
    if device is None or device.number in revoked:
        return None
    others = BitMap(revoked.others)
    others.add(device.number)
    return _record(command, device.partition, RevokedKeys(revoked.below, others, revoked.lost))


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

    If the log does not know the token, it has lost the records behind some point: no device is ever deleted.
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
