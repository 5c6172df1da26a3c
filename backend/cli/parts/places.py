"""The options that say where runs lie, for commands that need no configuration, whose schema takes its time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

_SHOWN: Any = {"rich_help_panel": "Advanced", "show_default": False}
StoreOption = Annotated[
    str,
    typer.Option("--store", help="Folder of the store (runs/store), or ws:// of a server.", metavar="TEXT", **_SHOWN),
]
RunsOption = Annotated[
    Path, typer.Option("--runs", help="Folder that holds a folder for each run (runs).", metavar="TEXT", **_SHOWN)
]
