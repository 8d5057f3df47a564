"""Child processes of `carillon up`: analytics and the console, which share the parent's log and ports."""
