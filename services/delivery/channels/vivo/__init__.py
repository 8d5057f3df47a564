"""Messages to vivo's phones by vivo's push service, also while the app is dead.

service.py: vivo's call, and the service     wiring.py: vivo's service, or the simulator in its place
request.py: a message as vivo's JSON     responses.py ◀─ what follows from vivo's answer
"""
