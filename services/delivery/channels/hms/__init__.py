"""Messages to Android phones, and HarmonyOS up to 4, by Huawei's Push Kit (HMS), version 1 or 2 of its call.

service.py: Huawei's call, and the service     wiring.py: Huawei's service, or the simulator in its place
request.py: a message as Huawei's JSON     responses.py ◀─ what follows from Huawei's answer
"""
