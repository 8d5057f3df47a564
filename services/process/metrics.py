"""Every metric of the service, declared once with its meaning; metrics of the host, and of several processes."""

import shutil
from collections.abc import Iterable, Mapping
from math import nan
from pathlib import Path

from cryptography.x509 import load_pem_x509_certificate
from prometheus_client import REGISTRY, Counter, Gauge, Histogram, Metric, disable_created_metrics, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Sample

# Otherwise each series of a counter or a histogram has another one beside it, with the time at which it was made.
disable_created_metrics()  # type: ignore[no-untyped-call]

_FAST = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)

PROCESS_INFO = Gauge(
    "carillon_process_info",
    "1; the role of the process (up for carillon up), its version, and the commit it was built from",
    ["role", "version", "commit"],
)
READY = Gauge("carillon_ready", "1 while the process is ready and all of its parts work, else 0")
DATA_FREE = Gauge("carillon_data_free_bytes", "Bytes that are free on the disk of the data directory")
DATA_SIZE = Gauge("carillon_data_size_bytes", "Bytes of the disk of the data directory")
CERTIFICATE_EXPIRES = Gauge(
    "carillon_certificate_expires_seconds",
    "Time in seconds since 1970 at which the certificate in the file of a setting expires",
    ["setting"],
)
APPENDED = Counter("carillon_log_records_appended_total", "Records made durable in the event log", ["topic"])
ARCHIVED = Counter("carillon_log_records_archived_total", "Records moved from the log into the archive", ["topic"])
ARCHIVE_FAILURES = Counter(
    "carillon_log_archive_failures_total", "Times that old records stayed in the log because the archive did not work"
)
ARCHIVE_REMOVED = Counter(
    "carillon_archive_segments_removed_total", "Segments removed from the archive, as all in them is too old"
)
STATE_COPY_FAILURES = Counter(
    "carillon_state_copy_failures_total", "Times that a role's state could not be copied to the archive"
)
APPLIED = Counter("carillon_records_applied_total", "Records a role has applied", ["role", "topic"])
LAG = Gauge(
    "carillon_lag_records",
    "Records that a follower has not applied yet, when last checked; 0 while it stands by",
    ["role", "topic"],
)
LAG_SECONDS = Gauge(
    "carillon_lag_seconds",
    "Time for which the oldest record that a follower has not applied yet has waited at least, when last checked;"
    " 0 while it stands by",
    ["role"],
)
OWNER = Gauge("carillon_owner", "1 while the process owns its partitions, 0 while it stands by", ["role", "shard"])
OWNER_EPOCH = Gauge(
    "carillon_owner_epoch",
    "The epoch under which the process owns its partitions, 0 while it stands by",
    ["role", "shard"],
)
OWNER_SINCE = Gauge(
    "carillon_owner_since_seconds",
    "Time in seconds since 1970 at which the process took over its partitions, 0 while it stands by",
    ["role", "shard"],
)
STANDBYS = Gauge(
    "carillon_standbys", "Processes that stand by for the shard of this one and have caught up", ["role", "shard"]
)
PERSON_KEYS = Gauge("carillon_person_keys", "1 in a process that has the keys of persons, and can seal and open")
PERSON_KEYS_UNCOPIED = Gauge(
    "carillon_person_keys_uncopied", "1 while personal values are sealed with keys of which no copy was made"
)
DEAD_LETTERS = Counter(
    "carillon_records_dead_lettered_total",
    "Records that could not be decoded or applied",
    ["role"],
)
BACKGROUND_FAILURES = Counter(
    "carillon_background_failures_total", "Background tasks that ended by an unexpected error, which the log names"
)
CHILD_UP = Gauge(
    "carillon_child_up", "1 while a child process, such as analytics of carillon up, is ready", ["process"]
)
CHILD_RESTARTS = Counter(
    "carillon_child_restarts_total",
    "Starts of a child process anew, because it ended or was killed for not answering",
    ["process"],
)
CLOCK_SKEW = Gauge(
    "carillon_clock_skew_seconds", "Clock of the host of another process minus that of this one's host", ["peer"]
)
CLOCK_CORRECTION = Gauge("carillon_clock_correction_seconds", "Time of this process minus the clock of its host")
RPC_SECONDS = Histogram("carillon_rpc_seconds", "Time to answer a call between roles", ["method"], buckets=_FAST)
RPC_ERRORS = Counter("carillon_rpc_errors_total", "Calls between roles answered with an error", ["method", "code"])
# The label `interface` is android, ios or v2.
REQUEST_SECONDS = Histogram(
    "carillon_edge_request_seconds", "Time to answer an app server", ["interface", "path"], buckets=_FAST
)
REQUESTS = Counter("carillon_edge_requests_total", "Requests answered to app servers", ["interface", "path", "result"])
OLD_SECRET_REQUESTS = Counter(
    "carillon_edge_old_secret_requests_total",
    "Requests signed with the secret that the latest rotation kept",
    ["appkey"],
)
REGISTRATIONS_REFUSED = Counter(
    "carillon_edge_registrations_refused_total", "Registrations over HTTP refused: too many from one address"
)
ALIASES_LOST = Counter(
    "carillon_registry_aliases_lost_total",
    "Devices that lost their alias because more devices had it than may, by whether the device had proven it",
    ["device"],
)
ADDRESSES_LOST = Counter(
    "carillon_registry_addresses_lost_total",
    "Addresses on channels that devices lost: their vendor said that they are dead (dead), or another device of the app"
    " set the same one (moved)",
    ["channel", "why"],
)
IDENTITY_PROOFS = Counter(
    "carillon_identity_proofs_total",
    "Proofs of aliases and identity tags that devices handed in, by the result: proven, or why it was refused",
    ["result"],
)
BODIES_REFUSED = Counter(
    "carillon_edge_bodies_refused_total",
    "Request bodies refused before the sign was verified: too many bytes at once",
)
HTTP_CONNECTIONS = Gauge(
    "carillon_http_connections",
    "Open HTTP connections: of app servers (api), to the operations endpoint (operations) or the console (console), or "
    "between workers of an edge (workers)",
    ["listener"],
)
HTTP_REFUSED = Counter(
    "carillon_http_refused_total",
    "HTTP connections refused: all were busy (full), or too many of one address (address)",
    ["listener", "why"],
)
HTTP_CLOSED = Counter(
    "carillon_http_closed_total",
    "HTTP connections closed by the service: idle, a late, large or malformed head, unread answers, a place needed",
    ["listener", "why"],
)
REFUSALS_LEFT_OUT = Counter(
    "carillon_edge_refusals_left_out_total",
    "Refused requests that are not recorded: too many of one app, or the log did not take them",
)
QUOTA_REFUSALS = Counter(
    "carillon_quota_refusals_total",
    "Requests of app servers and registrations of devices refused because of an app's quota, or its share of memory",
    ["appkey", "quota"],
)
CONNECTIONS = Gauge("carillon_gateway_connections", "Devices connected to this gateway")
CONNECTIONS_MAX = Gauge("carillon_gateway_connections_max", "Devices that can be connected to this gateway at once")
FRAMES_SENT = Counter("carillon_gateway_frames_sent_total", "Push frames written to devices")
REPORTS = Counter("carillon_gateway_reports_total", "Acknowledgements and reports received from devices")
UNSENT_REPORTS_DROPPED = Counter(
    "carillon_gateway_unsent_reports_dropped_total",
    "Acknowledgements and reports with which a device exceeded its allowance of pushes that it was not sent",
)
GOODBYES = Counter("carillon_gateway_goodbyes_total", "Connections ended by the gateway", ["reason"])
REFUSED = Counter(
    "carillon_gateway_refused_total",
    "Devices refused: the gateway was full, an address had its share, or registrations too fast",
    ["why"],
)
LOST_DEVICES = Counter(
    "carillon_registry_lost_devices_total",
    "Devices with a valid key whose token the log does not know: the log has gone back",
)
DEVICES_RETIRED = Counter(
    "carillon_registry_devices_retired_total", "Devices removed because they were silent for too long", ["appkey"]
)
DEVICES_RETURNED = Counter(
    "carillon_registry_devices_returned_total",
    "Devices that showed life after they were removed for silence",
    ["appkey"],
)
SILENT_SHARE = Gauge(
    "carillon_registry_silent_share",
    "Share of the registered devices of an app that have been silent for too long, at the latest pass",
    ["appkey"],
)
ERASURE_STATEMENTS = Counter(
    "carillon_analytics_erasure_statements_total",
    "Statements that changed a table of the analytics store, to forget erased persons",
    ["table"],
)
EVERY_ROLE = ""
"""The label `role` of what the roles of a process do together."""

