"""Log records as the other roles write them."""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import (
    AppOutcomes,
    DeliveryFact,
    OutcomeKind,
    Outcomes,
    PushCancelled,
    PushFact,
    PushFinished,
    PushStarted,
)
from protos.gateway.v1.sessions_pb2 import ConnectionCounts, SessionBatch, SessionEvent, SessionEventKind, SessionFact
from protos.push.v1.push_pb2 import Audience, CancelPush, Everyone, Kind, Message, PushCommand, SendPush
from protos.registry.v1.apps_pb2 import CHANNEL_UNSPECIFIED, AppChanged, AppFact, Channel, Platform
from protos.registry.v1.devices_pb2 import Attributes, Device, DeviceCommand, DeviceFact
from protos.runtime.v1.log_pb2 import Meta, Origin
from services.domain.topics import APPS, DELIVERIES, DEVICE_COMMANDS, DEVICES, PUSH_COMMANDS, PUSHES, SESSIONS
from services.log.port import NewRecord

if TYPE_CHECKING:
    pass

APP = "1234567890"
PARTITIONS = 4
T0 = 1_790_000_000_000


def meta(seed: str, time_ms: int = T0, writer: str = "edge", origin: Origin | None = None) -> Meta:
    event_id = hashlib.blake2b(seed.encode(), digest_size=16).digest()
    return Meta(event_id=event_id, time_ms=time_ms, writer=writer, origin=origin)


def new_record(topic: str, partition: int, message: Any) -> NewRecord:
    return NewRecord(topic, partition, b"key", message.SerializeToString())


def send(
    msgid: int,
    *,
    time_ms: int = T0,
    audience: Audience | None = None,
    id_count: int = 1,
    task_key: str = "",
    request_json: str = '{"appkey":1}',
    request_id: str = "req-1",
    kind: Kind.ValueType = Kind.KIND_BROADCAST,
    platform: Platform.ValueType = Platform.PLATFORM_ANDROID,
    appkey: str = APP,
    message: Message | None = None,
) -> NewRecord:
    push = SendPush(
        msgid=msgid,
        id_count=id_count,
        appkey=appkey,
        platform=platform,
        kind=kind,
        audience=audience or Audience(everyone=Everyone()),
        message=message or Message(content="hello"),
        period_s=3600,
        qps=100,
        task_key=task_key,
        request_json=request_json,
    )
    origin = Origin(interface="v2", address="10.0.0.1", request_id=request_id)
    return new_record(
        PUSH_COMMANDS.name, 0, PushCommand(meta=meta(f"send {msgid}", time_ms, "edge", origin), send=push)
    )


def cancel(msgid: int, time_ms: int = T0) -> NewRecord:
    origin = Origin(interface="v2", address="10.0.0.2", request_id="req-2")
    command = PushCommand(meta=meta(f"cancel {msgid}", time_ms, "edge", origin))
    command.cancel.CopyFrom(CancelPush(msgid=msgid, appkey=APP))
    return new_record(PUSH_COMMANDS.name, 0, command)


def started(msgid: int, partition: int, numbers: Sequence[int], time_ms: int = T0) -> NewRecord:
    fact = _push_fact(f"started {msgid} {partition}", msgid, partition, time_ms)
    audience = BitMap(numbers).serialize()
    fact.started.CopyFrom(PushStarted(audience=audience, count=len(numbers), expires_ms=time_ms + 3_600_000))
    return new_record(PUSHES.name, partition, fact)


def cancelled(msgid: int, partition: int, time_ms: int = T0) -> NewRecord:
    fact = _push_fact(f"cancelled {msgid} {partition}", msgid, partition, time_ms)
    fact.cancelled.CopyFrom(PushCancelled())
    return new_record(PUSHES.name, partition, fact)


def finished(msgid: int, partition: int, time_ms: int = T0) -> NewRecord:
    fact = _push_fact(f"finished {msgid} {partition}", msgid, partition, time_ms)
    fact.finished.CopyFrom(PushFinished())
    return new_record(PUSHES.name, partition, fact)


def failed(msgid: int, partition: int, reason: str, time_ms: int = T0) -> NewRecord:
    fact = _push_fact(f"failed {msgid} {partition}", msgid, partition, time_ms)
    fact.failed.reason = reason
    return new_record(PUSHES.name, partition, fact)


def _push_fact(seed: str, msgid: int, partition: int, time_ms: int) -> PushFact:
    return PushFact(meta=meta(seed, time_ms, "delivery"), msgid=msgid, appkey=APP, partition=partition)


