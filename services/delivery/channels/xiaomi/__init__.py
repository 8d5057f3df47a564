"""Messages to Xiaomi's phones by Xiaomi's push service, also while the app is dead.

service.py: Xiaomi's call, and the service     wiring.py: Xiaomi's service, or the simulator in its place
request.py: a message as Xiaomi's form     responses.py ◀─ what follows from Xiaomi's answer
"""
