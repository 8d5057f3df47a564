"""The analytics role: a store in ClickHouse, filled from the log, that answers statistics, audits and acknowledgements.

the log ─▶ ingestion/ ─▶ store/ (ClickHouse or chdb) ◀─ statistics/  audit/  acks.py ◀─ server.py ◀─ edge, console
replay.py, digest.py: rebuilt from the log, and compared
"""
