"""What the wiring of vendors shares: simulators, and trusted certificates."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from protos.registry.v1.apps_pb2 import App
from services.delivery.channels import ServedChannel
from services.delivery.channels.batches.service import VendorCheck, VendorService
from services.delivery.settings import DeliverySettings
from services.process.runner import Service

Account = TypeVar("Account")


def known_to(
    register: Callable[[Account], None] | None, account_of: Callable[[App], Account | None]
) -> Callable[[App], Account | None]:
    """Return the credentials of apps, made known to a simulator when they are first asked for; None: to nobody."""
    if register is None:
        return account_of
    known: dict[str, Account] = {}

    def known_account(app: App) -> Account | None:
        account = account_of(app)
        if account is not None and known.get(app.appkey) is not account:
            register(account)
            known[app.appkey] = account
        return account

    return known_account


def served(service: VendorService[Any, Any], simulator: Service | None, settings: DeliverySettings) -> ServedChannel:
    """Return a vendor's service as delivery runs it, with a check of credentials."""
    service.shards = settings.shards
    return ServedChannel(service, simulator, VendorCheck(service, simulated=simulator is not None))


def authority_text(path: str | None) -> str | None:
    """Return the PEM text of a file; None for the system's certificates."""
    return Path(path).read_text() if path else None
