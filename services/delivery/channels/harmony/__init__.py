"""Messages to phones with HarmonyOS 5 and later, by version 3 of the call of Huawei's Push Kit.

service.py: Huawei's call, and the service     wiring.py: Huawei's service, or the simulator in its place
request.py: a message as Huawei's JSON     responses.py ◀─ what follows from Huawei's answer
"""
