"""The commands of `cryptosentinel models`: list, check, try, pull, export."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.table import Table

from backend.cli.console import console, narrow_table
from backend.cli.options import RunsOption, SetOption
from backend.config.base import suggestion
from backend.runs.requests import RUNS, WindowRequest
from simulator.errors import UserError

if TYPE_CHECKING:  # they bring torch, which takes seconds
    from backend.models.checks import Findings
    from backend.models.export import Form
    from backend.models.registry import BaseInfo

models_app = typer.Typer(
    help="Base models: list them, check one, try one, pull one from the model hub; export a team's adapters.",
    no_args_is_help=True,
)

FORMS = ("peft", "merged")  # what a team is exported as
ModelsOption = Annotated[Path, typer.Option("--models", help="Folder that holds a folder for each base model.")]


@models_app.command("list")
def list_models(models: ModelsOption = Path("models"), runs: RunsOption = RUNS) -> None:
    """List the base models."""
    from backend.models.registry import list_bases

    bases = list_bases(models, runs)
    if bases:
        console.print(_base_table(bases))
    else:
        console.print(
            f"no base models in {models} and {runs}: get one with: cryptosentinel models pull Qwen/Qwen3-0.6B"
        )
    for one in bases:
        if one.problem:
            console.print(f"wrong: {one.problem}")


@models_app.command("check")
def check(path: Annotated[Path, typer.Argument(help="Folder of a base model.")]) -> None:
    """Check a base model; ends with exit code 2 where something is wrong."""
    from backend.models.checks import check_base

    _conclude(check_base(path), path)


@models_app.command("try")
def try_(
    model: Annotated[
        str, typer.Argument(help="The model: a folder, or its name at the endpoint. Default: engine.model.")
    ] = "",
    provider: Annotated[
        str,
        typer.Option(
            "--provider",
            help="Whose endpoint: openai, anthropic, google, openrouter, ollama, vllm_chat, llama_cpp, lm_studio.",
        ),
    ] = "",
    url: Annotated[str, typer.Option("--url", help="Address of the endpoint, where it is not the provider's.")] = "",
    data: Annotated[str, typer.Option("--data", help="Folder of bars. Default: the sample.")] = "",
    config: Annotated[str, typer.Option("--config", "-c", help="A preset or a TOML file.")] = "",
    set_: SetOption = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of sampling.")] = 1,
) -> None:
    """Make the first contact with a model: one call of a tool, then one decision, with what they took.

    Nothing is stored. Exit code 1: the model answered, and the team could not have traded on it.
    """
    from backend.runs.try_model import try_model

    given = {"kind": provider, "url": url, "model": model}
    named = [f"engine.{name}={json.dumps(value)}" for name, value in given.items() if value]
    request = WindowRequest(config=config, overrides=(*(set_ or ()), *named), data=data, seed=seed)
    if not try_model(request, lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)):
        raise typer.Exit(1)


@models_app.command("pull")
def pull(
    name: Annotated[str, typer.Argument(help="Name of a causal language model on the hub, such as Qwen/Qwen3-0.6B.")],
    revision: Annotated[str, typer.Option("--revision", help="Branch, tag or commit.")] = "main",
    to: Annotated[Path | None, typer.Option("--to", help="Folder to make; default: in --models, by its name.")] = None,
    models: ModelsOption = Path("models"),
) -> None:
    """Download a model from the model hub, without anything that may hold code, and check it.

    HF_TOKEN gives access to gated models; HF_ENDPOINT names another hub.
    """
    from backend.models.checks import check_base
    from backend.models.hub import pull_model

    console.print(f"{name} at {revision}")
    done = pull_model(name, revision, to, models)
    reported = "fetched into" if done.fetched else "is whole already in"
    console.print(
        f"{done.files} files, {done.size / 2**20:,.1f} MiB of commit {done.revision[:12]}: {reported} {done.folder}"
    )
    _conclude(check_base(done.folder), done.folder)
    console.print(f"use it with: --set training.base_model={name if to is None else done.folder}")


@models_app.command("export")
def export(
    team: Annotated[Path, typer.Argument(help="Folder of a finished run, or 'sample'.")],
    to: Annotated[Path, typer.Option("--to", help="Folder to write to: a folder for each role.")],
    form: Annotated[
        str,
        typer.Option("--as", help="peft (adapters) or merged (whole models)."),
    ] = "peft",
    base: Annotated[str, typer.Option("--base", help="The team's base model, if it is not in the run's folder.")] = "",
    set_: SetOption = None,
) -> None:
    """Write a team's roles for other programs: PEFT folders, which peft and vLLM load, or whole models."""
    if form not in FORMS:
        raise UserError(f"--as {form} is not known{suggestion(form, FORMS)}: use {', '.join(FORMS)}")
    from backend.builders.plugins import load_plugins
    from backend.config.load import load_config
    from backend.config.schema import Config
    from backend.models.export import export_team
    from backend.models.manifest import read_manifest, team_folder

    folder = team_folder(team)
    manifest = read_manifest(folder)
    load_plugins(load_config(Config(team=manifest.team), set_ or ()))  # roles of the user's own
    for exported in export_team(team, to, cast("Form", form), base):
        console.print(f"{exported.version}: {exported.path}", soft_wrap=True)


def _conclude(findings: Findings, path: Path) -> None:
    """Show every finding. Raises `UserError` where one is wrong."""
    styles = {"ok": "green", "note": "", "wrong": "red"}
    for one in findings.entries:
        console.print(f"{one.state:<6} {one.what}: {one.detail}", style=styles[one.state], highlight=False)
    if findings.wrong:
        raise UserError(f"{path}: {findings.wrong} of {len(findings.entries)} checks failed; fix what is listed above")


def _base_table(bases: Sequence[BaseInfo]) -> Table:
    table = narrow_table("Base models")
    table.add_column("architecture", no_wrap=True)
    for heading in ("parameters", "vocabulary", "context", "MiB"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("usable")
    for one in bases:
        numbers = (one.parameters, one.vocabulary, one.context)
        table.add_row(
            one.name,
            one.architecture or "-",
            *("-" if number is None else f"{number:,}" for number in numbers),
            f"{one.size / 2**20:,.1f}",
            "no" if one.problem else "yes",
        )
    return table
