"""`python -m shoal` is `shoal`."""

from shoal.cli.app import main

main()
