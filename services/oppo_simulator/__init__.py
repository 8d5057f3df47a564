"""Simulator of OPPO's push service, as strict as OPPO documents it.

server.py: auth tokens, answers, what phones show     requests.py: what OPPO refuses
"""
