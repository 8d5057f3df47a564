"""The embedded log: one SQLite file, written by one process in a thread of its own.

log.py  ──appends──▶ writer.py ──▶ file.py (schema, rows, trimming, copies)
   └────reads──────▶ reader.py ──▶ file.py
"""
