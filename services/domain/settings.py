"""Settings: environment variables CARILLON_<NAME>, a .env file under them, read once into a frozen type per role."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from ssl import SSLContext
from typing import Annotated, TypeVar
from zoneinfo import TZPATH, ZoneInfo, ZoneInfoNotFoundError, available_timezones

import msgspec
from dotenv import dotenv_values

from services.domain.push_endpoints import webhook_hosts
from services.errors import CarillonError, InputError
from services.log.kafka.security import (
    MECHANISMS,
    PROTOCOLS,
    KafkaSecurity,
    Login,
    add_client_certificate,
    read_password,
    tls_context,
)
from services.net.http.client_address import ClientAddresses, Networks
from services.net.rpc.tls import Tls
from services.net.sockets import hard_file_limit

PREFIX = "CARILLON_"
_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}
LOCALTIME = "/etc/localtime"
_S3_URL = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.*'()/-]*)?")
_HTTP_URL = re.compile(r"https?://[^\s/]+(:[0-9]+)?/?")
_KAFKA_TLS = ("kafka_tls_authority", "kafka_tls_cert", "kafka_tls_key")
_KAFKA_SASL = ("kafka_sasl_mechanism", "kafka_sasl_user", "kafka_sasl_password_file")
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Positive = Annotated[int, msgspec.Meta(ge=1)]

SettingsType = TypeVar("SettingsType", bound="Settings")


class SettingsError(CarillonError):
    """A setting is wrong; the message is one line that names it."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of every role. Each field is the environment variable CARILLON_<FIELD> in capitals.

    `drain_s`: how long a process that was asked to stop goes on accepting while /healthz answers 503, in seconds.

    `archive_days`: for how many days records are kept in the log and its archive; None: for ever.

    `calls_host`: the host at which a role listens for calls; unset, the host in CARILLON_<ROLE>_ADDR.

    `gateway_registrations_per_s` bounds each address, at the gateway and the edge; ten times as many may come at once.

    `registrations_per_minute` bounds the new devices of each app, `registrations_per_minute_per_address` those of each
    app from one address; 0: no bound. Five times as many may come at once. The processes of a role share both.

    `webhook_hosts`: hosts of webhooks that may be private or called without TLS, HOST:PORT each, separated by commas.
    """

    data_dir: str = "./data"
    host: str = "127.0.0.1"
    log_days: Annotated[int, msgspec.Meta(ge=1, le=36_500)] = 35
    archive_days: Annotated[int, msgspec.Meta(ge=2, le=36_500)] | None = None
    kafka_bootstrap: str | None = None
    kafka_replication: Positive = 1
    kafka_archive_dir: str | None = None
    kafka_archive_url: str | None = None
    kafka_security_protocol: str = "PLAINTEXT"
    kafka_tls_authority: str | None = None
    kafka_tls_cert: str | None = None
    kafka_tls_key: str | None = None
    kafka_sasl_mechanism: str | None = None
    kafka_sasl_user: str | None = None
    kafka_sasl_password_file: str | None = None
    partitions: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 32
    shard: Annotated[int, msgspec.Meta(ge=0)] = 0
    shards: Positive = 1
    timezone: str | None = None
    log_level: str = "INFO"
    console_port: Port = 8080
    metrics_port: Port | None = None
    drain_s: Annotated[int, msgspec.Meta(ge=0, le=3600)] = 0
    gateway_registrations_per_s: Positive = 500
    registrations_per_minute: Annotated[int, msgspec.Meta(ge=0)] = 20_000
    registrations_per_minute_per_address: Annotated[int, msgspec.Meta(ge=0)] = 120
    http_max_connections: Positive | None = None
    http_connections_per_address: Positive | None = None
    snapshot_s: Positive = 300
    erasure_batch_s: Annotated[int, msgspec.Meta(ge=1, le=86_400)] = 3600
    state_copy_hours: Positive = 24
    stages_dir: str | None = None
    traces_url: str | None = None
    traces_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01
    master_key_file: str | None = None
    device_keys_file: str | None = None
    secrets_key_file: str | None = None
    persons_key_file: str | None = None
    signing_key_file: str | None = None
    public_keys_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_authority: str | None = None
    plaintext_calls: bool = False
    calls_host: str | None = None
    trusted_proxies: str = ""
    webhook_hosts: str = ""

    def check(self) -> None:
        """Check what the types do not express; SettingsError names the setting."""
        if self.shard >= self.shards:
            raise SettingsError(f"{PREFIX}SHARD is {self.shard}, but must be below {PREFIX}SHARDS ({self.shards})")
        if self.shards > self.partitions:
            raise SettingsError(f"{PREFIX}SHARDS is {self.shards}, more than {PREFIX}PARTITIONS ({self.partitions})")
        if self.archive_days is not None and self.kafka_bootstrap is not None:
            raise SettingsError(
                f"{PREFIX}ARCHIVE_DAYS is {self.archive_days}, but {PREFIX}KAFKA_BOOTSTRAP is set, and only the archive"
                " of the embedded log can have an end: unset one of them"
            )
        if self.archive_days is not None and self.archive_days <= self.log_days:
            raise SettingsError(
                f"{PREFIX}ARCHIVE_DAYS is {self.archive_days}: use more than {PREFIX}LOG_DAYS ({self.log_days}), after"
                " which records come into the archive; unset, they stay for ever"
            )
        files = hard_file_limit()
        if self.http_max_connections is not None and self.http_max_connections > files // 2:
            raise SettingsError(
                f"{PREFIX}HTTP_MAX_CONNECTIONS is {self.http_max_connections}, but of {files} open files half are for"
                " other uses; raise the limit of open files (ulimit -Hn)"
            )
        if self.log_level.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            raise SettingsError(f"{PREFIX}LOG_LEVEL is {self.log_level!r}; use DEBUG, INFO, WARNING or ERROR")
        if len({self.tls_cert is None, self.tls_key is None, self.tls_authority is None}) > 1:
            raise SettingsError(f"{PREFIX}TLS_CERT, {PREFIX}TLS_KEY and {PREFIX}TLS_AUTHORITY go together")
        for name in ("tls_cert", "tls_key", "tls_authority"):
            if (path := getattr(self, name)) is not None and not os.access(path, os.R_OK):
                raise SettingsError(f"{PREFIX}{name.upper()} is {path!r}, which cannot be read")
        if self.traces_url is not None and not _HTTP_URL.fullmatch(self.traces_url):
            raise SettingsError(f"{PREFIX}TRACES_URL is {self.traces_url!r}; use a URL like http://collector:4317")
        self.zone()
        self._check_archive()
        self.kafka_security()
        self.client_addresses()
        try:
            webhook_hosts(self.webhook_hosts)
        except InputError as error:
            raise SettingsError(str(error)) from None

    def _check_archive(self) -> None:
        given = {name: getattr(self, name) for name in ("kafka_archive_dir", "kafka_archive_url")}
        names = [PREFIX + name.upper() for name, value in given.items() if value is not None]
        if names and self.kafka_bootstrap is None:
            raise SettingsError(
                f"{names[0]} is set, but {PREFIX}KAFKA_BOOTSTRAP is not: the embedded log has its"
                f" archive at {self.archive_path}"
            )
        if len(names) > 1:
            raise SettingsError(f"{' and '.join(names)} are set, but a log has one archive")
        if self.kafka_archive_dir is not None and not Path(self.kafka_archive_dir).is_dir():
            raise SettingsError(f"{PREFIX}KAFKA_ARCHIVE_DIR is {self.kafka_archive_dir!r}, which is no directory here")
        if self.kafka_archive_url is not None and not _S3_URL.fullmatch(self.kafka_archive_url):
            raise SettingsError(
                f"{PREFIX}KAFKA_ARCHIVE_URL is {self.kafka_archive_url!r}; use s3://BUCKET/PREFIX, with the store's"
                " address and log-in in AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )

    @property
    def data(self) -> Path:
        return Path(self.data_dir)

    @property
    def log_file(self) -> Path:
        """File of the embedded event log."""
        return self.data / "log" / "events.db"

    @property
    def archive_path(self) -> Path | None:
        """Directory of the log's archive; None where the archive is in a bucket, or there is none."""
        if self.kafka_bootstrap is None:
            return self.log_file.parent / "archive"
        return Path(self.kafka_archive_dir) if self.kafka_archive_dir else None

    @property
    def key_file(self) -> Path:
        """File of the master key: in the data directory unless CARILLON_MASTER_KEY_FILE is set."""
        return Path(self.master_key_file) if self.master_key_file else self.data / "master.key"

    def state_dir(self, role: str) -> Path:
        """Return the directory of this role instance's state."""
        return self.data / (role if self.shards == 1 else f"{role}-{self.shard}-of-{self.shards}")

    def zone(self) -> ZoneInfo:
        """Return the time zone of the public interface; the host's unless set."""
        name = self.timezone or _host_zone()
        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise SettingsError(
                f"{PREFIX}TIMEZONE is {name!r}, which is no time zone; use a name like Asia/Shanghai"
            ) from None

    def client_addresses(self) -> ClientAddresses:
        """Return the finder of clients' addresses, which believes the trusted proxies.

        SettingsError: an entry of TRUSTED_PROXIES is neither an IP network nor an address.
        """
        texts = self.trusted_proxies.split(",") if self.trusted_proxies else ()
        try:
            return ClientAddresses(Networks.parse(texts, f"{PREFIX}TRUSTED_PROXIES is {self.trusted_proxies!r}"))
        except InputError as error:
            raise SettingsError(str(error)) from None

    def tls(self) -> Tls | None:
        """Return the files for mutual TLS of calls between roles; None: calls are in plain text."""
        if self.tls_cert is None or self.tls_key is None or self.tls_authority is None:
            return None
        return Tls(Path(self.tls_cert), Path(self.tls_key), Path(self.tls_authority))

    def kafka_security(self) -> KafkaSecurity:
        """Return the security of connections to Kafka; reads its files. SettingsError names the invalid setting."""
        protocol = self.kafka_security_protocol
        if protocol not in PROTOCOLS:
            raise SettingsError(
                f"{PREFIX}KAFKA_SECURITY_PROTOCOL is {protocol!r}; use PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"
            )
        has_tls, has_sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
        for name in (*(() if has_tls else _KAFKA_TLS), *(() if has_sasl else _KAFKA_SASL)):
            if getattr(self, name) is not None:
                raise SettingsError(f"{PREFIX}{name.upper()} is set, but {PREFIX}KAFKA_SECURITY_PROTOCOL is {protocol}")
        return KafkaSecurity(
            protocol, self._kafka_tls() if has_tls else None, self._kafka_login() if has_sasl else None
        )

    def _kafka_tls(self) -> SSLContext:
        authority, cert, key = self.kafka_tls_authority, self.kafka_tls_cert, self.kafka_tls_key
        if (cert is None) != (key is None):
            raise SettingsError(f"{PREFIX}KAFKA_TLS_CERT and {PREFIX}KAFKA_TLS_KEY go together")
        with _naming_setting(f"{PREFIX}KAFKA_TLS_AUTHORITY is {authority!r}"):
            context = tls_context(Path(authority) if authority else None)
        if cert is not None and key is not None:
            with _naming_setting(f"{PREFIX}KAFKA_TLS_CERT is {cert!r} and {PREFIX}KAFKA_TLS_KEY {key!r}"):
                add_client_certificate(context, Path(cert), Path(key))
        return context

    def _kafka_login(self) -> Login:
        mechanism, user, file = self.kafka_sasl_mechanism, self.kafka_sasl_user, self.kafka_sasl_password_file
        if mechanism not in MECHANISMS:
            given = "not set" if mechanism is None else repr(mechanism)
            raise SettingsError(f"{PREFIX}KAFKA_SASL_MECHANISM is {given}; use {', '.join(MECHANISMS)}")
        if user is None or file is None:
            raise SettingsError(f"{PREFIX}KAFKA_SASL_USER and {PREFIX}KAFKA_SASL_PASSWORD_FILE are needed with SASL")
        with _naming_setting(f"{PREFIX}KAFKA_SASL_PASSWORD_FILE is {file!r}"):
            return Login(mechanism, user, read_password(Path(file)))


