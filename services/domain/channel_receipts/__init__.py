"""Receipts: what vendors tell later of messages that they took over, each channel's form in one module.

receipts.py     the words, and the token of the URL that a vendor is given
hms.py, …       a module for each vendor that sends receipts: how it writes them
"""
