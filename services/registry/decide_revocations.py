"""Decisions about commands that revoke device keys: the partition's next revocation record, or none. Pure."""

from pyroaring import BitMap

from protos.registry.v1.apps_pb2 import Revocations
from protos.registry.v1.devices_pb2 import Device, DeviceCommand
from protos.runtime.v1.log_pb2 import Meta
from services.domain.recorded_reasons import KeyRevoked
from services.domain.revocations import RevokedKeys


def revoke_one(command: DeviceCommand, device: Device | None, revoked: RevokedKeys) -> Revocations | None:
    """Return the record with the device's number added; None if it is revoked already or the device is unknown."""
    if device is None or device.number in revoked:
        return None
    others = BitMap(revoked.others)
    others.add(device.number)
    return _record(command, device.partition, RevokedKeys(revoked.below, others))


def revoke_all(command: DeviceCommand, partition: int, revoked: RevokedKeys, next_number: int) -> Revocations | None:
    """Return the record that revokes all numbers below the next free one; None if they are revoked already."""
    if all(number in revoked for number in range(revoked.below, next_number)):
        return None
    return _record(command, partition, RevokedKeys(next_number))


def reserve(command: DeviceCommand, partition: int, revoked: RevokedKeys, next_number: int) -> Revocations | None:
    """Return the record with as many free numbers added as the command asks for; None if it asks for none."""
    count = command.reserve_numbers.count
    if not count:
        return None
    others = BitMap(revoked.others)
    others.add_range(next_number, next_number + count)
    others.run_optimize()
    return _record(command, partition, RevokedKeys(revoked.below, others))


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
        revoked_ms=command.meta.time_ms,
        reason=_reason(command.meta),
    )


def _reason(meta: Meta) -> str:
    return str(KeyRevoked(meta.origin.address or meta.origin.interface))
