"""The capacity plan: processes, memory, disk and log of an installation, computed from the measured constants."""

from math import ceil
from typing import NamedTuple

from bench.capacity import measured as m

DAY_S = 86_400
LOG_DAYS = 35
REPLICAS = 3


class Load(NamedTuple):
    """The load that is planned for: shares of all devices, and numbers for each device a day.

    `connected` and `undelivered`: shares of the devices. `peak`: the highest rate as a multiple of the day's mean.
    `broadcast_minutes`: the time in which a broadcast is sent. `spare`: the part of a measured rate that is used.
    """

    connected: float = 0.2
    connections_a_day: float = 5
    unicasts_a_day: float = 1
    broadcasts_a_day: float = 1
    peak: float = 5
    broadcast_minutes: float = 10
    undelivered: float = 0.5
    spare: float = 0.5


class Plan(NamedTuple):
    """The plan for one number of devices, a column of the page's table."""

    devices: int
    pushes_per_s: float
    edge_workers: int
    gateways: int
    gateway_memory_gb: float
    delivery: int
    delivery_memory_gb: float
    targeting_memory_gb: float
    registry_disk_gb: float
    registry_rebuild_core_h: float
    analytics: int
    log_gb_a_day: float
    log_disk_tb: float
    log_mb_per_s: float
    partitions: int
    registration_days: float


def processes(rate: float, one_does: m.Measured, load: Load) -> int:
    """Return the number of processes for a rate, of which one process was measured to do `one_does`."""
    return ceil(rate / (one_does.value * load.spare))


def plan(devices: int, load: Load) -> Plan:
    connected = devices * load.connected
    pushes_per_s = devices * load.unicasts_a_day / DAY_S * load.peak
    broadcast_per_s = connected / (load.broadcast_minutes * 60)
    outcomes_per_s = 3 * (broadcast_per_s + pushes_per_s)
    log_bytes = devices * (
        load.connections_a_day * m.CONNECTION_LOG_BYTES.value
        + load.unicasts_a_day * m.UNICAST_LOG_BYTES.value
        + load.broadcasts_a_day * m.BROADCAST_LOG_BYTES.value
    )
    per_gateway = 100_000
    gateways = max(
        ceil(connected / per_gateway),
        processes(broadcast_per_s, m.GATEWAY_FRAMES_PER_S, load),
        processes(pushes_per_s, m.GATEWAY_UNICASTS_PER_S, load),
    )
    return Plan(
        devices=devices,
        pushes_per_s=pushes_per_s,
        edge_workers=processes(pushes_per_s, m.EDGE_PUSHES_PER_S, load),
        gateways=gateways,
        gateway_memory_gb=connected * m.GATEWAY_TLS_BYTES.value / 1e9,
        delivery=processes(broadcast_per_s + pushes_per_s, m.DELIVERY_ACKS_PER_S, load),
        delivery_memory_gb=devices * load.undelivered * m.UNDELIVERED_BYTES.value / 1e9,
        targeting_memory_gb=devices * m.TARGETING_BYTES.value / 1e9,
        registry_disk_gb=devices * m.REGISTRY_BYTES.value / 1e9,
        registry_rebuild_core_h=devices * m.REGISTRY_REBUILD_US.value / 1e6 / 3600,
        analytics=processes(outcomes_per_s, m.ANALYTICS_OUTCOMES_PER_S, load),
        log_gb_a_day=log_bytes / 1e9,
        log_disk_tb=(log_bytes * LOG_DAYS + devices * m.DEVICE_LOG_BYTES.value) * REPLICAS / 1e12,
        log_mb_per_s=log_bytes / DAY_S * load.peak / 1e6,
        partitions=partitions(devices),
        registration_days=devices / m.REGISTRATIONS_PER_S.value / DAY_S,
    )


def partitions(devices: int) -> int:
    """Return the number of partitions, a power of two, with which the audiences of one app with all devices fit."""
    number = 32
    while devices / number > m.MAX_AUDIENCE_DEVICES / 2:
        number *= 2
    return number


def per_thousand_pushes(load: Load) -> dict[str, float]:
    """Return the resources for a thousand pushes a second to one device each."""
    return {
        "edge workers": processes(1000, m.EDGE_PUSHES_PER_S, load),
        "cores of the whole service": m.PUSH_CPU_MS.value / load.spare,
        "event log, MB/s before replication": m.UNICAST_LOG_BYTES.value * 1000 / 1e6,
        "event log, GB a day before replication": m.UNICAST_LOG_BYTES.value * 1000 * DAY_S / 1e9,
        "share of one partition's records, %": 100 * 1000 / m.LOG_RECORDS_PER_S.value,
    }


def most_pushes_per_s(load: Load) -> tuple[float, float]:
    """Return the pushes a second, planned and at most, that the single partition of push-commands takes."""
    return m.LOG_RECORDS_PER_S.value * load.spare, m.LOG_MOST_RECORDS_PER_S.value
