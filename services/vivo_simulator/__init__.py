"""Simulator of vivo's push service, as strict as vivo documents it.

server.py: auth tokens, answers, what phones show     requests.py: what vivo refuses
"""
