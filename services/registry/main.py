"""Wiring of the registry role, which owns apps and devices."""

from pathlib import Path

from protos.registry.v1.registry_pb2_grpc import add_RegistryServiceServicer_to_server
from protos.runtime.v1.log_pb2_grpc import add_PositionsServiceServicer_to_server
from services.domain.file_purges import FilePurger
from services.domain.master_key import KeyPurpose
from services.domain.role import BuiltRole, RoleContext, RoleDefinition, state_replay
from services.log.port import Log
from services.log.topics import owned
from services.process.metrics import ERASURES_APPLIED
from services.registry.address_index import AddressSweeper
from services.registry.app_epochs import AppEpochs, AppLookup
from services.registry.erasures import ErasedRows, ErasureWorker
from services.registry.given_numbers import keep_given
from services.registry.pauses import export_paused_apps
from services.registry.projection import FollowerService, RegistryProjection, decide_device_commands
from services.registry.queries import RegistryQueries
from services.registry.resealing import ResealingWorker
from services.registry.retirement import RetirementWorker
from services.registry.revocation_worker import RevocationWorker
from services.registry.sealing import FirstSealing, FormerKeys, SealingSwitch
from services.registry.server import RegistryServicer
from services.registry.settings import ROLE_NAME, RegistrySettings
from services.registry.tenure import RegistryTenure
from services.replica.positions import PositionsServicer
from services.replica.replay import State


def open_state(settings: RegistrySettings, directory: Path, log: Log) -> State:
    """Open the state in a directory so that a replay can fold it forward."""
    return RegistryProjection(settings, directory, log, lambda appkey: None)


def build(settings: RegistrySettings, context: RoleContext) -> BuiltRole:
    """Wire the role: follow the log with two followers, and remove devices whose keys are revoked."""
    apps = AppLookup(context.apps)
    directory = settings.state_dir(ROLE_NAME)
    membership = context.membership
    projection = RegistryProjection(
        settings,
        directory,
        context.log,
        apps.find,
        lambda: revocations.wake(),
        lambda: retirement.wake(),
        clock=context.clock,
        election=membership,
        apps_epoch=lambda: context.apps.epoch,
    )
    revocations: RevocationWorker = RevocationWorker(
        projection.device_follower,
        projection.device_table,
        context.apps,
        context.clock,
        projection.attribute_changes.unwritten,
    )
    retirement: RetirementWorker = RetirementWorker(
        projection.device_follower, projection.device_table, context.clock, settings.device_days
    )
    resealing = ResealingWorker(projection.device_follower, projection.device_table, context.clock, directory)
    numbers = owned(settings.partitions, settings.shard, settings.shards)
    erasures = ErasureWorker(
        projection.device_follower,
        projection.device_table,
        context.log,
        numbers,
        context.clock,
        holds_keys=settings.shard == 0,
        are_resealed=resealing.has_ended,
    )
    ERASURES_APPLIED.labels(ROLE_NAME, "stubs").set_function(erasures.done_until)
    rows = ErasedRows(context.log, projection, numbers, lambda: erasures.facts)
    stores = [projection.devices, projection.aliases]
    purger = FilePurger(ROLE_NAME, stores, rows.forgotten_until, context.clock, settings)
    if context.apps.sealing.since_ms:
        resealing.begin()
    else:
        context.apps.on_sealing(resealing.begin)
    epochs = AppEpochs(context.log, context.apps, context.clock, projection.epoch) if settings.shard == 0 else None
    tenure = RegistryTenure(context.log, projection.device_follower, projection.alias_follower, epochs)
    if membership:
        projection.is_owner = lambda: tenure.is_held
    topic = context.persons.topic if context.persons and settings.shard == 0 else None
    former_keys = [FormerKeys(topic, projection.device_follower.tenure, context.clock)] if topic else []
    queries = RegistryQueries(projection.devices, projection.aliases, tenure.check_query)
    servicer = RegistryServicer(context, queries, settings, tenure, epochs, erasures.known)
    if settings.shard == 0:
        export_paused_apps(context.apps)
    positions = PositionsServicer(
        *(follower.applied for follower in projection.followers), check=tenure.check if membership else lambda: None
    )

    def close_devices() -> None:
        queries.close()
        projection.devices.close()

    return BuiltRole(
        ROLE_NAME,
        services=[
            *([membership] if membership else []),
            FollowerService(projection.device_follower, before=apps.use_running_loop, after=close_devices),
            revocations,
            retirement,
            resealing,
            erasures,
            *former_keys,
            FollowerService(projection.alias_follower, after=projection.aliases.close),
            purger,
            AddressSweeper(projection.alias_follower, projection.address_rules, context.clock),
            tenure,
            *([first_sealing(settings, context, servicer.sealing, tenure)] if settings.shard == 0 else []),
        ],
        servicers=[
            lambda server: add_RegistryServiceServicer_to_server(servicer, server),
            lambda server: add_PositionsServiceServicer_to_server(positions, server),
        ],
        followers=[follower.followed for follower in projection.followers],
    )


def first_sealing(
    settings: RegistrySettings, context: RoleContext, switch: SealingSwitch, tenure: RegistryTenure
) -> FirstSealing:
    """Wire the service that has a new installation seal: with a key beside the log, or one that all processes get."""
    has_ring = context.persons is not None and context.persons.ring is not None
    is_handed_out = context.persons is not None and settings.persons_key_file is not None
    makes_keys = settings.seal_new and (is_handed_out if settings.kafka_bootstrap else has_ring)
    return FirstSealing(switch, tenure, context, settings.partitions, makes_keys=makes_keys)


ROLE = RoleDefinition(
    ROLE_NAME,
    RegistrySettings,
    build,
    keys=frozenset({KeyPurpose.SECRETS}),
    replay=state_replay(ROLE_NAME, open_state, reads_device_records=True, keep=keep_given),
    decide_device_commands=decide_device_commands,
)
