"""Makes a checkout of this repository ready to run, with nothing but Python: the Makefile's `install` and `doctor`."""
