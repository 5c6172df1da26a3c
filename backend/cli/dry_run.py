"""`cryptosentinel train --dry-run-step`: what a training would take, and one step of it with random weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rich.table import Table

from backend.cli.console import console, narrow_table
from backend.config.schema import Config

if TYPE_CHECKING:  # they import torch
    from backend.training.planning.dry_run import DryRun
    from backend.training.planning.memory_estimate import Estimate


def dry_run_step(config: Config) -> None:
    """Print the memory that the configuration takes, do one step, and print what that took and what it lets expect.

    Raises `UserError` for a base of unknown architecture, and where not even one block of it fits.
    """
    from backend.models.architectures import Shape, architecture_of
    from backend.policies.hardware import hardware_of
    from backend.training.planning.dry_run import dry_run, project
    from backend.training.planning.memory_estimate import estimate, gib, machine_memory, plan_of, server, verdict

    shape = Shape.of(architecture_of(config.training, config.nano))
    hardware = hardware_of(config.training)
    free = machine_memory(hardware.device)
    plan = plan_of(config, shape, hardware.kind)
    expected = estimate(shape, plan)
    base = config.training.base_model or "nano"
    console.print(f"{base}: {shape.parameters / 1e9:.3g} billion parameters, {shape.layers} blocks", markup=False)
    where = f"{hardware.device}, {hardware.precision}, gradient checkpointing {'on' if plan.checkpointing else 'off'}"
    console.print(needs_table(f"memory of the trainer, estimated ({where})", expected))
    console.print(verdict(expected, free), markup=False)
    if not plan.checkpointing:
        less = estimate(shape, replace(plan, checkpointing=True)).of("updates")
        console.print(
            f"its updates take {gib(expected.of('updates'))}; with training.gradient_checkpointing they would take "
            f"{gib(less)}"
        )
    if plan.engine == "vllm" and not plan.shared:
        console.print(needs_table("memory of the vLLM server, estimated", server(shape, plan)))
        console.print(verdict(server(shape, plan), machine_memory("cuda")), markup=False)
    found = dry_run(config)
    if found.layers < shape.layers:
        console.print(f"note: {found.layers} of {shape.layers} blocks were built, as more do not fit here")
    console.print(parts_table(found))
    console.print(f"it took {gib(found.peak)} at most; {gib(found.expected.total)} were estimated for it")
    told = project(found, config)
    console.print(
        f"a step of {told.conversations} conversations and {told.tokens:,} tokens would take at most "
        f"{told.step:,.0f} s here: rollouts {told.rollouts:,.0f} in this process, updates {told.updates:,.0f}, new "
        f"weights {told.publishing:,.0f}"
    )


def needs_table(title: str, found: Estimate) -> Table:
    """An estimate by part."""
    from backend.training.planning.memory_estimate import gib, rows

    table = narrow_table(title)
    table.add_column("when")
    table.add_column("takes", justify="right", no_wrap=True)
    for part, when, size in rows(found):
        table.add_row(part, when, size)
    table.add_row("at the peak", found.peak_phase, gib(found.total))
    return table


def parts_table(found: DryRun) -> Table:
    """What each part of the step took."""
    from backend.training.planning.memory_estimate import gib

    table = narrow_table("one step with random weights")
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("memory at most", justify="right", no_wrap=True)
    for part in found.parts:
        table.add_row(part.name, f"{part.seconds:.2f}", gib(part.peak))
    return table
