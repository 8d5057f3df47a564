"""The app directory: a projection of the `apps` topic in memory."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import assert_never

from protos.registry.v1.apps_pb2 import (
    App,
    AppFact,
    BroadcastCount,
    InstallationPause,
    KeyFingerprint,
    Pause,
    QuotaReached,
    Revocations,
    SavedAudience,
    Sealing,
    TeamWebhooks,
    Webhook,
)
from services.domain.master_key import KeyChain, extended
from services.domain.revocations import NONE_REVOKED, RevokedKeys, revocations_key
from services.domain.topics import APPS, decode
from services.log.port import Log, Partition, Record
from services.replica.dead_letters import UNUSABLE, leave_out
from services.replica.epochs import Epochs
from services.replica.health import Followed
from services.replica.partition_reader import PartitionReader
from services.replica.positions import AppliedPositions

INSTALLATION_PAUSE_KEY = b"installation/pause"
"""The key of the record that pauses all apps at once."""

SEALING_KEY = b"installation/sealing"
COPIED_KEY = b"installation/keys-copied"
"""The keys of the two records of Sealing."""

APPS_PARTITION = Partition(APPS.name, 0)

OUTDATED = "the app directory may not be up to date, because the log does not answer; try again"
"""Error text for an app that a directory does not know, where a refresh failed: the log may hold the app."""


def fingerprint_key(noted: KeyFingerprint) -> bytes:
    """Return the key of the record that notes the fingerprint of a key of the installation."""
    return f"installation/key/{noted.purpose}/{noted.fingerprint.hex()}".encode()


def team_webhooks_key(team_id: str) -> bytes:
    """Return the key of the record of a team's webhooks."""
    return f"team/{team_id}/webhooks".encode()


def quota_key(appkey: str, quota: str) -> bytes:
    """Return the key of the record that an app has reached a quota."""
    return f"{appkey}/quota/{quota}".encode()


def audience_key(appkey: str, name: str) -> bytes:
    """Return the key of the record of a saved audience."""
    return f"{appkey}/audience/{name}".encode()


