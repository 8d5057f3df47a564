"""Scheduling stores timed tasks and idempotency keys, and sends what falls due.

task-commands ─▶ projection.py ─▶ decide.py ─▶ state.py ─▶ store.py (SQLite)
timer.py (what falls due) ─▶ task_sender.py ─▶ app_sender.py ─▶ push-commands
server.py: look-ups for the edge and the console
"""
