"""Command `deploy-kit-rehearsal`: builds what a rehearsal serves."""

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Builds what a rehearsal on the CPU serves.", no_args_is_help=True, add_completion=False
)
models_app = typer.Typer(
    help="The tiny models whose text and accept length are known beforehand.", no_args_is_help=True
)
app.add_typer(models_app, name="models")
ngram_app = typer.Typer(help="SGLang's n-gram module, compiled beforehand.", no_args_is_help=True)
app.add_typer(ngram_app, name="ngram")


@models_app.command("build")
def build(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to make (parents too).")],
) -> None:
    """Make the target and its drafters below DIR: the same bytes every time.

    Example: deploy-kit-rehearsal models build /models

    Exit codes: 0 made or already there, 2 DIR holds something else, 1 it cannot be written.
    """
    from deploy_kit_rehearsal.builder import NotOursError, build_models

    try:
        made = build_models(folder)
    except NotOursError as error:
        print(f"deploy-kit-rehearsal: {error}; name an empty folder", file=sys.stderr)
        raise typer.Exit(2) from None
    except OSError as error:
        print(f"deploy-kit-rehearsal: cannot write the models: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    print(f"{'made' if made else 'already there'}: {folder}")


@ngram_app.command("build")
def build_ngram() -> None:
    """Compile SGLang's own n-gram module into this package (needs c++; about ten seconds).

    Example: deploy-kit-rehearsal ngram build

    Exit codes: 0 made, 1 it could not be compiled or written.
    """
    from deploy_kit_rehearsal import ngram

    try:
        library = ngram.build()
    except (ngram.CannotCompileError, OSError) as error:
        print(f"deploy-kit-rehearsal: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    print(f"made: {library}")


def main() -> None:
    """Entry point of the command."""
    app()
