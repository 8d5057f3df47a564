"""Messages to OPPO's phones, OnePlus and realme among them, by OPPO's push service, also while the app is dead.

service.py: OPPO's call, and the service     wiring.py: OPPO's service, or the simulator in its place
request.py: a message as OPPO's JSON     responses.py ◀─ what follows from OPPO's answer
"""
