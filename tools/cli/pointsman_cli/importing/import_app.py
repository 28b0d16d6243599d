"""`pointsman import`: the options of its commands."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pointsman_cli.importing.imported import Imported

import_app = typer.Typer(no_args_is_help=True, help="Translate the configuration of another gateway.")

OutOption = Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Default: standard output.")]


@import_app.command("litellm")
def litellm(
    file: Annotated[Path, typer.Argument(metavar="CONFIG", help="The proxy's config.yaml.")], out: OutOption = None
) -> None:
    """Translate a LiteLLM proxy's config.yaml, and name the settings that have no equivalent."""
    from pointsman_cli.config.configuration import read as text_of
    from pointsman_cli.importing.litellm import read

    _write(read(text_of(file), str(file)), str(file), out)


@import_app.command("vllm-router", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def vllm_router(context: typer.Context, out: OutOption = None) -> None:
    """Translate the flags of a vllm-router, written behind `--`, and name those that have no equivalent."""
    from pointsman_cli.importing.vllm_router import read

    _write(read(context.args), "the flags of vllm-router", out)


@import_app.command("llm-d")
def llm_d(
    file: Annotated[Path, typer.Argument(metavar="CONFIG", help="An EndpointPickerConfig.")], out: OutOption = None
) -> None:
    """Translate the configuration of llm-d's endpoint picker, and name the settings that have no equivalent."""
    from pointsman_cli.config.configuration import read as text_of
    from pointsman_cli.importing.llm_d import read

    _write(read(text_of(file), str(file)), str(file), out)


def _write(imported: "Imported", source: str, out: Path | None) -> None:
    from rich.console import Console
    from rich.text import Text

    from pointsman_cli.config import configuration
    from pointsman_cli.words import counted

    text = imported.render_yaml(source)
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text, encoding="utf-8")
    console = Console(stderr=True, highlight=False)
    for note in imported.notes:
        console.print(Text.assemble((f"{note.where}: ", "yellow"), note.what), soft_wrap=True)
    _, problems = configuration.check(text)
    for problem in problems:
        console.print(Text.assemble(("to mend: ", "red"), configuration.shown(problem)), soft_wrap=True)
    console.print(f"Not translated as they stand: {counted(len(imported.notes), 'setting')}.")
    console.print(f"To mend: {counted(len(problems), 'problem')}.")