ERASURES_APPLIED = Gauge(
    "carillon_erasures_applied",
    "Records of the topic erasures that a part of a role has applied, in what it keeps on disk too",
    ["role", "part"],
)
APPS_PAUSED = Gauge("carillon_apps_paused", "Apps that are paused, by their own pause or by that of all apps")
PUSHES_STARTED = Counter("carillon_delivery_pushes_started_total", "Pushes started, counted once per partition")
ACCEPTED_TO_SENT = Histogram(
    "carillon_delivery_accepted_to_sent_seconds",
    "Time from the acceptance of a push until the messages for connected devices are handed to their gateways, or those"
    " for iOS to Apple's senders; once for each push and process that starts it",
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300),
)
PUSHES_FAILED = Counter("carillon_delivery_pushes_failed_total", "Pushes that could not start and ended as failed")
PUSHES_HELD_UP = Gauge(
    "carillon_delivery_pushes_held_up", "Pushes that wait for targeting and are passed by later pushes of their app"
)
OUTCOMES = Counter("carillon_delivery_outcomes_total", "Outcomes recorded", ["kind"])
REPORTS_REFUSED = Counter(
    "carillon_delivery_reports_refused_total",
    "Acknowledgements and reports that do not count: the device was not sent the push, or they were repeated",
    ["kind"],
)
PENDING = Gauge("carillon_delivery_pushes_active", "Pushes that may still reach a device")
APNS_ANSWERS = Counter("carillon_apns_answers_total", "Answers of Apple's push service, by reason", ["reason"])
APNS_MOSTLY_BAD = Gauge(
    "carillon_apns_apps_with_bad_tokens",
    "iOS apps most of whose tokens Apple refuses as bad or of another app; they stay registered",
)
APNS_STOPPED = Gauge("carillon_apns_apps_stopped", "iOS apps whose pushes wait because Apple does not accept their key")
CHANNEL_ANSWERS = Counter(
    "carillon_channel_answers_total",
    "Answers of the push services of a channel other than Apple's, by status and reason",
    ["channel", "reason"],
)
CHANNEL_STOPPED = Gauge(
    "carillon_channel_apps_stopped",
    "Apps whose messages wait because the push services of a channel do not accept their credentials",
    ["channel"],
)
CHANNEL_TOKENS = Counter(
    "carillon_channel_access_tokens_total",
    "Access tokens asked of the vendor of a channel: granted, refused or failed",
    ["channel", "result"],
)
CHANNEL_RECEIPTS = Counter(
    "carillon_channel_receipts_total",
    "Receipts that vendors of channels have sent, by what they say",
    ["channel", "status"],
)
CHANNEL_UNREACHABLE = Gauge(
    "carillon_channel_unreachable_services",
    "Push services of a channel to which the latest attempt to connect failed, and no connection is open",
    ["channel"],
)
WEBHOOK_REQUESTS = Counter(
    "carillon_webhook_requests_total",
    "Requests to receivers of webhooks, by the class of the answer's status: 2xx to 5xx, or none",
    ["answer"],
)
WEBHOOK_EVENTS = Counter("carillon_webhook_events_total", "Events that receivers of webhooks have taken")
WEBHOOK_AGE = Gauge(
    "carillon_webhook_age_seconds",
    "Age of the oldest event that waits for a receiver which is neither paused nor switched off",
)
WEBHOOKS_FAILING = Gauge("carillon_webhooks_failing", "Webhooks whose receiver did not take the latest request")
WEBHOOKS_PAUSED = Gauge(
    "carillon_webhooks_paused", "Webhooks that wait for `carillon webhook resume` because their receiver has failed"
)
NOTICES = Counter(
    "carillon_notices_total",
    "Attempts to send mails about drafts, by result: taken, failed, given up; drafts without mails: over the limit",
    ["result"],
)
TASKS_FIRED = Counter("carillon_scheduling_tasks_fired_total", "Timed tasks that were sent")
TASKS_FAILED = Counter("carillon_scheduling_tasks_failed_total", "Timed tasks that could not be sent, ended as failed")
LOG_INS = Counter(
    "carillon_accounts_log_ins_total", "Attempts to log in, by result: ok, code_needed, refused or limited", ["result"]
)
DRAFTS_SENT = Counter("carillon_accounts_drafts_sent_total", "Approved drafts that were handed to scheduling")
DRAFTS_EXPIRED = Counter("carillon_accounts_drafts_expired_total", "Drafts that nobody decided about in their time")
TASKS_HELD = Counter(
    "carillon_accounts_tasks_held_total", "Timed pushes that needed an approval when they fell due, and wait as drafts"
)
INSERTED = Counter("carillon_analytics_rows_inserted_total", "Rows inserted into ClickHouse", ["table"])


