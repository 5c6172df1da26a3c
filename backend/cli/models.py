"""The commands of `cryptosentinel models`: list, check, pull, export."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from backend.cli.console import console, narrow_table, print_notes
from backend.cli.options import RunsOption
from backend.runs.requests import RUNS
from simulator.errors import UserError

if TYPE_CHECKING:  # they bring torch, which takes seconds
    from backend.models.checks import Findings
    from backend.models.registry import AdapterInfo, BaseInfo

models_app = typer.Typer(
    help="Base models and adapters: list them, check one, pull one from the model hub, export a team's.",
    no_args_is_help=True,
)

ModelsOption = Annotated[Path, typer.Option("--models", help="Folder that holds a folder for each base model.")]


@models_app.command("list")
def list_models(models: ModelsOption = Path("models"), runs: RunsOption = RUNS) -> None:
    """List the base models, and the adapters that runs kept."""
    from backend.models.registry import list_adapters, list_bases

    bases, adapters = list_bases(models, runs), list_adapters(runs)
    if bases:
        console.print(_base_table(bases))
    else:
        console.print(
            f"no base models in {models} and {runs}: get one with: cryptosentinel models pull Qwen/Qwen3-0.6B"
        )
    if adapters:
        console.print(_adapter_table(adapters))
        console.print("* the run's team answers with these")
    else:
        console.print(f"no adapters in {runs}: runs of `train` and `sft` keep them there")
    for told in (*(one.problem for one in bases), *(one.state for one in adapters if one.state not in _GOOD)):
        if told:
            console.print(f"wrong: {told}")


@models_app.command("check")
def check(
    path: Annotated[Path, typer.Argument(help="Folder of a base model, of an exported adapter, or of a run.")],
    base: Annotated[
        Path | None, typer.Option("--base", help="Base model that an adapter is to fit; default: that of its run.")
    ] = None,
) -> None:
    """Check a model, an adapter or a run; ends with exit code 2 where something is wrong."""
    from backend.models.checks import check_path

    _conclude(check_path(path, base), path)


@models_app.command("pull")
def pull(
    name: Annotated[str, typer.Argument(help="Name of a Qwen3 model on the hub, such as Qwen/Qwen3-0.6B.")],
    revision: Annotated[str, typer.Option("--revision", help="Branch, tag or commit.")] = "main",
    to: Annotated[Path | None, typer.Option("--to", help="Folder to make; default: in --models, by its name.")] = None,
    models: ModelsOption = Path("models"),
) -> None:
    """Download a Qwen3 model from the model hub, without anything that may hold code, and check it.

    HF_TOKEN gives access to gated models; HF_ENDPOINT names another hub.
    """
    from backend.models.checks import check_base
    from backend.models.hub import pull_model

    console.print(f"{name} at {revision}")
    done = pull_model(name, revision, to, models)
    told = "fetched into" if done.fetched else "is whole already in"
    console.print(
        f"{done.files} files, {done.size / 2**20:,.1f} MiB of commit {done.revision[:12]}: {told} {done.folder}"
    )
    _conclude(check_base(done.folder), done.folder)
    console.print(f"use it with: --set training.base_model={name if to is None else done.folder}")


@models_app.command("export")
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    to: Annotated[Path, typer.Option("--to", help="Folder that becomes one of a PEFT folder for each role.")],
    base: Annotated[str, typer.Option("--base", help="The team's base model, if it is not in the run's folder.")] = "",
) -> None:
    """Write the adapters of a run's team as PEFT folders, which peft and vLLM load."""
    from backend.models.manifest import base_of_team, read_manifest, team_notice
    from backend.models.registry import step_of
    from backend.policies.adapters import export_adapter, load_versions
    from backend.policies.build import role_policies
    from cryptosentinel.agents.registry import roles_of

    manifest = read_manifest(run)
    weights = manifest.weights()
    if weights is None:
        raise UserError(f"the team of {run} is its base itself, so there is no adapter to export: use the base")
    trained_with = manifest.config
    print_notes(said for said in [team_notice(run, manifest)] if said)
    policies, _ = role_policies(
        base_of_team(run, manifest, base), trained_with.training, roles=roles_of(trained_with.team.roles)
    )
    load_versions(policies, run / weights)
    for role in policies.roles:
        step = step_of(Path(weights)) or 0
        one = export_adapter(policies, role, to / role, run=run.resolve().name, step=step)
        console.print(f"{one.version}: {one.folder}")


_GOOD = ("ok", "no checksum")


def _conclude(findings: Findings, path: Path) -> None:
    """Show every finding. Raises `UserError` where one is wrong."""
    styles = {"ok": "green", "note": "", "wrong": "red"}
    for one in findings.entries:
        console.print(f"{one.state:<6} {one.what}: {one.detail}", style=styles[one.state], highlight=False)
    if findings.wrong:
        raise UserError(f"{path}: {findings.wrong} of {len(findings.entries)} checks failed; mend what is said above")


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


def _adapter_table(adapters: Sequence[AdapterInfo]) -> Table:
    table = narrow_table("Adapters")
    for heading in ("step", "role", "version", "base", "rank", "checksum"):
        table.add_column(heading, no_wrap=True)
    for one in adapters:
        state = one.state if one.state in _GOOD else "wrong"
        table.add_row(
            one.run,
            f"{'-' if one.step is None else one.step}{' *' if one.in_team else ''}",
            one.role,
            one.version.removeprefix(f"{one.role}-") or "-",
            one.base or "-",
            "-" if one.rank is None else str(one.rank),
            {"no checksum": "none"}.get(state, state),
        )
    return table
