"""The command table and the entry point. Subcommands load on use, so `deploy-kit --help` stays instant."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from deploy_kit import __version__
from deploy_kit.errors import DeployKitError, nearest_names
from deploy_kit.exit_codes import ExitCode

# name → (module with `app: typer.Typer`, one line of help). The order is the order of `--help`.
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("deploy_kit.cli.up", "Set up this machine and bring a profile up, until a completion comes back."),
    "down": ("deploy_kit.cli.down", "Stop what `up` started; nothing is left running."),
    "status": ("deploy_kit.cli.status", "What runs, where, with which plan, and how it does."),
    "logs": ("deploy_kit.cli.logs", "The logs of a service."),
    "deploy": ("deploy_kit.cli.deploy", "Roll a plan over the hosts of an inventory."),
    "rollback": ("deploy_kit.cli.rollback", "Return the hosts of an inventory to their previous plan."),
    "firstlight": (
        "deploy_kit.cli.firstlight",
        "What to run first on a new box, packed into one file to share.",
    ),
    "plan": ("deploy_kit.cli.plan", "Resolve a profile to argv, environment, mounts, CPU set and image."),
    "serve": ("deploy_kit.cli.serve", "Run the engine for a profile (the image's entrypoint)."),
    "health": ("deploy_kit.cli.health", "Exit 0 when the engine that `serve` runs is ready."),
    "startup": ("deploy_kit.cli.startup", "Explain an engine's start-up log: phase, cause, remedy."),
    "metrics": ("deploy_kit.cli.metrics", "Explain a metrics scrape: what is read, what is absent, and why."),
    "doctor": ("deploy_kit.cli.doctor", "Find host faults that make all-reduce slow, before any load."),
    "probe": ("deploy_kit.cli.probe", "Measure all-reduce (or the fusion lever) the way serving uses it."),
    "drafter": ("deploy_kit.cli.drafter", "Check, compare, remap and predict EAGLE-3 drafters."),
    "bench": ("deploy_kit.cli.bench", "Measure a running server; the receipt keeps every sample."),
    "campaign": ("deploy_kit.cli.campaign", "Find out which lever helps, one at a time against a base plan."),
    "decide": ("deploy_kit.cli.decide", "Choose baseline or a speculation profile from receipts."),
    "report": ("deploy_kit.cli.report", "Write receipts and a campaign as one page to read and share."),
    "guard": ("deploy_kit.cli.guard", "Watch whether speculation still pays; act only if allowed."),
    "stack": ("deploy_kit.cli.stack", "Show, lock, verify and compare the pinned stacks."),
    "patches": ("deploy_kit.cli.patches", "Which source patches are applied, skipped or failed, and why."),
}


# A full disk or quota behind a redirected output.
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


class LazyGroup(TyperGroup):
    """A command group that knows its subcommands' names and help, and imports one only to run it."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            raise DeployKitError(
                f"no such command: {cmd_name}",
                allowed=nearest_names(cmd_name, tuple(COMMANDS)) or tuple(COMMANDS),
                remedy="deploy-kit --help lists the commands",
                exit_code=ExitCode.USAGE,
            )
        module, text = COMMANDS[cmd_name]
        if "--help" in sys.argv[1:2] or _completing_names():
            return _HelpOnly(name=cmd_name, help=text)
        subcommand: typer.Typer = importlib.import_module(module).app
        subcommand.rich_markup_mode = None  # plain help everywhere: fast, and the same in a pipe
        command = typer.main.get_command(subcommand)
        command.name = cmd_name
        command.short_help = text
        return command


class _HelpOnly(typer.core.TyperCommand):
    """A subcommand that only has to be listed."""

    def __init__(self, *, name: str, help: str) -> None:  # noqa: A002  (Click's own parameter name)
        super().__init__(name, callback=None, help=help, short_help=help)


def _completing_names() -> bool:
    # While the shell completes the subcommand's own name, importing every module would be felt.
    words = os.environ.get("COMP_WORDS", "").split()
    return "_DEPLOY_KIT_COMPLETE" in os.environ and int(os.environ.get("COMP_CWORD", len(words)) or 0) <= 1


app = typer.Typer(
    name="deploy-kit",
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Deploy Kimi-class models with SGLang on PCIe-only GPU boxes, and know whether speculation pays.",
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"deploy-kit {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """The group itself does nothing; its subcommands do."""
    del version


def main() -> None:
    """Run the command line: user errors as one block, Ctrl-C quietly, never a traceback for bad input."""
    from deploy_kit.files import file_error
    from deploy_kit.output import print_error

    for stream in (sys.stdout, sys.stderr):
        # A terminal that has not the letter gets its number: never an error about encoding.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except DeployKitError as error:
        print_error(error, as_json="--json" in sys.argv)
        sys.exit(int(error.exit_code))
    except KeyboardInterrupt:
        sys.stderr.write("deploy-kit: interrupted\n")
        sys.exit(int(ExitCode.INTERRUPTED))
    except BrokenPipeError:
        # The reader (head, less) went away: not an error of ours.
        _drop_stdout()
        sys.exit(int(ExitCode.OK))
    except OSError as error:
        if error.filename is not None or error.errno not in _OUTPUT_ERRORS:
            raise
        _drop_stdout()
        failure = file_error("cannot write", Path("(standard output)"), error)
        print_error(failure)
        sys.exit(int(failure.exit_code))


def _drop_stdout() -> None:
    # What is still buffered would fail again when Python ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
