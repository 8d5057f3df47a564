"""What accounts and operators did."""
