"""Messages to Honor's phones by Honor's push service, also while the app is dead.

service.py: Honor's call, and the service     wiring.py: Honor's service, or the simulator in its place
request.py: a message as Honor's JSON     responses.py ◀─ what follows from Honor's answer
"""
