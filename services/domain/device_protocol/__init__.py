"""The device protocol: frames of JSON, the same over WebSocket (gateway) and HTTP (edge).

frames.py (from devices) ─▶ commands.py (what follows in the log)     answers.py (to devices, except pushes)
possession.py: codes by which an app proves that an APNs token is its own
"""
