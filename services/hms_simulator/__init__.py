"""Simulators of Huawei's Push Kit, strict as Huawei documents it. An installation uses them by default.

push_kit.py: what both generations share              server.py: HMS        harmony.py: HarmonyOS 5 and later
clients.py: HMS clients and their access tokens       requests.py, harmony_requests.py: what Huawei refuses
"""