def app_outcomes(
    msgid: int | np.ndarray[Any, Any],
    numbers: Sequence[int] | np.ndarray[Any, Any],
    kind: OutcomeKind.ValueType,
    time_ms: int = T0,
    reason: str = "",
    appkey: str = APP,
    channel: "Channel.ValueType" = CHANNEL_UNSPECIFIED,
    simulated: "Sequence[Channel.ValueType]" = (),
) -> AppOutcomes:
    count = len(numbers)
    return AppOutcomes(
        appkey=appkey,
        msgids=np.broadcast_to(np.asarray(msgid, "<u8"), count).tobytes(),
        numbers=np.asarray(numbers, "<u4").tobytes(),
        kinds=np.full(count, kind, "u1").tobytes(),
        times_ms=np.full(count, time_ms, "<i8").tobytes(),
        reason_indexes=np.full(count, 1 if reason else 0, "u1").tobytes(),
        reasons=[reason] if reason else [],
        channels=np.full(count, channel, "u1").tobytes() if channel else b"",
        simulated=simulated,
    )


def outcomes(partition: int, *apps: AppOutcomes, seed: str = "outcomes") -> NewRecord:
    """Return a record of outcomes, written at the time of the last one."""
    times_ms = np.concatenate([np.frombuffer(app.times_ms, "<i8") for app in apps])
    fact = DeliveryFact(meta=meta(seed, int(times_ms.max(initial=0)), "delivery"), outcomes=Outcomes(apps=apps))
    return new_record(DELIVERIES.name, partition, fact)


def device(number: int, partition: int = 1, *, time_ms: int = T0, token: str = "", **fields: Any) -> NewRecord:
    attributes = Attributes(**fields.pop("attributes", {}))
    state = Device(
        appkey=APP,
        token=token or f"token-{partition}-{number}",
        platform=fields.pop("platform", Platform.PLATFORM_ANDROID),
        partition=partition,
        number=number,
        attributes=attributes,
        **{"registered_ms": T0, **fields},
    )
    fact = DeviceFact(meta=meta(f"device {partition} {number} {time_ms}", time_ms, "registry"), device=state)
    return NewRecord(DEVICES.name, partition, f"{APP}/{state.token}".encode(), fact.SerializeToString())


def device_command(
    number: int, partition: int = 1, *, time_ms: int = T0, token: str = "", origin: Origin | None = None, **command: Any
) -> NewRecord:
    """Return a command to a device, from an app server unless an origin is given."""
    token = token or f"token-{partition}-{number}"
    origin = origin or Origin(interface="v2", address="10.0.0.3", request_id="req-3")
    made = DeviceCommand(meta=meta(f"{token} {time_ms} {command}", time_ms, "edge", origin), appkey=APP, token=token)
    made.MergeFrom(DeviceCommand(**command))
    return NewRecord(DEVICE_COMMANDS.name, partition, f"{APP}/{token}".encode(), made.SerializeToString())


def app_changed(action: str, *settings: str, time_ms: int = T0, appkey: str = APP) -> NewRecord:
    origin = Origin(interface="cli", address="alice@ops", request_id="req-4")
    fact = AppFact(meta=meta(f"{action} {time_ms}", time_ms, "registry", origin))
    fact.changed.CopyFrom(AppChanged(appkey=appkey, action=action, settings=settings))
    return NewRecord(APPS.name, 0, f"{APP}/changed/{action}{time_ms}".encode(), fact.SerializeToString())


def session(
    number: int,
    kind: SessionEventKind.ValueType,
    time_ms: int,
    partition: int = 1,
    reason: str = "",
    connection: int = 7,
    gateway: str = "key",
) -> NewRecord:
    event = SessionEvent(
        appkey=APP,
        number=number,
        kind=kind,
        time_ms=time_ms,
        connection=connection,
    )
    event.reason = reason
    fact = SessionFact(meta=meta(f"session {number} {time_ms}", time_ms, "gateway"), batch=SessionBatch(events=[event]))
    return NewRecord(SESSIONS.name, partition, gateway.encode(), fact.SerializeToString())


def connection_counts(minute_ms: int, counts: dict[str, int], gateway: str = "g1") -> NewRecord:
    fact = SessionFact(meta=meta(f"counts {minute_ms} {gateway}", minute_ms, "gateway"))
    fact.counts.CopyFrom(ConnectionCounts(gateway=gateway, minute_ms=minute_ms, connections_by_app=counts))
    return new_record(SESSIONS.name, 0, fact)
