"""ClickHouse: a server, or the same engine in this process (chdb). Nothing outside imports its drivers.

clickhouse.py (queries and inserts) ─▶ engine.py (the drivers)    migrate.py ─▶ migrations/*.sql
"""
