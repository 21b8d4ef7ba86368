"""Runs the demo. See `quiver_actors.cli.demo`."""

import sys

from quiver_actors.cli.demo.run import main

if __name__ == "__main__":
    sys.exit(main())
