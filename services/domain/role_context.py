"""Builds the RoleContext of a process from its settings, and closes it."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import cast

from protos.registry.v1.apps_pb2 import AppFact, KeyFingerprint
from protos.registry.v1.registry_pb2 import NoteKeyFingerprintRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.processes_pb2 import HeldKeys
from services.domain.applied_erasures import export_applied_erasures
from services.domain.apps import APPS_PARTITION, AppDirectory, fingerprint_key
from services.domain.ids import RecordStamp
from services.domain.master_key import KeyChain, KeyPurpose, Keys, create_master, load_keys
from services.domain.person_keys import KeyRing
from services.domain.role import RoleContext
from services.domain.sealed_log import SealedLog
from services.domain.sealing import Sealer
from services.domain.sealing_switch import person_keys, stored_person_keys
from services.domain.settings import PREFIX, Settings, addresses
from services.domain.signed_log import SignedLog, holds_signed
from services.domain.signing_keys import SIGNERS, SigningKeys, load_signing_keys
from services.domain.topics import APPS, ERASURES_PARTITION, PROCESSES, TOPICS
from services.errors import CarillonError
from services.log.archive.directory import ArchiveDirectory
from services.log.archive.log import ArchivedLog, TrimmableLog
from services.log.archive.store import ArchiveStore
from services.log.port import LOG_UNAVAILABLE, Log, NewRecord
from services.log.sqlite.log import SqliteLog
from services.log.sqlite.reader import POLL_S
from services.net.rpc.caller import ShardOfRole
from services.net.rpc.channel import Channel, connect
from services.net.rpc.tls import Tls
from services.process import background, push_traces, stages
from services.process.build import build
from services.process.clock import Clock, SteadyClock
from services.process.logs import logger
from services.process.metrics import EVERY_ROLE, PROCESS_INFO, export_disk_space, export_expiry
from services.process.retries import retry_until_available
from services.replica.dead_letters import DeadLetters
from services.replica.health import Health
from services.replica.instances import InstanceDirectory
from services.replica.owner_channel import OwnerChannel
from services.replica.partition_reader import PartitionReader
from services.replica.peers import Peers
from services.replica.status_board import StatusBoard, StatusBoardFollower

# Addresses of the roles that others call, from the settings CARILLON_<ROLE>_ADDR.

DEFAULT_ADDRESSES = {
    "registry": "127.0.0.1:7401",
    "targeting": "127.0.0.1:7402",
    "scheduling": "127.0.0.1:7403",
    "delivery": "127.0.0.1:7404",
    "analytics": "127.0.0.1:7405",
    "accounts": "127.0.0.1:7406",
    "webhooks": "127.0.0.1:7407",
}
"""Default addresses of the roles that others call; CARILLON_<ROLE>_ADDR overrides them."""

ROLES_WITH_STANDBYS = frozenset({"registry", "scheduling", "targeting", "delivery"})
"""Roles of which several processes may have the same shard: one owns it, the others stand by."""

_REGISTRY = "/protos.registry.v1.RegistryService"
HAZARDOUS = frozenset(
    {
        "/protos.targeting.v1.TargetingService/Resolve",
        f"{_REGISTRY}/CreateApp",
        f"{_REGISTRY}/RotateSecret",
        f"{_REGISTRY}/ChangeWebhook",
        f"{_REGISTRY}/TakeBroadcasts",
        f"{_REGISTRY}/RevokeDeviceKey",
        f"{_REGISTRY}/RevokeAppKeys",
        f"{_REGISTRY}/ErasePerson",
    }
)
"""Methods that are not repeated after a call that may have been carried out; the caller decides. A repeated call of the
registry would take effect a second time: create another app, for example. Delivery counts the attempts to resolve an
audience, because the audience itself may have made the owner crash."""


def role_addresses(role: str, env: Mapping[str, str]) -> list[str]:
    """Return the addresses of the role's instances, in order."""
    return addresses(role, env) or [DEFAULT_ADDRESSES[role]]


_NOTE_S = 10.0

Signing = Callable[[Log], Log]


def connected_peers(env: Mapping[str, str], tls: Tls | None) -> Peers:
    """Return channels over sockets to all roles; for a role with standbys, to the owners that the log names."""
    directory = InstanceDirectory()

    def channel(role: str, shard: int, shards: int, address: str) -> Channel:
        def opened(at: str) -> Channel:
            return connect(at, tls, ShardOfRole(role, shard, shards))

        if role not in ROLES_WITH_STANDBYS:
            return opened(address)
        return cast(Channel, OwnerChannel(directory, role, shard, address, opened, HAZARDOUS))

    addresses = {role: role_addresses(role, env) for role in DEFAULT_ADDRESSES}
    channels = {
        role: [channel(role, shard, len(given), address) for shard, address in enumerate(given)]
        for role, given in addresses.items()
    }
    return Peers(channels, TOPICS, directory)


