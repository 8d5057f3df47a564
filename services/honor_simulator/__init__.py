"""Simulator of Honor's push service, as strict as Honor's documents and clients are known here.

server.py: tokens, answers, what phones show     requests.py: what is refused, and the codes that are assumed for it
"""
