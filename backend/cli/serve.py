"""`cryptosentinel ui`: the page."""

from __future__ import annotations

import os
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from secrets import token_urlsafe
from typing import Annotated

import typer

from backend.cli.console import console
from backend.runs.requests import STORE
from simulator.errors import UserError

TOKEN_VARIABLE = "CRYPTOSENTINEL_UI_TOKEN"
_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,200}")  # what an address may hold as it is


def page(
    host: Annotated[str, typer.Option("--host", help="Address to answer at.")] = "localhost",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port of the page.")] = 8501,
    token: Annotated[
        bool,
        typer.Option(
            "--token/--no-token",
            help=f"Ask for a token: that of {TOKEN_VARIABLE}, else a new one. Without it, anyone who reaches the port "
            "can run programs as you.",
        ),
    ] = True,
    allow_plugins: Annotated[
        bool,
        typer.Option("--allow-plugins", help="Let the page import your own modules that a field names: module:NAME."),
    ] = False,
) -> None:
    """Show the page of runs and backtests in a browser. It reads the stores of the current folder.

    It prints the address with a token, without which nothing is shown. Where there is no store yet, it begins with the
    finished run that comes with the program.
    """
    from backend.config.plugins import refuse_own_modules

    server = "ui.server"
    if find_spec("streamlit") is None or find_spec(server) is None:
        raise UserError('the page needs Streamlit: pip install "cryptosentinel[ui]"')
    given = os.environ.pop(TOKEN_VARIABLE, "")  # what the page starts need not know it
    if token and given and not _TOKEN.fullmatch(given):
        raise UserError(f"{TOKEN_VARIABLE} must have at least 16 letters, digits, '-' and '_': choose another")
    refuse_own_modules(not allow_plugins)
    if not Path(STORE).exists() and not os.environ.get("CRYPTOSENTINEL_STORE"):
        _begin_with_sample()
    console.print("the page gets ready: some seconds", soft_wrap=True)
    key = (given or token_urlsafe(24)) if token else ""
    shown = f"?token={f'${TOKEN_VARIABLE}' if given else key}" if token else ""
    everywhere = host in ("0.0.0.0", "::")
    name = "localhost" if everywhere else f"[{host}]" if ":" in host else host
    import_module(server).serve(
        host, port, key, lambda: console.print(f"the page is at http://{name}:{port}/{shown}", soft_wrap=True)
    )


def _begin_with_sample() -> None:
    """The finished run that comes with the program, in a new store of the current folder. Without it the page opens
    all the same."""
    from backend.runs.sample_run import add_sample_run, has_sample_run
    from backend.store.store import Store

    if has_sample_run():
        try:
            with Store.open(STORE) as store:
                console.print(f"{STORE} is new: it begins with the run {add_sample_run(store)}", soft_wrap=True)
        except UserError as error:
            console.print(f"note: the finished run cannot be opened: {error}", soft_wrap=True)
