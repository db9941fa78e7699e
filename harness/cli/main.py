"""The ``auto-research`` command: a group whose subcommands are imported when they are called.

``--help`` and wrong commands answer without importing torch, mlflow, or any command's module.
"""

from __future__ import annotations

import os
import sys

try:
    import contextlib
    import importlib
    from typing import Any

    import click

    from harness.cli.streams import discard_output, is_output_error, open_missing_streams
    from harness.errors import EXIT_FAILED, EXIT_INTERRUPTED, UserError
except KeyboardInterrupt:  # nothing has begun: end as quietly as any later interruption
    os._exit(130)

# Name -> ("module:attribute", one line for --help).
_COMMANDS: dict[str, tuple[str, str]] = {
    "reproduce": (
        "harness.cli.reproduce:reproduce",
        "Run a suite's cells: skip finished ones, resume killed ones.",
    ),
    "agent-eval": (
        "harness.cli.agent_eval:agent_eval",
        "Train a method by RL on a benchmark, evaluate it, and write what was measured.",
    ),
    "report": ("harness.cli.report:report", "Render tables, plots and pages from results."),
    "claims": ("harness.cli.claims:claims", "Set the paper's claims beside what was measured."),
    "list": ("harness.cli.list_:list_", "Show methods and benchmarks with version and origin."),
    "track": ("harness.cli.track:track", "Mirror finished runs to MLflow, now or again."),
    "doctor": (
        "harness.cli.doctor:doctor",
        "Say what is installed, what works, and what to type to get the rest.",
    ),
}


class LazyGroup(click.Group):
    """Imports a subcommand on use, and turns a ``UserError`` into one clear message."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order in which a newcomer needs them."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command, or None if there is none of this name."""
        if cmd_name not in _COMMANDS:
            return None
        module_name, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module_name), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, with the nearest name and the list in the error."""
        name = args[0]
        if name in _COMMANDS or name.startswith("-"):
            return super().resolve_command(ctx, args)
        import difflib

        near = difflib.get_close_matches(name, _COMMANDS, n=1, cutoff=0.5)
        guess = f" Did you mean {near[0]!r}?" if near else ""
        raise click.UsageError(
            f"There is no command {name!r}.{guess} Commands: {', '.join(_COMMANDS)}.", ctx=ctx
        )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands' one-liners, from the table above: nothing is imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; mistakes of the user end in a message and an exit code."""
        try:
            return super().invoke(ctx)
        except UserError as error:
            show_error(error.message, error.hint)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(EXIT_INTERRUPTED)


def show_error(message: str, hint: str | None) -> None:
    """Print an error to stderr: what is wrong, then what to do."""
    click.secho("Error: ", fg="red", bold=True, nl=False, err=True)
    click.echo(message, err=True)
    if hint:
        click.echo(f"  {hint}", err=True)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="auto-research-harness", prog_name="auto-research")
def cli() -> None:
    """Reproduce a paper's claims: seeded methods on seeded benchmarks, stable JSON out.

    Start with:  auto-research agent-eval --method sinkflex-rl --benchmark scalemcp-mini
    """


def main() -> None:
    """Entry point of the console script."""
    code: Any = None
    try:
        open_missing_streams()
        try:
            cli(prog_name="auto-research")
        except SystemExit as done:
            code = done.code
            sys.stdout.flush()
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except OSError as error:
        if not is_output_error(error):
            raise
        code = code or EXIT_FAILED
        with contextlib.suppress(OSError):
            show_error(
                f"The output cannot be written: {error.strerror}.",
                "Files that the command has written are complete; free some space, or send the "
                "output elsewhere.",
            )
    discard_output()
    sys.exit(code)


if __name__ == "__main__":
    main()
