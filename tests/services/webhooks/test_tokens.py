"""The tokens that webhooks keeps: those of erased devices are forgotten."""

from protos.registry.v1.erasures_pb2 import ErasedDevice, ErasureFact, PersonErased
from protos.registry.v1.registry_pb2 import GetTokensRequest, GetTokensResponse
from protos.registry.v1.registry_pb2_grpc import RegistryServiceServicer, add_RegistryServiceServicer_to_server
from services.domain.topics import ERASURES, TOPICS
from services.log.port import Record
from services.net.rpc.local import LocalServer
from services.net.rpc.server import Context
from services.replica.peers import Peers
from services.webhooks.tokens import DeviceTokens


class Registry(RegistryServiceServicer):
    """Answers with a token for each number, or with none once all are erased."""

    erased = False

    async def GetTokens(self, request: GetTokensRequest, context: Context) -> GetTokensResponse:
        return GetTokensResponse(tokens=["" if self.erased else f"t{number}" for number in request.numbers])


async def test_tokens_of_erased_devices_are_forgotten() -> None:
    server, registry = LocalServer(), Registry()  # type: ignore[abstract]
    add_RegistryServiceServicer_to_server(registry, server)  # type: ignore[arg-type]
    tokens = DeviceTokens(Peers({"registry": [server.channel()]}, TOPICS))
    numbered = [(3, 1), (3, 2), (3, 4)]
    assert await tokens.of("1", numbered) == {(3, 1): "t1", (3, 2): "t2", (3, 4): "t4"}
    registry.erased = True
    device = ErasedDevice(partition=3, number=2, former_numbers=[1])
    fact = ErasureFact(erased=PersonErased(appkey="1", devices=[device]))
    for value in (b"\xff", ErasureFact().SerializeToString(), fact.SerializeToString()):
        tokens.forget(Record(ERASURES.name, 0, 0, b"id", value))
    assert await tokens.of("1", numbered) == {(3, 4): "t4"}
