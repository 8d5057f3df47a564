"""The command, the only code that knows every role.

main.py ─▶ up.py (everything in one process, with children/)   serve.py (one role)   replay.py, archive.py
       └─▶ commands/ (operators' commands) ─▶ installation/ (a running installation, here or by its console)
"""
