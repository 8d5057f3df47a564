"""Planted bugs: small changes of production code that the simulation has to find, to show that it finds such bugs.

`catalogue.py` lists them, `edit.py` plants one in a process, `search.py` looks for the first seed that finds it.
"""
