"""Wiring of the accounts role, which owns users, teams, API tokens and the pushes that wait for approval."""

from pathlib import Path

import argon2

from protos.accounts.v1.drafts_pb2_grpc import add_DraftsServiceServicer_to_server
from protos.accounts.v1.service_pb2_grpc import (
    add_AccountsServiceServicer_to_server,
    add_LogInServiceServicer_to_server,
)
from protos.runtime.v1.log_pb2_grpc import add_PositionsServiceServicer_to_server
from services.accounts.drafts.expiries import DraftExpiries
from services.accounts.drafts.sender import DraftSender
from services.accounts.drafts.server import AudienceCounts, DraftsServicer
from services.accounts.erasures import ErasureSender, PersonErasures
from services.accounts.fact_writer import FactWriter
from services.accounts.log_ins.passwords import Passwords
from services.accounts.log_ins.server import LogInServicer
from services.accounts.projection import AccountsProjection
from services.accounts.server import AccountsServicer
from services.accounts.settings import ROLE_NAME, AccountsSettings
from services.domain.command_writer import CommandWriter
from services.domain.file_purges import FilePurger, forgotten_by
from services.domain.master_key import KeyPurpose
from services.domain.role import BuiltRole, RoleContext, RoleDefinition, state_replay
from services.log.port import Log
from services.process.clock import SystemClock
from services.replica.positions import PositionsServicer
from services.replica.replay import State


def open_state(settings: AccountsSettings, directory: Path, log: Log) -> State:
    """Open the state in a directory so that a replay can fold it forward."""
    return AccountsProjection(settings, directory, log, SystemClock())


def build(settings: AccountsSettings, context: RoleContext, hasher: argon2.PasswordHasher | None = None) -> BuiltRole:
    """Wire the role: read its own facts, then answer calls, send what was approved, and note drafts that expire."""
    projection = AccountsProjection(settings, settings.state_dir(ROLE_NAME), context.log, context.clock)
    follower, committed = projection.follower, projection.committed
    purger = FilePurger(ROLE_NAME, [projection.store], forgotten_by(follower), context.clock, settings)
    writer = FactWriter(follower, projection.accounts, context.clock)
    commands = CommandWriter(ROLE_NAME, context.log, context.peers, context.clock, settings.partitions)
    sender = DraftSender(follower, committed, writer, commands)
    expiries = DraftExpiries(follower, committed, writer, context.clock)
    erasures = PersonErasures(follower, committed, writer, context.peers, context.log, context.clock)
    erasure_sender = ErasureSender(follower, committed, writer, context.peers)
    accounts = AccountsServicer(follower, committed, writer, context.keys, context.apps, erasures, context.clock)
    passwords = Passwords(hasher or argon2.PasswordHasher())
    log_ins = LogInServicer(follower, committed, writer, passwords, context.keys, context.apps, context.clock)
    counts = AudienceCounts(context.peers, settings.partitions)
    drafts = DraftsServicer(follower, committed, writer, counts, context.clock)
    positions = PositionsServicer(follower.applied, context.apps.applied)
    return BuiltRole(
        ROLE_NAME,
        services=[projection, purger, sender, expiries, erasure_sender],
        servicers=[
            lambda server: add_AccountsServiceServicer_to_server(accounts, server),
            lambda server: add_LogInServiceServicer_to_server(log_ins, server),
            lambda server: add_DraftsServiceServicer_to_server(drafts, server),
            lambda server: add_PositionsServiceServicer_to_server(positions, server),
        ],
        followers=[follower.followed],
    )


ROLE = RoleDefinition(
    ROLE_NAME,
    AccountsSettings,
    build,
    keys=frozenset({KeyPurpose.SECRETS}),
    replay=state_replay(ROLE_NAME, open_state),
)
