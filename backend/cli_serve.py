"""The commands of `cryptosentinel serve`: processes that others work with."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from backend.console import console

_log = logging.getLogger(__name__)

serve_app = typer.Typer(
    help="The processes of a training apart: the store, the rollout workers, the trainers; and who is alive.",
    no_args_is_help=True,
)


@serve_app.callback()
def serve_command() -> None:
    """The processes of a training apart: the store, the rollout workers, the trainers; and who is alive."""


@serve_app.command("store")
def serve_store_command(
    path: Annotated[Path, typer.Option("--path", help="Folder of the store.")] = Path("runs/store"),
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; another than this machine's own needs credentials.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 for any that is free.")] = 8765,
) -> None:
    """Serve a store to several processes, which open it as ws://HOST:PORT. Ctrl-C or SIGTERM ends it.

    Clients must sign in with CRYPTOSENTINEL_STORE_USER and CRYPTOSENTINEL_STORE_PASSWORD where these are set in the
    environment.
    """
    from backend.services.logs import Place, json_lines
    from backend.store.gateway import serve_store

    listens = False

    def say(line: str) -> None:
        nonlocal listens
        if listens:
            _log.info(line)
            return
        # The first line says that it listens: not wrapped at the width of a terminal, and at once for who waits.
        listens = True
        console.print(line, soft_wrap=True, markup=False, highlight=False)
        console.file.flush()

    with json_lines(Place(service="store")):
        serve_store(path, host, port, say)
