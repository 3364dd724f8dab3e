"""``python -m bringup …`` is the command ``bringup …``."""

from bringup.cli import main

main()
