"""``python -m lightning_rank.cli``."""

import sys

from lightning_rank.cli import main

if __name__ == "__main__":
    sys.exit(main())
