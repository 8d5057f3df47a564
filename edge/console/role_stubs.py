"""Stubs of the calls of the console to other roles: the calls that the commands and the interfaces make too."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from protos.accounts.v1.drafts_pb2_grpc import DraftsServiceStub
from protos.accounts.v1.service_pb2_grpc import AccountsServiceStub, LogInServiceStub
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceStub
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.runtime.rpc.peers import Peers

if TYPE_CHECKING:
    from protos.accounts.v1.drafts_pb2_grpc import DraftsServiceAsyncStub
    from protos.accounts.v1.service_pb2_grpc import AccountsServiceAsyncStub, LogInServiceAsyncStub
    from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceAsyncStub
    from protos.registry.v1.registry_pb2_grpc import RegistryServiceAsyncStub

ANALYTICS_S = 20.0
"""How long a page waits for an answer of analytics, seconds."""


@dataclass(frozen=True)
class RoleStubs:
    """Stubs of the roles whose calls go to one instance. Calls about devices find theirs through `peers`."""

    accounts: "AccountsServiceAsyncStub"
    log_ins: "LogInServiceAsyncStub"
    drafts: "DraftsServiceAsyncStub"
    registry: "RegistryServiceAsyncStub"
    analytics: "AnalyticsServiceAsyncStub"
    peers: Peers
    partitions: int

    @classmethod
    def of(cls, peers: Peers, partitions: int) -> "RoleStubs":
        return cls(
            AccountsServiceStub(peers.all("accounts")[0]),
            LogInServiceStub(peers.all("accounts")[0]),
            DraftsServiceStub(peers.all("accounts")[0]),
            RegistryServiceStub(peers.all("registry")[0]),
            AnalyticsServiceStub(peers.all("analytics")[0]),
            peers,
            partitions,
        )
