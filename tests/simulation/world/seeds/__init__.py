"""What a seed makes of a world of an installation: its plan and its faults, at random or as a situation needs them."""
