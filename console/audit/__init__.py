"""The audit of what accounts and operators did."""
