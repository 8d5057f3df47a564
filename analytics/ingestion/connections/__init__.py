"""Openings and ends of connections, folded into changes of their number by minute."""