def environment() -> dict[str, str]:
    """Return the process's environment, completed from a .env file in the working directory.

    SettingsError: the file cannot be read.
    """
    try:
        from_file = dotenv_values(".env")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the file .env in {os.getcwd()} cannot be read: {error}") from None
    return {**{name: value for name, value in from_file.items() if value is not None}, **os.environ}


def load(settings: type[SettingsType], env: Mapping[str, str]) -> SettingsType:
    """Read one role's settings; an empty variable counts as unset. SettingsError in one line that names the setting."""
    given = {
        field.name: value
        for field in msgspec.structs.fields(settings)
        if (value := env.get(PREFIX + field.name.upper(), "").strip())
    }
    try:
        loaded = msgspec.convert(given, settings, strict=False)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$.")
        name = path.rstrip("`")
        raise SettingsError(f"{PREFIX}{name.upper()} is {given.get(name)!r}: use {_wanted(problem)}") from None
    loaded.check()
    return loaded


def _wanted(problem: str) -> str:
    """Return what a value must be, such as "a whole number <= 65535", from msgspec's words for a wrong one."""
    expected = problem.removeprefix("Expected ").partition(", got ")[0]
    return re.sub(r"`(\w+)[^`]*`", lambda kind: _KINDS.get(kind[1], kind[0]), expected)


