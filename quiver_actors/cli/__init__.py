"""The `quiver` command. Each subcommand is a module with `add_parser(subparsers)` and `run(arguments) -> exit code`."""
