"""The queue of changes of apps, and key rotation: secrets are sealed anew, then the former key is dropped.

For each purpose a fact in `apps` puts a key in force and another drops the former one; all processes follow them. After
a kill, repeating the call completes it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from protos.registry.v1.apps_pb2 import App, AppChanged, AppFact, KeyFingerprint, TeamWebhooks
from protos.registry.v1.registry_pb2 import (
    DropFormerKeysRequest,
    DropFormerKeysResponse,
    RotateKeysRequest,
    RotateKeysResponse,
)
from protos.runtime.v1.log_pb2 import Origin
from services.domain.apns_credentials import sealed_anew
from services.domain.apps import OUTDATED, fingerprint_key, team_webhooks_key
from services.domain.channel_credentials.stored import seal_channels_anew
from services.domain.device_protocol.possession import LIFETIME_S
from services.domain.master_key import KeyChain, KeyPurpose
from services.domain.role import RoleContext
from services.domain.webhooks import seal_secrets_anew, team_scope
from services.errors import ConflictError, InputError, UnavailableError
from services.process.logs import logger
from services.registry.pauses import WriteChange

# Changes of apps, made one at a time: each is based on what the one before has written.

Answer = TypeVar("Answer")


class ChangeQueue:
    """Makes changes of apps one after the other.

    A change that has begun goes on when its call is cancelled: what it appends gets into the log nevertheless, and the
    next change, which writes the whole record of an app, must be based on that.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._making: asyncio.Task[Any] | None = None

    async def make(self, change: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """Make the change and return its answer. It is not made if the call is cancelled before its turn."""
        await self._turn.acquire()
        self._making = making = asyncio.create_task(change())
        making.add_done_callback(lambda _: self._turn.release())
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_log_failure)
            raise


def _log_failure(making: "asyncio.Task[Any]") -> None:
    error = None if making.cancelled() else making.exception()
    if error is not None:
        logger.warning("a change of apps failed after its call had ended", exc_info=error)


BATCH = 200
"""Apps that one change seals anew; other changes of apps are made between two of these."""

_FINGERPRINT = 16

WriteFacts = Callable[[Mapping[bytes, AppFact], Origin], Awaitable[None]]
"""Appends facts by their keys; returns once this process has applied them."""


