"""``python -m tensoralg`` is the command line."""

import sys

from tensoralg.cli import main

if __name__ == "__main__":
    sys.exit(main())
