"""The columns of the tables that are filled from the log, as Arrow types; the tables are made by the migrations."""

import pyarrow as pa

from analytics.ingestion.attributes import ATTRIBUTES

_TEXT = pa.string()
_CODED = pa.dictionary(pa.int32(), pa.string())
TIME = pa.timestamp("ms", "UTC")
_ID = pa.binary(16)
_ATTRIBUTES = [(name, _CODED) for name in ATTRIBUTES]
_ORIGIN = [("writer", _TEXT), ("door", _TEXT), ("address", _TEXT), ("request_id", _TEXT)]
_PLACE = [("_topic", _TEXT), ("_partition", pa.uint16()), ("_offset", pa.uint64()), ("_index", pa.uint32())]
_PUSH = [
    *[("msgid", pa.uint64()), ("last_msgid", pa.uint64())],
    *[("appkey", _TEXT), ("platform", _TEXT), ("kind", _TEXT), ("audience", _TEXT)],
    *[("filter", pa.binary()), ("request_json", _TEXT)],
    *[("time", TIME), ("period_s", pa.uint32()), ("qps", pa.uint32()), ("task_key", _TEXT)],
    *[("target_partitions", pa.list_(pa.uint16())), ("target_numbers", pa.list_(pa.uint32()))],
    *[("target_offsets", pa.list_(pa.uint32())), *_ORIGIN, *_PLACE],
]
_DEVICE = [
    *[("appkey", _TEXT), ("partition", pa.uint16()), ("number", pa.uint32()), ("token", _TEXT), ("time", TIME)],
    *[("platform", _TEXT), ("registered", TIME), ("removed", TIME), ("removed_reason", _TEXT)],
    *[("has_alias", pa.bool_()), ("alias", _TEXT), ("tags", pa.list_(pa.int32())), ("stags", pa.list_(_TEXT))],
    *[("model", _TEXT), *_ATTRIBUTES, ("_event_id", _ID), *_PLACE],
]
_PARTITION = [
    *[("msgid", pa.uint64()), ("appkey", _TEXT), ("partition", pa.uint16()), ("event", _TEXT), ("time", TIME)],
    *[("audience", pa.binary()), ("count", pa.uint32()), ("expires", TIME), *_PLACE],
]
_REGISTRATION = [
    *[("appkey", _TEXT), ("registered", TIME), ("partition", pa.uint16()), ("number", pa.uint32())],
    *[*_ATTRIBUTES, *_PLACE],
]
_VALUES = [
    *[("appkey", _TEXT), ("msgid", pa.uint64()), ("partition", pa.uint16()), ("time", TIME)],
    *[*((name, pa.map_(_TEXT, pa.binary())) for name in ATTRIBUTES), *_PLACE],
]
_SESSION = [
    *[("appkey", _TEXT), ("partition", pa.uint16()), ("number", pa.uint32()), ("token", _TEXT), ("kind", _TEXT)],
    *[("time", TIME), ("connection", pa.uint64()), ("reason", _TEXT), ("gateway", _TEXT), *_ATTRIBUTES, *_PLACE],
]
_DELIVERY = [
    *[("appkey", _CODED), ("msgid", pa.uint64()), ("partition", pa.uint16()), ("number", pa.uint32())],
    *[("kind", _CODED), ("time", TIME), ("reason", _CODED), *_ATTRIBUTES],
    *[("_topic", _CODED), ("_partition", pa.uint16()), ("_offset", pa.uint64()), ("_index", pa.uint32())],
]
ACKS = pa.schema(
    [
        *[("appkey", _CODED), ("partition", pa.uint16()), ("number", pa.uint32()), ("msgid", pa.uint64())],
        *[("time", TIME), ("_offset", pa.uint64()), ("_index", pa.uint32())],
    ]
)
"""The columns of `acks`, which repeats what `deliveries` says."""

_LEVEL = [(name, _TEXT) for name in ("appkey", "category", "info", "gateway")]
_CHANGE = [("reader", _TEXT), ("change", pa.int64())]
CONNECTION_CHANGES = pa.schema([*_LEVEL, ("minute", pa.timestamp("s", "UTC")), *_CHANGE])
CONNECTION_DAYS = pa.schema([*_LEVEL, ("day", pa.date32()), *_CHANGE])
"""The columns of two tables that repeat what `sessions` says."""

TABLES: dict[str, pa.Schema] = {
    "devices": pa.schema(_DEVICE),
    "device_commands": pa.schema(
        [
            *[("appkey", _TEXT), ("partition", pa.uint16()), ("token", _TEXT), ("time", TIME), ("command", _TEXT)],
            *[("detail", _TEXT), *_ORIGIN, ("_event_id", _ID), *_PLACE],
        ]
    ),
    "app_changes": pa.schema(
        [
            *[("appkey", _TEXT), ("time", TIME), ("action", _TEXT), ("detail", _TEXT)],
            *[*_ORIGIN, ("_event_id", _ID), *_PLACE],
        ]
    ),
    "registrations": pa.schema(_REGISTRATION),
    "pushes": pa.schema(_PUSH),
    "push_cancels": pa.schema(
        [("msgid", pa.uint64()), ("appkey", _TEXT), ("time", TIME), *_ORIGIN, ("_event_id", _ID), *_PLACE]
    ),
    "tasks": pa.schema([("task_key", _TEXT), ("event", _TEXT), ("time", TIME), ("due", TIME), *_ORIGIN, *_PLACE]),
    "task_pushes": pa.schema(_PUSH),
    "sessions": pa.schema(_SESSION),
    "connection_counts": pa.schema(
        [("appkey", _TEXT), ("minute", TIME), ("gateway", _TEXT), ("connections", pa.uint32()), *_PLACE]
    ),
    "push_partitions": pa.schema(_PARTITION),
    "push_values": pa.schema(_VALUES),
    "deliveries": pa.schema(_DELIVERY),
}
