"""Statistics as charts, tables and files."""
