"""A role's state: folded from the log, owned by one process at a time, rebuilt at any time.

    follower.py      the loop: read, apply facts, decide commands, append the new facts, commit the offset
      ├── store.py        the ports: a store of state and offsets, and a role's rules
      │     sqlite_store.py, snapshot.py: state on disk, in SQLite or as one file
      ├── tenure.py       the time in which this process owns its partitions; it stands by otherwise
      │     membership.py, instances.py: which processes are present, and which is elected, by topic `instances`
      │     fencing.py, epochs.py: a former owner's writes are ignored
      ├── dead_letters.py records that cannot be applied
      └── positions.py    waiting until a record is applied
    catch_up.py, replay.py   the same folding up to a given end, for starts and rebuilds
    peers.py, owner_channel.py   calls to the owner of a shard, wherever it is
    health.py, own_status.py, status_board.py   whether a process is ready, and what it tells the others of itself

Roles in `services`, `analytics` and the console's directories are built on it.
"""
