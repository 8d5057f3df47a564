"""Bytes to typed requests, in linear time and bounded, with errors that name the field.

body.py (bounded reading)   canonical.py (the signed text)   typed.py (JSON into types)   fields.py, targets.py
"""
