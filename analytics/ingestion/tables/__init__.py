"""The tables that are filled from the log: one line for each column, with its type and its value in a record."""
