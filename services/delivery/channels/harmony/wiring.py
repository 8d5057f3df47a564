"""HarmonyOS as delivery runs it: Huawei's service, or the simulator in this process in its place."""

from services.delivery.channels import ServedChannel
from services.delivery.channels.batches.wiring import authority_text, served
from services.delivery.channels.harmony.service import HarmonyEndpoint, harmony_service
from services.delivery.settings import DeliverySettings
from services.domain.channel_credentials.harmony import open_harmony
from services.domain.channel_credentials.stored import CredentialsCache
from services.domain.role import RoleContext
from services.hms_simulator.harmony import HarmonySimulator, simulated_accounts


def harmony(settings: DeliverySettings, context: RoleContext) -> ServedChannel:
    """Return the channel of these settings."""
    clock = context.clock
    simulator = None if settings.harmony_url else HarmonySimulator(clock)
    account_of = CredentialsCache(open_harmony, context.keys)
    service = harmony_service(
        lambda: _endpoint(settings, simulator),
        simulated_accounts(simulator, account_of) if simulator else account_of,
        clock,
    )
    return served(service, simulator, settings)


def _endpoint(settings: DeliverySettings, simulator: HarmonySimulator | None) -> HarmonyEndpoint:
    if simulator is not None:
        return HarmonyEndpoint(simulator.url, simulator.authority)
    assert settings.harmony_url is not None
    return HarmonyEndpoint(settings.harmony_url, authority_text(settings.harmony_authority))