async def open_log(settings: Settings, *, read_only: bool = False, poll_s: float = POLL_S) -> Log:
    """Open the Kafka log if the settings name one, else the embedded log; with its archive. See SqliteLog, KafkaLog."""
    log = await _open_live_log(settings, read_only, poll_s)
    archive = open_archive(settings)
    return ArchivedLog(log, archive) if archive else log


def open_archive(settings: Settings) -> ArchiveStore | None:
    """Return the archive of the log; None where all records stay in Kafka."""
    if settings.kafka_archive_url is not None:
        # Imported here: only installations with a bucket pay for its client in memory and in the time of their start.
        from services.log.archive.bucket import ArchiveBucket

        return ArchiveBucket(settings.kafka_archive_url)
    return ArchiveDirectory(settings.archive_path) if settings.archive_path else None


async def _open_live_log(settings: Settings, read_only: bool, poll_s: float) -> TrimmableLog:
    if settings.kafka_bootstrap is not None:
        # Imported here: only installations with Kafka pay for its client in memory and in the time of their start.
        from services.log.kafka.log import KafkaLog

        return await KafkaLog.connect(
            settings.kafka_bootstrap,
            TOPICS,
            partitions=settings.partitions,
            replication=settings.kafka_replication,
            security=settings.kafka_security(),
            read_only=read_only,
        )
    file = settings.log_file
    file.parent.mkdir(parents=True, exist_ok=True)
    return SqliteLog(file, TOPICS, partitions=settings.partitions, read_only=read_only, poll_s=poll_s)


async def _wait_for_log(settings: Settings) -> Log:
    """Open the log, retrying until Kafka answers: the cluster may start after the roles."""
    if settings.kafka_bootstrap is None:
        return await open_log(settings)
    return await retry_until_available("the log cannot be reached yet", lambda: open_log(settings))


@asynccontextmanager
async def role_context(
    settings: Settings,
    peers: Peers,
    key_purposes: Collection[KeyPurpose] = frozenset(KeyPurpose),
    health: Health | None = None,
    clock: Clock | None = None,
    *,
    creates_master: bool = False,
    log: Log | None = None,
    role: str | None = None,
) -> AsyncIterator[RoleContext]:
    """Yield the context that roles are built with, once the app directory has caught up; close it on exit.

    `health` checks the log and the app directory from then on. `creates_master`: the first process of an installation
    makes the master key. `log` is closed too; None: the settings' log is opened. `role`: the only role of the process;
    None: all roles run in it. CarillonError: a key is missing, or is not the one that the installation began with.
    """
    keys = None if creates_master else load_keys(settings, key_purposes)
    export_disk_space(settings.data)
    PROCESS_INFO.labels(role or "up", *build()).set(1)
    for name in ("tls_cert", "kafka_tls_cert"):
        export_expiry(f"{PREFIX}{name.upper()}", getattr(settings, name))
    log = log or await _wait_for_log(settings)
    if keys is None:
        try:
            await _create_first_master(settings, log)
            keys = load_keys(settings, key_purposes)
        except BaseException:
            await log.close()
            raise
    try:
        signing = await _signing(settings, role, bool(key_purposes), log)
    except BaseException:
        await log.close()
        raise
    with stages.noting(settings.stages_dir):
        async with (
            push_traces.exporting(push_traces.otlp_exporter(settings.traces_url), settings.traces_ratio),
            context_on(log, clock or SteadyClock(), peers, keys, health, signing) as context,
        ):
            await check_keys(context, role if settings.kafka_bootstrap else None)
            following = follow_keys(context.apps, context.keys)
            try:
                async with (
                    _with_person_keys(settings, context, role, creates_master) as with_keys,
                    _with_board(with_keys, role) as with_board,
                ):
                    yield with_board
            finally:
                following.cancel()
                await asyncio.wait([following])


@asynccontextmanager
async def _with_person_keys(
    settings: Settings, context: RoleContext, role: str | None, creates_keys: bool
) -> AsyncIterator[RoleContext]:
    """Yield the context with the keys of persons of this process, with which its log opens and seals."""
    assert isinstance(context.log, SealedLog)
    owns = creates_keys or role == "registry"
    async with person_keys(settings, context.log, context.apps, context.clock, owns=owns) as persons:
        yield replace(context, persons=persons)


