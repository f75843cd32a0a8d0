"""`python -m prb` is `prb`."""

from prb.cli import main

main()
