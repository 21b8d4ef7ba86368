"""The entry of `python -m quiver_actors.demo`; the demo itself is in `quiver_actors.cli.demo`."""