@asynccontextmanager
async def _with_board(context: RoleContext, role: str | None) -> AsyncIterator[RoleContext]:
    """Yield the context, with a status board if the process's only role reads the topic `processes`."""
    if role not in PROCESSES.read_by:
        yield context
        return
    board = StatusBoard(context.clock)
    follower = StatusBoardFollower(context.log, board)
    following = background.start_endless(follower.name, follower.run(asyncio.Event()))
    try:
        yield replace(context, board=board)
    finally:
        following.cancel()
        await asyncio.wait([following])


async def _signing(settings: Settings, role: str | None, reads_master: bool, log: Log) -> Signing:
    """Return the function that wraps a log so that it signs the records of the process and checks those it reads.

    CarillonError: a key cannot be used, or this role has signed its records and has no key for further ones.
    """
    keys = load_signing_keys(settings, role, reads_master=reads_master)
    if not keys.public:
        logger.warning(
            "records of apps and accounts are believed without a signature",
            fix="set CARILLON_PUBLIC_KEYS_FILE to what `carillon keys export --public-keys` writes",
        )
    if role in SIGNERS and not keys.private and await holds_signed(log, role):
        raise CarillonError(
            f"the role {role} has signed its records in the log, and this process has no key for further ones: set"
            f" CARILLON_SIGNING_KEY_FILE to what `carillon keys export --{role}-signing-key` writes"
        )
    return partial(log_with_keys, settings, keys)


def log_with_keys(settings: Settings, keys: SigningKeys, log: Log) -> SealedLog:
    """Return the log as roles use it, which signs and checks records; it opens and seals them once it has the keys.

    No other function makes such a log: a log without it takes names for tokens, and appends personal values in clear.
    """
    if keys.private or keys.public:
        refused = DeadLetters(settings.data / "dead-letters" / "signatures.jsonl", "signatures", limit=sys.maxsize)
        log = SignedLog(log, keys.private, keys.public, refused.add)
    return SealedLog(log)


async def readable_log(settings: Settings, keys: SigningKeys, log: Log) -> SealedLog:
    """Return the log of a process that only reads it, and opens what is sealed as far as it has the keys by now."""
    log = log_with_keys(settings, keys, log)
    store = await stored_person_keys(settings, log)
    if store is not None:
        log.use(Sealer(KeyRing(store)))
    return log


async def _create_first_master(settings: Settings, log: Log) -> None:
    """Create the master key of a new installation. CarillonError: the installation exists, but not its key here."""
    path = settings.key_file
    if path.exists() or (settings.device_keys_file and settings.secrets_key_file):
        return
    ends = await retry_until_available(LOG_UNAVAILABLE, lambda: log.ends([APPS_PARTITION]))
    if ends[APPS_PARTITION]:
        raise CarillonError(
            f"no master key is at {path}, but this installation began with one, and no other key opens what it sealed:"
            " copy the installation's key file there from another machine or from a backup, or set"
            " CARILLON_MASTER_KEY_FILE"
        )
    create_master(path)


async def check_keys(context: RoleContext, role: str | None = None) -> None:
    """Check that the process has the keys in force, and note them in the log if they are the installation's first.

    A role that may not write `apps` has the registry note them, and waits until it answers. CarillonError: a key is
    another one, with which secrets could not be opened, or all known devices would be refused.
    """
    apps, keys = context.apps, context.keys
    for purpose in keys.purposes:
        chain = apps.key_chain(purpose.name)
        if chain is None:
            sealed = next((app for app in apps.all() if app.sealed_secret), None)
            if purpose is KeyPurpose.SECRETS and sealed is not None:
                keys.open(sealed.sealed_secret, sealed.appkey)
            noted = KeyFingerprint(purpose=purpose.name, fingerprint=keys.fingerprint(purpose))
            if role is None or role in APPS.written_by:
                chain = await _noted_here(context, noted)
            else:
                chain = KeyChain(await _noted_by_registry(context, noted, role))
        if not _switch_keys(keys, purpose, chain):
            raise CarillonError(_wrong_key_text(keys, purpose, chain))


def _switch_keys(keys: Keys, purpose: KeyPurpose, chain: KeyChain) -> bool:
    """Issue and seal with the key in force from now on; return whether the process has that key and the former one."""
    return keys.switch(purpose, chain.in_force, chain.former, chain.dropped)


def _wrong_key_text(keys: Keys, purpose: KeyPurpose, chain: KeyChain) -> str:
    """Return the error of a process that lacks an accepted key: it has a former one, the next one or a foreign one."""
    if not chain.used:
        return (
            f"the key of {purpose.value} is not the one with which this installation began: its devices or secrets"
            " would be refused. Give this process the file that `carillon keys export` writes on the machine that"
            " has the installation's master key, or that master key. While the keys rotate it needs the present and the"
            " next key, both of which that command writes"
        )
    if keys.has(purpose, chain.in_force):
        return (
            f"the former key of {purpose.value} is missing, and it is accepted until the rotation of"
            f" {_utc(chain.switched_ms)} is ended with `carillon keys rotate --finish`: give this process both keys,"
            " which `carillon keys export` writes while the next master key is beside the former one"
        )
    return (
        f"the key of {purpose.value} is not the present one: the keys were rotated at {_utc(chain.switched_ms)}. Give"
        " this process the file that `carillon keys export` writes now on the machine that has the master key, or the"
        " present master key"
    )


