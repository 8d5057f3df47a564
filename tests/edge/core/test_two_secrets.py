"""Signs while apps change their secrets: the old and the new one, in every mixture of several apps."""

import hashlib
import hmac
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from structlog.testing import capture_logs

from edge.core.signature import AppRef, SignatureVerifier, sign_text
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, PLATFORM_IOS, App, Platform
from protos.registry.v1.registry_pb2 import RotateSecretRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.master_key import MasterKey
from services.errors import SignError
from services.process.clock import ManualClock
from services.process.metrics import OLD_SECRET_REQUESTS
from testkit.edge.role import EdgeInstallation
from testkit.edge.v2_bodies import broadcast
from testkit.signing import signed

NOW_MS = 1_790_000_000_000
KEYS = MasterKey(bytes(32))


class Apps:
    """An app directory of fixed apps."""

    def __init__(self, *apps: App) -> None:
        self._apps = {app.appkey: app for app in apps}

    def get(self, appkey: str) -> App | None:
        return self._apps.get(appkey)

    async def refresh(self) -> bool:
        return True


def app(number: int, *, has_old: bool, platform: "Platform.ValueType" = PLATFORM_IOS) -> App:
    """Return an app whose secrets are `current N` and `old N`."""
    made = App(appkey=str(number), platform=platform, sealed_secret=KEYS.seal(f"current {number}", str(number)))
    if has_old:
        made.old_sealed_secret = KEYS.seal(f"old {number}", str(number))
        made.old_secret_until_ms = NOW_MS + 1000
    return made


def verifier(*apps: App, now_ms: int = NOW_MS) -> SignatureVerifier:
    return SignatureVerifier(Apps(*apps), KEYS, ManualClock(now_ms))  # type: ignore[arg-type]


def refs(*apps: App) -> tuple[AppRef, ...]:
    return tuple(AppRef(each.appkey, each.platform) for each in apps)


async def accepts(verifying: SignatureVerifier, apps: Sequence[App], secrets: Sequence[str]) -> Sequence[str] | None:
    try:
        used = await verifying.verify(hashlib.md5(b"text"), sign_text("text", secrets), [refs(*apps)])
        return used.signed_by_old
    except SignError:
        return None


async def test_both_secrets_sign_until_the_old_one_ends() -> None:
    one = app(1, has_old=True)
    assert await accepts(verifier(one), [one], ["current 1"]) == []
    assert await accepts(verifier(one), [one], ["old 1"]) == ["1"]
    assert await accepts(verifier(one, now_ms=NOW_MS + 999), [one], ["old 1"]) == ["1"]
    assert await accepts(verifier(one, now_ms=NOW_MS + 1000), [one], ["old 1"]) is None
    assert await accepts(verifier(one, now_ms=NOW_MS + 1000), [one], ["current 1"]) == []
    assert await accepts(verifier(app(1, has_old=False)), [one], ["old 1"]) is None


@pytest.mark.parametrize(("changing", "stable"), [(1, 1), (2, 0), (4, 0), (4, 6)])
async def test_apps_mix_current_and_old_secrets_as_they_like(changing: int, stable: int) -> None:
    apps = [app(number, has_old=number < changing) for number in range(changing + stable)]
    verifying = verifier(*apps)
    for choice in product(["current", "old"], repeat=changing):
        secrets = [f"{name} {number}" for number, name in enumerate((*choice, *["current"] * stable))]
        expected = [str(number) for number, name in enumerate(choice) if name == "old"]
        assert await accepts(verifying, apps, secrets) == expected, secrets
        assert await accepts(verifying, apps, [*secrets[:-1], "another"]) is None
        if stable:
            assert await accepts(verifying, apps, [*secrets[:-1], f"old {len(apps) - 1}"]) is None


async def test_of_more_apps_all_sign_with_the_old_secret_or_none() -> None:
    apps = [app(number, has_old=number < 5) for number in range(6)]
    verifying = verifier(*apps)
    assert await accepts(verifying, apps, [f"current {number}" for number in range(6)]) == []
    assert await accepts(verifying, apps, [*(f"old {number}" for number in range(5)), "current 5"]) == list("01234")
    assert await accepts(verifying, apps, ["old 0", *(f"current {number}" for number in range(1, 6))]) is None


@pytest.mark.parametrize("count", [1, 2, 4, 100])
async def test_the_number_of_signs_that_are_tried_does_not_depend_on_the_apps(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    tried: list[int] = []
    compare = hmac.compare_digest

    def counting(right: Any, given: Any) -> bool:
        tried.append(1)
        return compare(right, given)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    known = [app(number, has_old=False) for number in range(count)]
    changing = [app(number, has_old=number < 4) for number in range(count)]
    wrong_platform = [app(number, has_old=True, platform=PLATFORM_ANDROID) for number in range(count)]
    counts = []
    for apps in (known, changing, wrong_platform, []):
        tried.clear()
        assert await accepts(verifier(*apps), known, ["wrong"]) is None
        counts.append(len(tried))
    assert counts == [2 * 2 ** min(count, 4)] * 4, "twice, because the directory is refreshed before a refusal"
    tried.clear()
    assert await accepts(verifier(*known), known, [f"current {number}" for number in range(count)]) == []
    assert len(tried) == 2 ** min(count, 4), "a right sign ends no search early"


async def test_the_use_of_an_old_secret_is_counted_and_logged(installation: EdgeInstallation) -> None:
    made = await installation.app()
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    rotated = await registry.RotateSecret(RotateSecretRequest(appkey=made.appkey, keep_old_s=3600))
    old, new = (signed(broadcast(made), secret) for secret in (installation.secrets[made.appkey], rotated.secret_key))
    with capture_logs() as logs:
        assert [(await installation.post(body))["result"] for body in (old, new, old)] == [0, 0, 0]
        installation.clock.move(3600)
        assert [(await installation.post(body))["result"] for body in (old, new)] == [401, 0]
    assert OLD_SECRET_REQUESTS.labels(made.appkey)._value.get() == 2
    told = [entry for entry in logs if "old secret" in entry["event"]]
    assert [(entry["appkey"], entry["address"]) for entry in told] == [(made.appkey, "127.0.0.1")]