class KeyRotation:
    """Puts other keys in force, seals the apps' secrets with them, and drops the former keys."""

    def __init__(
        self, context: RoleContext, changes: ChangeQueue, write_change: WriteChange, write_facts: WriteFacts
    ) -> None:
        self._apps = context.apps
        self._keys = context.keys
        self._persons = context.persons
        self._now_ms = context.clock.now_ms
        self._changes = changes
        self._write_change = write_change
        self._write_facts = write_facts

    async def rotate(self, request: RotateKeysRequest) -> RotateKeysResponse:
        """Put the keys in force, and seal the apps' secrets with them.

        InputError: the request has no fingerprints, or those of former keys. ConflictError: this process lacks a key,
        or another rotation has not ended.
        """
        given = {
            KeyPurpose.DEVICES: request.device_keys_fingerprint,
            KeyPurpose.SECRETS: request.secrets_fingerprint,
        }
        if any(len(fingerprint) != _FINGERPRINT for fingerprint in given.values()):
            raise InputError(f"each fingerprint must have {_FINGERPRINT} bytes")
        persons = request.persons_fingerprint
        topic = self._persons.topic if self._persons and persons else None
        if topic is not None:
            topic.check_has(persons)
        already = await self._changes.make(lambda: self._switch(given, request.origin))
        if topic is not None and topic.is_complete:
            await self._changes.make(partial(topic.wrap_anew, persons))
        sealed = await self._seal_anew()
        chain = self._apps.key_chain(KeyPurpose.SECRETS.name)
        assert chain is not None
        return RotateKeysResponse(
            switched_ms=chain.switched_ms,
            already_switched=already,
            already_dropped=not chain.former,
            apps_sealed=sealed,
        )

    async def drop_former(self, request: DropFormerKeysRequest) -> DropFormerKeysResponse:
        """End the acceptance of the former keys.

        ConflictError: an app's secret is sealed with one, or processes may not have noticed the rotation yet.
        """
        await self._seal_anew()
        return await self._changes.make(lambda: self._drop(request))

    async def _switch(self, given: Mapping[KeyPurpose, bytes], origin: Origin) -> bool:
        """Append the facts that put the keys in force; return whether they were in force already."""
        if not await self._apps.refresh():
            raise UnavailableError(OUTDATED)
        chains = {purpose: self._apps.key_chain(purpose.name) for purpose in given}
        if all(chain and chain.in_force == given[purpose] for purpose, chain in chains.items()):
            return True
        now_ms, facts = self._now_ms(), {}
        for purpose, fingerprint in given.items():
            chain = chains[purpose]
            if chain and chain.in_force == fingerprint:
                continue
            self._check_next(purpose, fingerprint, chain)
            noted = KeyFingerprint(
                purpose=purpose.name,
                fingerprint=fingerprint,
                predecessor=chain.in_force if chain else b"",
                switched_ms=now_ms,
            )
            facts[fingerprint_key(noted)] = AppFact(key_fingerprint=noted)
        await self._write_change(AppChanged(action="moved to new keys"), facts, origin)
        return False

    def _check_next(self, purpose: KeyPurpose, fingerprint: bytes, chain: KeyChain | None) -> None:
        if chain and fingerprint in chain.used:
            raise InputError(
                f"this key of {purpose.value} was in force before, and cannot be again: make another one with"
                " `carillon keys prepare`"
            )
        if chain and chain.former:
            raise ConflictError("the former rotation has not ended: end it first with `carillon keys rotate --finish`")
        if purpose in self._keys.purposes and not self._keys.has(purpose, fingerprint):
            raise ConflictError(
                f"the registry has not the new key of {purpose.value}: give every process the files that `carillon keys"
                " export` writes after `carillon keys prepare`, then repeat the command"
            )

    async def _seal_anew(self) -> int:
        """Seal the secrets of apps and teams with the keys in force; return the number of changed apps."""
        count = 0
        await self._changes.make(self._seal_teams)
        for apps in self._batches():
            count += await self._changes.make(partial(self._seal_batch, [app.appkey for app in apps]))
        return count

    async def _seal_teams(self) -> None:
        """Seal the secrets of the webhooks of teams, which are few."""
        if changed := self._teams_sealed_anew():
            facts = {team_webhooks_key(each.team_id): AppFact(team_webhooks=each) for each in changed}
            await self._write_facts(facts, Origin())

    def _teams_sealed_anew(self) -> list[TeamWebhooks]:
        """Return copies, sealed anew, of the webhooks of teams whose secrets are not sealed with the key in force."""
        changed = []
        for known in self._apps.team_webhooks:
            of_team = TeamWebhooks()
            of_team.CopyFrom(known)
            for webhook in of_team.webhooks:
                seal_secrets_anew(webhook, team_scope(of_team.team_id), self._keys)
            if of_team != known:
                changed.append(of_team)
        return changed

    async def _seal_batch(self, appkeys: Sequence[str]) -> int:
        present = [app for appkey in appkeys if (app := self._apps.get(appkey))]
        changed = [app for known in present if (app := self._sealed_anew(known))]
        if changed:
            await self._write_facts({app.appkey.encode(): AppFact(app=app) for app in changed}, Origin())
        return len(changed)

    def _batches(self) -> Iterator[Sequence[App]]:
        apps = self._apps.all()
        return (apps[begin : begin + BATCH] for begin in range(0, len(apps), BATCH))

    def _sealed_anew(self, known: App) -> App | None:
        """Return a copy of the app whose secrets are sealed with the key in force; None if they all are."""
        app = App()
        app.CopyFrom(known)
        for name in ("sealed_secret", "old_sealed_secret"):
            if sealed := getattr(app, name):
                setattr(app, name, self._keys.sealed_anew(sealed, app.appkey) or sealed)
        if app.HasField("apns"):
            app.apns.sealed_pem = sealed_anew(app, self._keys) or app.apns.sealed_pem
        seal_channels_anew(app, self._keys)
        for webhook in app.webhooks:
            seal_secrets_anew(webhook, app.appkey, self._keys)
        return app if app != known else None

    async def _drop(self, request: DropFormerKeysRequest) -> DropFormerKeysResponse:
        chains = {purpose: self._apps.key_chain(purpose.name) for purpose in KeyPurpose}
        rotating = {purpose: chain for purpose, chain in chains.items() if chain and chain.former}
        secrets = chains[KeyPurpose.SECRETS]
        answer = DropFormerKeysResponse(
            already_dropped=not rotating, secrets_fingerprint=secrets.in_force if secrets else b""
        )
        if not rotating:
            return answer
        topic = self._persons.topic if self._persons else None
        if topic is not None and not topic.is_wrapped_anew:
            raise ConflictError(
                "keys of persons are wrapped with the former key still: run `carillon keys rotate` again"
            )
        if self._teams_sealed_anew():
            raise ConflictError("a team's secret is sealed with the former key still: repeat the command")
        for apps in self._batches():
            await asyncio.sleep(0)
            if any(map(self._sealed_anew, apps)):
                raise ConflictError("an app's secret is sealed with the former key still: repeat the command")
        ends_ms = max(chain.switched_ms for chain in rotating.values()) + LIFETIME_S * 1000
        if not request.at_once and self._now_ms() < ends_ms:
            raise ConflictError(
                f"the keys were rotated less than {LIFETIME_S // 60} minutes ago, so processes may issue by the former"
                f" ones still: repeat the command in {-(-(ends_ms - self._now_ms()) // 1000)} s"
            )
        facts = {}
        for purpose, chain in rotating.items():
            noted = KeyFingerprint(
                purpose=purpose.name,
                fingerprint=chain.in_force,
                predecessor=chain.former,
                switched_ms=chain.switched_ms,
                predecessor_dropped=True,
            )
            facts[fingerprint_key(noted)] = AppFact(key_fingerprint=noted)
        await self._write_change(AppChanged(action="closed to former keys"), facts, request.origin)
        return answer
