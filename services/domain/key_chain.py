"""Which keys of the installation are in force and accepted, as the fingerprints in the topic `apps` say.

A rotation appends the fingerprint of another key, which names the present key as its predecessor: from then on all
processes issue and seal with the new key, and accept both. The end of the rotation repeats the record, with the note
that the predecessor is dropped.
"""

from typing import NamedTuple

from protos.registry.v1.apps_pb2 import KeyFingerprint


class KeyChain(NamedTuple):
    """The keys of one purpose, by their fingerprints.

    `former`: the key before the one in force, which is accepted until it is dropped; empty: there is none.
    `used`: the keys that were in force before, none of which can be so again.
    `dropped`: those that are accepted no more.
    `waiting`: records whose predecessor has not come into force: compaction may leave a later record before an earlier.
    """

    in_force: bytes
    former: bytes = b""
    switched_ms: int = 0
    used: frozenset[bytes] = frozenset()
    dropped: frozenset[bytes] = frozenset()
    waiting: tuple[KeyFingerprint, ...] = ()


def extended(chain: KeyChain | None, noted: KeyFingerprint) -> KeyChain:
    """Return the chain after a record. A record without a predecessor changes nothing but an empty chain."""
    predecessors = frozenset([noted.predecessor] if noted.predecessor else [])
    newly_dropped = predecessors if noted.predecessor_dropped else frozenset()
    former = b"" if noted.predecessor_dropped else noted.predecessor
    if chain is None:
        return KeyChain(noted.fingerprint, former, noted.switched_ms, predecessors, newly_dropped)
    dropped = chain.dropped | newly_dropped
    if noted.fingerprint == chain.in_force:
        return chain._replace(former=b"" if chain.former in dropped else chain.former, dropped=dropped)
    if noted.predecessor != chain.in_force or noted.fingerprint in chain.used:
        waits = bool(noted.predecessor) and noted not in chain.waiting
        return chain._replace(dropped=dropped, waiting=(*chain.waiting, noted) if waits else chain.waiting)
    if chain.former:
        dropped |= {chain.former}
    used = chain.used | {chain.in_force}
    changed = KeyChain(noted.fingerprint, former, noted.switched_ms, used, dropped, chain.waiting)
    following = next((each for each in chain.waiting if each.predecessor == noted.fingerprint), None)
    return extended(changed, following) if following is not None else changed
