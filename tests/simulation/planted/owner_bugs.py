"""Planted bugs of owners and standbys: what goes wrong when another process takes over a shard."""

from collections.abc import Sequence

from tests.simulation.planted.bug import PlantedBug, planted_bug

_NOT_WRITTEN_AGAIN = (
    (
        "services.replica.fencing:Fencing.check",
        "self._refused.add((partition, key_in_clear(self._topics, record, message)))",
        "pass",
    ),
    (
        "services.replica.catch_up:CatchUp._apply",
        "self._refused.note(partition, key_in_clear(self._topics, record, message), refused=not admitted)",
        "pass",
    ),
)

OWNER_BUGS: Sequence[PlantedBug] = (
    planted_bug(
        "successor-behind",
        "a new owner of targeting answers before it has applied what the former one has confirmed",
        "backends",
        (
            "services.replica.tenure:own_when_elected",
            "await goal.wait_reached(applied)",
            "pass",
        ),
    ),
    planted_bug(
        "lease-ignored",
        "an owner that was paused or cut off answers although its successor does so too",
        "backends",
        (
            "services.replica.tenure:Tenure.check",
            "if self.election and not self.election.is_confirmed:",
            "if False:",
        ),
    ),
    planted_bug(
        "absence-unnoticed",
        "a standby waits for an owner that has ended without a word",
        "backends",
        (
            "services.replica.instances:Instance.is_present",
            "max(self.missed.values(), default=0) < ABSENT_AFTER",
            "True",
        ),
    ),
    planted_bug(
        "standbys-by-their-ids",
        "the standby with the lowest id takes over, so of two that start together the second may overtake the first",
        "backends",
        (
            "services.replica.instances:Instances.standbys",
            "key=lambda each: (each.caught_up_offset, each.id)",
            "key=lambda each: each.id",
        ),
    ),
    planted_bug(
        "epoch-kept",
        "a new owner of targeting takes over under the epoch of the former one, which answers again later",
        "backends",
        ("services.replica.membership:Membership.new_epoch", "return self._own_offset + 1", "return 1"),
    ),
    planted_bug(
        "former-owner-heard",
        "a process that catches up applies what a former owner of the registry wrote after another one had taken over,"
        " and the owner does not write the valid facts again behind it",
        "backends",
        ("services.replica.catch_up:CatchUp._apply", "if not admitted:", "if False:"),
        *_NOT_WRITTEN_AGAIN,
    ),
    planted_bug(
        "valid-facts-not-restored",
        "an owner does not write the valid facts again behind those of a former one, because of which compaction may"
        " have removed them",
        "backends",
        *_NOT_WRITTEN_AGAIN,
    ),
    planted_bug(
        "rivals-unseen",
        "an owner of scheduling commits what it appended after another process had taken over",
        "backends",
        (
            "services.replica.follower:Follower._append_and_commit",
            "await self._fencing.check_appended(self._log, new_records, appended_at)",
            "self._fencing.advance(ends_after(new_records, appended_at))",
        ),
    ),
)
"""The bugs that only worlds with owners can have."""
