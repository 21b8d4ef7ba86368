"""One module for each command of `quiver`, with `add_parser(subparsers)` and `run(arguments) -> exit code`."""
