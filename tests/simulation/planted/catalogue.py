"""The planted bugs. Each is one mistake that a careful engineer could make, in the place where it would be made."""

from collections.abc import Sequence

from tests.simulation.planted.accounts_bugs import ACCOUNTS_BUGS
from tests.simulation.planted.analytics_bugs import ANALYTICS_BUGS
from tests.simulation.planted.bug import PlantedBug, planted_bug
from tests.simulation.planted.hand_over_bugs import HAND_OVER_BUGS
from tests.simulation.planted.owner_bugs import OWNER_BUGS
from tests.simulation.planted.scheduling_bugs import SCHEDULING_BUGS

_DELIVERY = "services.delivery"

BUGS: Sequence[PlantedBug] = (
    # --- the log, snapshots and projections
    planted_bug(
        "commit-before-append",
        "a role commits what it decided before the log has it",
        "backends",
        (
            "services.replica.follower:Follower._append_and_commit",
            "        appended_at = await append_until_accepted(self._log, new_records, self.role)",
            "        await self.query(self._transactions.commit, offsets, marks, ())\n"
            "        appended_at = await append_until_accepted(self._log, new_records, self.role)",
        ),
        (
            "services.replica.follower:Follower._append_and_commit",
            "    await self.query(self._transactions.commit, {**offsets, **own}, {**marks, **marks_of_own}, refused)\n",
            "",
        ),
    ),
    planted_bug(
        "commands-decided-twice",
        "after a crash between append and commit, commands whose facts are in the log are decided again",
        "backends",
        (
            "services.replica.catch_up:CatchUp.apply_batch",
            "decided[source] = max(decided.get(source, 0), cause.offset + 1)",
            "pass",
        ),
    ),
    planted_bug(
        "snapshot-off-by-one",
        "a snapshot's offset is that after the next record",
        "backends",
        (
            "services.targeting.store:PartitionSnapshots.capture",
            "Partition(topic, number): offset for",
            "Partition(topic, number): offset + 1 for",
        ),
    ),
    planted_bug(
        "late-snapshot-offsets",
        "a snapshot gets the offsets of the moment in which it is written, not of that in which it was taken",
        "backends",
        (
            f"{_DELIVERY}.store:Snapshots.save",
            "partial(self._store.file.save, offsets, blobs, marks)",
            "partial(self._store.file.save, dict(self._store.reached), blobs, marks)",
        ),
    ),
    planted_bug(
        "stale-audience",
        "targeting resolves audiences before it has read the log",
        "backends",
        (
            "services.targeting.projection:TargetingProjection.check",
            "if self._ready is None or not self._ready.is_set():",
            "if self._ready is None:",
        ),
        ("services.targeting.projection:TargetingProjection.check", "self.follower.tenure.check()", "pass"),
    ),
    planted_bug(
        "not-found-while-rebuilding",
        'the registry answers "not found" while it reads the log',
        "backends",
        ("services.registry.tenure:RegistryTenure.check", "self._devices.check()", "return"),
    ),
    planted_bug(
        "trimmed-before-archived",
        "old records are removed from the log before the archive has them",
        "installation",
        (
            "services.log.archive.archiver:Archiver._archive_records",
            "    reached(Point.SEGMENT_READ)\n",
            "    await self._log.trim(partition, end)\n    reached(Point.SEGMENT_READ)\n",
        ),
    ),
    planted_bug(
        "app-directory-dies",
        "the task of a directory ends silently when the log does not answer once",
        "installation",
        (
            "services.replica.partition_reader:PartitionReader._apply_next",
            "    records = await retry_until_available(LOG_UNAVAILABLE, reader.read, role=self.name)",
            "    try:\n        records = await reader.read()\n"
            "    except UnavailableError:\n        await asyncio.Event().wait()",
        ),
    ),
    planted_bug(
        "writes-not-awaited",
        "a change is answered before the roles that answer for it have applied it",
        "installation",
        ("services.replica.peers:Peers.wait_applied", "await self._wait(list(positions), set())", "pass"),
    ),
    # --- pushes
    planted_bug(
        "answered-before-append",
        "a push is answered while its append is still on its way",
        "installation",
        (
            "edge.core.push:Pushes.commit",
            "    await self._writer.append(commands, prepared.origin)",
            "    self._appending = asyncio.ensure_future(self._writer.append(commands, prepared.origin))",
        ),
    ),
    planted_bug(
        "two-edges-with-the-same-ids",
        "two edges take the same slot of each second, and so give the same message ids",
        "installation",
        ("edge.core.message_ids:_EarlierClaims.slot", "number = offset % SLOTS", "number = 0; self._by_number = {}"),
    ),
    planted_bug(
        "idempotency-key-ignored",
        "a request under an idempotency key that is claimed is sent again",
        "installation",
        ("services.scheduling.decide:decide", "return None if task or is_claimed", "return None if task"),
    ),
    planted_bug(
        "quota-counted-twice",
        "a broadcast counts twice towards the quota of its app",
        "installation",
        ("services.registry.app_quotas:BroadcastQuota.take", "count=taken + 1", "count=taken + 2"),
    ),
    planted_bug(
        "dedupe-skipped",
        "a repeated push command starts its push again once all devices have it",
        "backends",
        (f"{_DELIVERY}.state.delivery_state:DeliveryState._request", " or msgid in self.dedupe_window:", ":"),
    ),
    planted_bug(
        "owner-ignored",
        "an instance of delivery starts pushes to listed devices in partitions that another one owns",
        "backends",
        (f"{_DELIVERY}.state.pushes:requested_push", "listed_targets(send, owned)", "listed_targets(send)"),
    ),
    planted_bug(
        "waits-behind-a-dead-shard",
        "a push starts nowhere while one instance of targeting does not answer",
        "backends",
        (
            f"{_DELIVERY}.waiting_pushes:AppQueue.note_resolved",
            "and waiting.audiences:",
            "and waiting.is_resolved:",
        ),
    ),
    planted_bug(
        "alias-kept",
        "a device that gives up its alias stays a target of it",
        "installation",
        ("services.registry.state:AliasState._update", "self._aliases.clear_alias(device)", "pass"),
    ),
    planted_bug(
        "address-at-two-devices",
        "an address that another device sets stays at its former device too",
        "backends",
        (
            "services.registry.address_index:AddressTable.mark_surplus",
            "if bool(index) != (marked_by is not None)",
            "if not index and marked_by is not None",
        ),
    ),
    planted_bug(
        "addresses-not-swept",
        "an address that became surplus while nobody decided is never taken from its former device",
        "backends",
        ("services.registry.address_index:AddressRules.sweep", "if surplus.of in self._swept", "if False"),
    ),
    planted_bug(
        "address-kept-by-the-first",
        "an address stays at the device that set it first",
        "backends",
        (
            "services.registry.address_index:AddressTable.mark_surplus",
            "ORDER BY since_ms DESC, token DESC",
            "ORDER BY since_ms, token",
        ),
    ),
    planted_bug(
        "late-answer-ends-newer-address",
        "a vendor's late answer about an address removes it although the device has set it anew",
        "backends",
        ("services.registry.decide:_clear_address", "present.since_ms >= clear.known_before_ms", "False"),
    ),
    planted_bug(
        "order-swapped",
        "a device gets its backlog in the order of message ids, not of the log",
        "installation",
        (
            f"{_DELIVERY}.state.delivery_state:DeliveryState.pending",
            "key=lambda item: (item[1].offset, item[0])",
            "key=lambda item: item[0]",
        ),
        (
            f"{_DELIVERY}.channels.sockets.fanout:Fanout._send_backlogs",
            "key=lambda item: item[0].offset",
            "key=lambda item: item[0].msgid",
        ),
    ),
    planted_bug(
        "cancelled-push-sent",
        "a cancelled push is sent to devices that connect later",
        "installation",
        (
            f"{_DELIVERY}.state.delivery_state:DeliveryState._request_cancel",
            "self.pending_cancels.setdefault(cancel.msgid, offset)",
            "pass",
        ),
    ),
    planted_bug(
        "expired-push-sent",
        "a push is sent for a minute after its time to live",
        "installation",
        (f"{_DELIVERY}.channels.sockets.fanout:Fanout._backlog", " or push.expires_ms <= now_ms:", ":"),
        (
            f"{_DELIVERY}.expiry:ExpirySweeper.sweep",
            "self._state.pop_expired(self._clock.now_ms())",
            "self._state.pop_expired(self._clock.now_ms() - 60_000)",
        ),
    ),
    planted_bug(
        "frame-sent-twice",
        "a gateway writes each single push twice",
        "installation",
        (
            "services.gateway.connection:DeviceConnection.send_push",
            "        self._socket.transport.write(frame)",
            "        for _ in range(2):\n            self._socket.transport.write(frame)",
        ),
    ),
    *SCHEDULING_BUGS,
    # --- outcomes
    planted_bug(
        "confirmed-before-append",
        "a gateway is told that acknowledgements are in the log before they are",
        "installation",
        (
            f"{_DELIVERY}.outcome_recorder:OutcomeRecorder._flush",
            "self._flush_needed.clear()",
            "self._flush_needed.clear()\n        for waiter in waiters:\n"
            "            waiter.done() or waiter.set_result(None)",
        ),
    ),
    planted_bug(
        "applied-before-append",
        "an outcome is in the state before it is in the log",
        "installation",
        (
            f"{_DELIVERY}.event_writer:EventWriter._write",
            "        offsets = await self._append(new_records)",
            "        for fact, new in zip(facts, new_records, strict=True):\n"
            "            self._state.apply(Record(new.topic, new.partition, -1, new.key, new.value), fact.message)\n"
            "        offsets = await self._append(new_records)",
        ),
    ),
    planted_bug(
        "outcomes-not-written",
        "outcomes that come while earlier ones are being written wait for the next outcome",
        "installation",
        (f"{_DELIVERY}.outcome_recorder:OutcomeRecorder._flush", "        self._flush_needed.clear()\n", ""),
        (
            f"{_DELIVERY}.outcome_recorder:OutcomeRecorder._flush",
            "        self._being_written = _Unwritten()\n",
            "        self._being_written = _Unwritten()\n        self._flush_needed.clear()\n",
        ),
    ),
    planted_bug(
        "outcome-recorded-twice",
        "an acknowledgement that is repeated before it is in the log is recorded twice",
        "installation",
        (
            f"{_DELIVERY}.outcome_recorder:OutcomeRecorder.record_final",
            "if key not in self._queued.finals and key not in self._being_written.finals:",
            "if True:",
        ),
    ),
    planted_bug(
        "acknowledgement-lost",
        "a gateway whose stream to delivery breaks forgets the acknowledgements that were on their way",
        "installation",
        ("services.gateway.uplink:UnreportedQueue.restart", "self._resend = deque(self._sent)", "self._sent.clear()"),
    ),
    planted_bug(
        "takeover-not-awaited",
        "a device that changes gateways is sent its backlog before its former gateway has told its acknowledgements",
        "installation",
        (
            f"{_DELIVERY}.channels.sockets.presence:Presence._replace",
            "current.id < new.id and current.stream is not new.stream",
            "False",
        ),
    ),
    *HAND_OVER_BUGS,
    *OWNER_BUGS,
    *ANALYTICS_BUGS,
    *ACCOUNTS_BUGS,
)
"""All planted bugs; names are unique."""