def addresses(role: str, env: Mapping[str, str]) -> list[str]:
    """Return the comma-separated addresses in CARILLON_<ROLE>_ADDR, one for each instance; empty when unset."""
    name = f"{PREFIX}{role.upper()}_ADDR"
    given = [address.strip() for address in env.get(name, "").split(",") if address.strip()]
    for address in given:
        host, _, port = address.rpartition(":")
        if not address.startswith("unix:") and not (
            host and "/" not in host and port.isdecimal() and int(port) < 65536
        ):
            raise SettingsError(f"{name} is {address!r}; use HOST:PORT or unix:PATH, one for each instance")
    return given


@contextmanager
def _naming_setting(setting: str) -> Iterator[None]:
    """Turn errors of a setting's file into a SettingsError that names the setting."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise SettingsError(f"{setting}, which cannot be used: {error}") from None


def _host_zone() -> str:
    """Return the name of the host's time zone: from TZ, else from the target or the content of /etc/localtime."""
    name = os.environ.get("TZ", "").lstrip(":")
    if name and not name.startswith("/"):
        return name
    file = Path(name or LOCALTIME)
    if not file.exists():
        return "UTC"
    return os.path.realpath(file).partition("/zoneinfo/")[2] or _zone_with_content(file.read_bytes())


def _zone_with_content(content: bytes) -> str:
    """Return the name of the zone with this content, for hosts where /etc/localtime is a copy and no link."""
    # Names such as Asia/Shanghai first: the older ones, such as PRC, have the same content.
    names = sorted(available_timezones(), key=lambda name: ("/" not in name, name))
    for directory in map(Path, TZPATH):
        for name in names:
            if (directory / name).is_file() and (directory / name).read_bytes() == content:
                return name
    raise SettingsError(f"{PREFIX}TIMEZONE must be set: the host's time zone has no known name")