class AppDirectory:
    """Service that provides apps by appkey, the revoked device keys, and which apps are paused.

    It runs before all services that use it. Facts of a former owner of the apps are refused: their epoch is too low.
    Revocations have several writers and no epochs; keys stay revoked, so the order of their records does not matter.
    """

    name = "apps"

    def __init__(self, log: Log) -> None:
        self._reader = PartitionReader(self.name, log, APPS_PARTITION, self._apply)
        self._apps: dict[str, App] = {}
        self._with_webhooks: dict[str, App] = {}
        self._team_webhooks: dict[bytes, TeamWebhooks] = {}
        self._epochs = Epochs()
        self._latest: dict[bytes, tuple[int, int]] = {}
        self.refused: set[bytes] = set()
        self.refused_changed = asyncio.Event()
        self._revoked: dict[tuple[str, int], RevokedKeys] = {}
        self._revocations: dict[bytes, Revocations] = {}
        self._published: dict[tuple[str, int], RevokedKeys] = {}
        self._installation_pause: Pause | None = None
        self._paused: set[str] = set()
        self._key_chains: dict[str, KeyChain] = {}
        self._noted_keys: dict[bytes, KeyFingerprint] = {}
        self._key_listeners: list[Callable[[str, KeyChain], None]] = []
        self._sealing = Sealing()
        self._sealing_listeners: list[Callable[[], None]] = []
        self._broadcasts: dict[str, BroadcastCount] = {}
        self._quotas_reached: dict[bytes, QuotaReached] = {}
        self._audiences: dict[str, dict[str, SavedAudience]] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._pauses_changed = asyncio.Event()

    @property
    def applied(self) -> AppliedPositions:
        """The positions of the topic that the directory has applied."""
        return self._reader.applied

    @property
    def followed(self) -> Followed:
        """The positions and the partition by which the process's health check judges the directory."""
        return self._reader.followed

    @property
    def epoch(self) -> int:
        """The highest epoch of a process that changes apps."""
        return self._epochs.of(APPS_PARTITION)

    def get(self, appkey: str) -> App | None:
        return self._apps.get(appkey)

    def all(self) -> list[App]:
        """Return every app, by creation time."""
        return sorted(self._apps.values(), key=lambda app: (app.created_ms, app.appkey))

    @property
    def with_webhooks(self) -> Collection[App]:
        """The apps that have webhooks."""
        return self._with_webhooks.values()

    @property
    def team_webhooks(self) -> Collection[TeamWebhooks]:
        """The webhooks of each team that has or had some."""
        return self._team_webhooks.values()

    def webhooks_of_team(self, team_id: str) -> Sequence[Webhook]:
        """Return the webhooks of a team, in the order in which they were made."""
        known = self._team_webhooks.get(team_webhooks_key(team_id))
        return known.webhooks if known else ()

    def key_chain(self, purpose: str) -> KeyChain | None:
        """Return the fingerprints of the installation's keys for the purpose; None: no process has had one yet."""
        return self._key_chains.get(purpose)

    def on_key_change(self, listener: Callable[[str, KeyChain], None]) -> None:
        """Call `listener` with the purpose and its keys whenever another key is in force, or one is dropped."""
        self._key_listeners.append(listener)

    @property
    def sealing(self) -> Sealing:
        """Since when personal values are sealed, and when their keys were copied last; 0: not yet."""
        return self._sealing

    def on_sealing(self, listener: Callable[[], None]) -> None:
        """Call `listener`, in the event loop, once personal values are sealed from now on."""
        self._sealing_listeners.append(listener)

    def broadcasts(self, appkey: str) -> BroadcastCount:
        """Return the latest count of broadcasts of an app with a quota; an empty one if none was counted."""
        return self._broadcasts.get(appkey) or BroadcastCount(appkey=appkey)

    def quota_reached_on(self, appkey: str, quota: str) -> str:
        """Return the latest day on which the app reached the quota. "" if it never did, and for the quota of
        broadcasts.
        """
        known = self._quotas_reached.get(quota_key(appkey, quota))
        return known.day if known else ""

    def audience(self, appkey: str, name: str) -> SavedAudience | None:
        """Return the saved audience of an app with this name; None: it has none."""
        known = self._audiences.get(appkey, {}).get(name)
        return known if known and known.send_to_json else None

    def audiences(self, appkey: str) -> list[SavedAudience]:
        """Return the saved audiences of an app, by name."""
        known = self._audiences.get(appkey, {})
        return [audience for _, audience in sorted(known.items()) if audience.send_to_json]

    def revoked(self, appkey: str, partition: int) -> RevokedKeys:
        """Return the revoked keys of the app's devices in the partition."""
        return self._revoked.get((appkey, partition), NONE_REVOKED)

    def published(self, appkey: str, partition: int) -> RevokedKeys:
        """Return the revoked keys that the latest record of the app and partition names."""
        return self._published.get((appkey, partition), NONE_REVOKED)

    def is_revoked(self, appkey: str, partition: int, number: int) -> bool:
        """Return whether the key of the device with this number is revoked."""
        return number in self.revoked(appkey, partition)

    def is_lost(self, appkey: str, partition: int, number: int) -> bool:
        """Return whether the number was reserved because the log had gone back: see RevokedKeys."""
        return number in self.revoked(appkey, partition).lost

    def is_refused(self, appkey: str, partition: int, number: int) -> bool:
        """Return whether the key with this number is refused whatever its token: it was revoked, and not only lost."""
        return self.is_revoked(appkey, partition, number) and not self.is_lost(appkey, partition, number)

    def on_revoked(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the appkey, in the event loop, whenever more keys of an app are revoked."""
        self._listeners.append(listener)

    @property
    def installation_pause(self) -> Pause | None:
        """The pause of all apps at once, if there is one."""
        return self._installation_pause

    def is_paused(self, appkey: str) -> bool:
        """Return whether nothing of the app may be sent now, because of its own pause or that of all apps."""
        return self._installation_pause is not None or appkey in self._paused

    @property
    def has_pauses(self) -> bool:
        """Whether any app is paused. Other threads than the event loop's may ask too."""
        return self._installation_pause is not None or bool(self._paused)

    @property
    def pauses_changed(self) -> asyncio.Event:
        """An event that the next pause or resume sets. Get it before asking `is_paused`, then wait for it."""
        return self._pauses_changed

    async def until_resumed(self, appkey: str) -> None:
        """Return once the app is not paused."""
        while self.is_paused(appkey):
            await self._pauses_changed.wait()

    async def refresh(self) -> bool:
        """Return True once all records now in the log are applied, False if they are not after two seconds."""
        return await self._reader.refresh()

    async def run(self, ready: asyncio.Event) -> None:
        await self._reader.run(ready)

    def _apply(self, record: Record) -> None:
        try:
            if not record.value:  # its signature is missing or wrong: see SignedLog
                self._note_refused(record.key)
                return
            fact = decode(record)
            if self._admits(record, fact):
                self._apply_fact(fact)
        except UNUSABLE as error:
            leave_out(self.name, record, error)

    def _admits(self, record: Record, fact: AppFact) -> bool:
        """Return whether to apply the fact. `refused` holds the keys whose latest record is refused; see AppEpochs."""
        if not has_epoch(fact) or self._epochs.admits(record, fact):
            self.refused.discard(record.key)
            return not has_epoch(fact) or self._is_new(record.key, fact)
        if fact.WhichOneof("fact") not in ("changed", None):
            self._note_refused(record.key)
        return False

    def _note_refused(self, key: bytes) -> None:
        if self.valid(key) is not None:
            self.refused.add(key)
            self.refused_changed.set()
            self.refused_changed = asyncio.Event()

    def valid(self, key: bytes) -> AppFact | None:
        """Return the fact of a key's present state, without a meta; None where there is none."""
        text = key.decode(errors="replace")
        if key == INSTALLATION_PAUSE_KEY:
            return AppFact(installation_pause=InstallationPause(pause=self._installation_pause))
        if (app := self._apps.get(text)) is not None:
            return AppFact(app=app)
        if (count := self._broadcasts.get(text.removesuffix("/broadcasts"))) is not None:
            return AppFact(broadcasts=count)
        if (revocations := self._revocations.get(key)) is not None:
            return AppFact(revocations=revocations)
        if (noted := self._noted_keys.get(key)) is not None:
            return AppFact(key_fingerprint=noted)
        if key == SEALING_KEY and self._sealing.since_ms:
            return AppFact(sealing=Sealing(since_ms=self._sealing.since_ms, fingerprint=self._sealing.fingerprint))
        if key == COPIED_KEY and self._sealing.copied_ms:
            return AppFact(sealing=Sealing(copied_ms=self._sealing.copied_ms))
        if (of_team := self._team_webhooks.get(key)) is not None:
            return AppFact(team_webhooks=of_team)
        if (reached := self._quotas_reached.get(key)) is not None:
            return AppFact(quota_reached=reached)
        appkey, is_audience, name = text.partition("/audience/")
        if is_audience and (audience := self._audiences.get(appkey, {}).get(name)) is not None:
            return AppFact(saved_audience=audience)
        return None

    def _is_new(self, key: bytes, fact: AppFact) -> bool:
        """Return whether the fact is new, and not one of the key's earlier facts that was appended once more.

        Facts that are not signed have no sequence number.
        """
        order, latest = (fact.meta.epoch, fact.meta.sequence), self._latest.get(key, (0, 0))
        if order < latest:
            self._note_refused(key)
        if order < latest or (order == latest and fact.meta.sequence):
            return False
        if fact.WhichOneof("fact") not in ("changed", None):
            self._latest[key] = order
        return True

    def _apply_fact(self, fact: AppFact) -> None:
        match fact.WhichOneof("fact"):
            case "app":
                appkey, is_paused = fact.app.appkey, fact.app.HasField("pause")
                self._apps[appkey] = fact.app
                if fact.app.webhooks:
                    self._with_webhooks[appkey] = fact.app
                else:
                    self._with_webhooks.pop(appkey, None)
                if is_paused != (appkey in self._paused):
                    (self._paused.add if is_paused else self._paused.discard)(appkey)
                    self._change_pauses()
            case "installation_pause":
                pause = fact.installation_pause.pause
                self._installation_pause = pause if fact.installation_pause.HasField("pause") else None
                self._change_pauses()
            case "revocations":
                record = fact.revocations
                key = record.appkey, record.partition
                self._published[key] = RevokedKeys.of(record)
                self._revocations[revocations_key(record)] = record
                self._revoked[key] = self.revoked(*key) | self._published[key]
                for listener in self._listeners:
                    listener(record.appkey)
            case "broadcasts":
                self._broadcasts[fact.broadcasts.appkey] = fact.broadcasts
            case "key_fingerprint":
                self._apply_key(fact.key_fingerprint)
            case "sealing":
                self._apply_sealing(fact.sealing)
            case "team_webhooks":
                self._team_webhooks[team_webhooks_key(fact.team_webhooks.team_id)] = fact.team_webhooks
            case "quota_reached":
                reached = fact.quota_reached
                self._quotas_reached[quota_key(reached.appkey, reached.quota)] = reached
            case "saved_audience":
                audience = fact.saved_audience
                self._audiences.setdefault(audience.appkey, {})[audience.name] = audience
            case "changed" | None:
                pass
            case unexpected:
                assert_never(unexpected)

    def _apply_key(self, noted: KeyFingerprint) -> None:
        key, chain = fingerprint_key(noted), self._key_chains.get(noted.purpose)
        known = self._noted_keys.get(key)
        if known is not None and known.predecessor_dropped and not noted.predecessor_dropped:
            self._note_refused(key)  # a repeated earlier record, after which a dropped key would be accepted again
            return
        self._noted_keys[key] = noted
        self._key_chains[noted.purpose] = changed = extended(chain, noted)
        if changed != chain:
            for listener in self._key_listeners:
                listener(noted.purpose, changed)

    def _apply_sealing(self, found: Sealing) -> None:
        known = self._sealing
        self._sealing = Sealing(
            since_ms=known.since_ms or found.since_ms,
            fingerprint=known.fingerprint or found.fingerprint,
            copied_ms=max(known.copied_ms, found.copied_ms),
        )
        if self._sealing.since_ms and not known.since_ms:
            for listener in self._sealing_listeners:
                listener()

    def _change_pauses(self) -> None:
        self._pauses_changed.set()
        self._pauses_changed = asyncio.Event()


def has_epoch(fact: AppFact) -> bool:
    """Return whether the fact is written by the owner of the apps alone, under an epoch."""
    return fact.WhichOneof("fact") not in ("revocations", "key_fingerprint", "sealing")
