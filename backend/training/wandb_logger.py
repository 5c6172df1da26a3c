"""The metrics of a run at Weights & Biases as well, where the variable `WANDB_PROJECT` names a project.

What goes there is the name of the run and its metrics, and nothing else: no configuration, code, console output or
facts about the machine. Project and key are those of the environment (`WANDB_PROJECT`, `WANDB_API_KEY`); with
`WANDB_MODE=offline` the files stay in the run's folder.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from simulator.errors import UserError

_log = logging.getLogger(__name__)

OFFLINE = ("offline", "dryrun", "disabled")  # values of WANDB_MODE that need no key


def wandb_project() -> str:
    """The project of the environment; empty: metrics stay here."""
    return os.environ.get("WANDB_PROJECT", "").strip()


def require_wandb() -> None:
    """Raise `UserError` where there is a project, but no package or no key for it, or a name that Weights & Biases
    refuses: before anything is trained."""
    project = wandb_project()
    if not project:
        return
    if len(project) > 128 or re.search(r"[/\\#?%:]", project):
        raise UserError(
            f"WANDB_PROJECT = {project[:140]!r} is not a name that Weights & Biases takes: use at most 128 characters "
            "without / \\ # ? % :"
        )
    if importlib.util.find_spec("wandb") is None:
        raise UserError(
            f"WANDB_PROJECT = {project!r}, and wandb is not installed: pip install 'cryptosentinel[wandb]' or "
            "unset the variable"
        )
    if os.environ.get("WANDB_MODE") not in OFFLINE and not os.environ.get("WANDB_API_KEY"):
        raise UserError(
            f"WANDB_PROJECT = {project!r}, and there is no key: set WANDB_API_KEY in the environment, or "
            "WANDB_MODE=offline to keep the files in the run's folder"
        )


class WandbLogger:
    """Sends the metrics of `run` to `project`; files lie in `folder`/wandb. It never ends a training: its first failure
    is logged, and it sends nothing more; the run's own records are complete without it."""

    def __init__(self, project: str, run: str, folder: Path) -> None:
        self.failed = False
        self._run: Any = None
        self._attempt(lambda: self._begin(project, _plain(run).replace("/", "_"), folder))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the metrics of a step."""
        self._attempt(lambda: self._run.log({"step": step, **{_plain(name): value for name, value in values.items()}}))

    def close(self) -> None:
        """Send what is left."""
        self._attempt(lambda: self._run.finish())

    def _attempt(self, act: Callable[[], object]) -> None:
        if self.failed:
            return
        try:
            act()
        except Exception as error:  # noqa: BLE001 - its errors share no base, and none of them may end a training
            self.failed = True
            # Its text is from outside: a line of it, without control characters.
            reason = f"{type(error).__name__}: {str(error)[:200]!a}"
            _log.warning("Weights & Biases failed (%s). The run continues; its own records have all metrics", reason)

    def _begin(self, project: str, run: str, folder: Path) -> None:
        import wandb

        settings = wandb.Settings(
            console="off",
            silent=True,
            symlink=False,
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        self._run = wandb.init(project=project, id=run, name=run, dir=str(folder), resume="allow", settings=settings)
        # A resumed run does steps again, and wandb's own count of steps only rises.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")


def _plain(name: str) -> str:
    """The name with `_` in place of all but letters, digits and - . / _."""
    return re.sub(r"[^A-Za-z0-9_./-]", "_", name)
