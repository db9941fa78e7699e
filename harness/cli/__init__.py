"""The command line: one click module a command."""
