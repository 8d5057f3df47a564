"""The archive: old records outside the log, so that the log stays small and everything can still be replayed.

archiver.py ─moves records─▶ store.py (the port, and the form of a segment)
                               ├── directory.py   files
                               └── bucket.py      objects of an S3-compatible store
log.py ◀─ reads the archive first, then the log, as one log
"""
