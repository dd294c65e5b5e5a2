"""The command line: every command, and the only Typer."""
