"""The measured constants of the capacity plan, each with the page that states it."""

from typing import NamedTuple

from services.log.port import MAX_RECORD_BYTES

MAX_PARTITIONS = 1024
"""The largest CARILLON_PARTITIONS."""

RECORD_OVERHEAD = 1000
"""Bytes of a record with an audience beside the audience."""

MAX_AUDIENCE_DEVICES = 8 * (MAX_RECORD_BYTES - RECORD_OVERHEAD)
"""Devices of one app in one partition, of which any subset fits into the record that starts a push: a bit for each."""


class Measured(NamedTuple):
    """A measured number, the page that states it, and the words on that page."""

    value: float
    page: str
    words: str


_CAPACITY = "docs/operators/capacity.md"
_PERFORMANCE = "docs/performance.md"
_GROWTH = "docs/performance/growth.md"

EDGE_PUSHES_PER_S = Measured(2_700, _CAPACITY, "2,700 to 5,500 signed single-target pushes a second")
GATEWAY_FRAMES_PER_S = Measured(100_000, _CAPACITY, "100,000 frames a second to connected devices")
GATEWAY_UNICASTS_PER_S = Measured(30_000, _CAPACITY, "30,000 unicasts with acknowledgement a second")
GATEWAY_TLS_BYTES = Measured(27_000, _CAPACITY, "27 KB with TLS")
REGISTRATIONS_PER_S = Measured(2_800, _CAPACITY, "2,800 new devices a second through the whole service")
DELIVERY_ACKS_PER_S = Measured(25_000, _CAPACITY, "10,000 connected devices acknowledge a broadcast within 0.4 s")
REGISTRY_BYTES = Measured(300, _CAPACITY, "0.3 KB of disk for each device")
REGISTRY_REBUILD_US = Measured(40, _CAPACITY, "The registry takes 40 s of one core for a million devices")
TARGETING_BYTES = Measured(205, _CAPACITY, "20 to 205 bytes for each device")
ANALYTICS_OUTCOMES_PER_S = Measured(390_000, _CAPACITY, "390,000 to 790,000 outcomes a second")
LOG_RECORDS_PER_S = Measured(26_800, _PERFORMANCE, "| Kafka, 1 partition | 26,800, 2.1 ms | 62,200, 8.5 ms |")
LOG_MOST_RECORDS_PER_S = Measured(62_200, _PERFORMANCE, "| Kafka, 1 partition | 26,800, 2.1 ms | 62,200, 8.5 ms |")
UNDELIVERED_BYTES = Measured(640, _GROWTH, "A million undelivered messages of one push each")
DEVICE_LOG_BYTES = Measured(220, _CAPACITY, "its registration, compacted | 220, and 185 for the command, which stays")
CONNECTION_LOG_BYTES = Measured(240, _CAPACITY, "120 when it begins, less than that when it ends")
UNICAST_LOG_BYTES = Measured(910, _CAPACITY, "request, start, sent, received, shown | 910")
BROADCAST_LOG_BYTES = Measured(75, _CAPACITY, "75 for each device that gets, acknowledges and shows it")
PUSH_CPU_MS = Measured(1.8, _PERFORMANCE, "1.60 to 1.80 at 300/s")

ALL = [one for one in list(globals().values()) if isinstance(one, Measured)]
