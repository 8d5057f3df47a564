"""Messages to phones with HarmonyOS 5 and later, by version 3 of the call of Huawei's Push Kit.

service.py (the PushService) ─▶ sender.py: one for each service account ─▶ ../huawei/batches
request.py: a message as Huawei's JSON     responses.py ◀─ what follows from Huawei's answer
wiring.py: Huawei's service, or the simulator in its place
"""