# Metrics of several processes in one text of Prometheus' format.

_OF_EVERY_PROCESS = ("process_", "python_")


def exposition(families: Iterable[Metric]) -> bytes:
    """Return the text of these families."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    return generate_latest(registry)


def with_children(texts: Mapping[str, str]) -> bytes:
    """Return the text of this process's metrics and of its children's; `texts` holds each child's text by its name.

    A counter or histogram is the sum over all processes that have it; a gauge is this process's own, or else that of
    the first child that has it. Resources that a child uses, such as memory, have the label `process` with its name.
    """
    families = {family.name: _copied(family, family.samples) for family in REGISTRY.collect()}
    for name, text in texts.items():
        for family in text_string_to_metric_families(text):
            target = families.setdefault(family.name, _copied(family, ()))
            if family.name.startswith(_OF_EVERY_PROCESS):
                labels = {"process": name}
                target.samples += [sample._replace(labels={**sample.labels, **labels}) for sample in family.samples]
            else:
                target.samples = _combined(target, family)
    return exposition(families.values())


def _copied(family: Metric, samples: Iterable[Sample]) -> Metric:
    copied = Metric(family.name, family.documentation, family.type)
    copied.samples = list(samples)
    return copied


def _combined(own: Metric, other: Metric) -> list[Sample]:
    samples = {_key(sample): sample for sample in own.samples}
    for sample in other.samples:
        mine = samples.setdefault(_key(sample), sample)
        if mine is not sample and own.type != "gauge":
            samples[_key(sample)] = mine._replace(value=mine.value + sample.value)
    return list(samples.values())


def _key(sample: Sample) -> tuple[object, ...]:
    return (sample.name, *sorted(sample.labels.items()))


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


# Metrics of the host, read at each scrape: disk space, and the expiry of the certificates in use.


def export_disk_space(directory: Path) -> None:
    """Export the size and the free bytes of the disk of this directory; NaN while the directory cannot be read."""
    DATA_SIZE.set_function(lambda: _size_and_free(directory)[0])
    DATA_FREE.set_function(lambda: _size_and_free(directory)[1])


def export_expiry(setting: str, file: str | None) -> None:
    """Export when the first certificate of the setting's PEM file expires; NaN while there is none. None: no file."""

    def expires_s() -> float:
        try:
            return load_pem_x509_certificate(Path(str(file)).read_bytes()).not_valid_after_utc.timestamp()
        except (OSError, ValueError):
            return nan

    if file is not None:
        CERTIFICATE_EXPIRES.labels(setting).set_function(expires_s)


def _size_and_free(directory: Path) -> tuple[float, float]:
    try:
        usage = shutil.disk_usage(directory)
    except OSError:
        return nan, nan
    return usage.total, usage.free