def _utc(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def follow_keys(apps: AppDirectory, keys: Keys) -> "asyncio.Task[None]":
    """Use the keys that come into force from now on. The task ends with CarillonError when the process lacks one.

    Until then the process has judged nothing by a former key: the log's reader calls Keys.switch at each change.
    """
    lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def changed(name: str, chain: KeyChain) -> None:
        purpose = next((each for each in keys.purposes if each.name == name), None)
        if purpose is not None and not _switch_keys(keys, purpose, chain) and not lost.done():
            lost.set_result(_wrong_key_text(keys, purpose, chain))

    async def wait() -> None:
        raise CarillonError(await lost)

    apps.on_key_change(changed)
    for purpose in keys.purposes:
        if (chain := apps.key_chain(purpose.name)) is not None:
            changed(purpose.name, chain)
    return background.start_endless("keys", wait())


def held_keys(context: RoleContext) -> HeldKeys:
    """Return the fingerprints of the keys that this process has, or finds in its files now."""
    topic = context.persons.topic if context.persons else None
    return HeldKeys(
        device_keys=context.keys.held_fingerprints(KeyPurpose.DEVICES),
        secrets=context.keys.held_fingerprints(KeyPurpose.SECRETS),
        persons=topic.wrapping.held_fingerprints() if topic else (),
    )


async def _noted_here(context: RoleContext, noted: KeyFingerprint) -> KeyChain:
    """Append the fingerprint, and wait until it is applied; return the keys that the log names then."""
    fact = AppFact(key_fingerprint=noted)
    RecordStamp("keys").complete(fact.meta, context.clock.now_ms())
    record = NewRecord(*APPS_PARTITION, fingerprint_key(noted), fact.SerializeToString())
    (offset,) = await retry_until_available(LOG_UNAVAILABLE, lambda: context.log.append([record]))
    await context.apps.applied.wait([(APPS_PARTITION, offset)])
    chain = context.apps.key_chain(noted.purpose)
    assert chain is not None
    return chain


async def _noted_by_registry(context: RoleContext, noted: KeyFingerprint, role: str) -> bytes:
    """Have the registry append the fingerprint if it is the first; return the fingerprint of the key in force."""
    registry = RegistryServiceStub(context.peers.owner("registry", 0))
    request = NoteKeyFingerprintRequest(fingerprint=noted)
    message = "the registry cannot note the fingerprint of a key yet"
    answer = await retry_until_available(
        message, lambda: registry.NoteKeyFingerprint(request, timeout=_NOTE_S), role=role
    )
    return answer.fingerprint


@asynccontextmanager
async def context_on(
    log: Log, clock: Clock, peers: Peers, keys: Keys, health: Health | None = None, signing: Signing = lambda log: log
) -> AsyncIterator[RoleContext]:
    """Yield the context on this log, as `role_context` does; close the log and the peers' channels on exit.

    `signing` returns the log that signs and checks records.
    """
    health = health or Health(clock)
    archived = log if isinstance(log, ArchivedLog) else None
    log = signing(health.monitored(log))
    apps = AppDirectory(log)
    erasures = PartitionReader("erasures", log, ERASURES_PARTITION, lambda record: None)  # the log forgets the keys
    export_applied_erasures(EVERY_ROLE, "keys", erasures.applied)
    following = background.start_endless(apps.name, apps.run(caught_up := asyncio.Event()))
    forgetting = background.start_endless(erasures.name, erasures.run(forgot := asyncio.Event()))
    owners = background.start_endless("owners", peers.directory.run(log)) if peers.directory else None
    try:
        for started, ready in ((following, caught_up), (forgetting, forgot)):
            waiting = asyncio.create_task(ready.wait())
            await asyncio.wait([waiting, started], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if started.done():
                started.result()
        health.watch([apps.followed])
        yield RoleContext(log=log, clock=clock, peers=peers, keys=keys, apps=apps, archived=archived)
    finally:
        if owners:
            owners.cancel()
        following.cancel()
        forgetting.cancel()
        await asyncio.wait([following, forgetting])
        if not following.cancelled():
            logger.error("the app directory stopped with an error", exc_info=following.exception())
        await peers.close()
        await log.close()
