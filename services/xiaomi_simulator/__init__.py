"""Simulator of Xiaomi's push service, as strict as Xiaomi documents it.

server.py: app secrets, answers, what phones show     requests.py: what Xiaomi refuses
"""
