"""The arena: several teams and strategies on the same window at the same costs, with the price of their thinking."""

from __future__ import annotations

import streamlit as st

from backend.reporting.labels import title_of
from backend.runs.requests import BacktestRequest
from backend.runs.stored_setup import StoredSetup
from simulator.errors import UserError
from ui.access import mistakes_explained
from ui.parts.again import choose_backtest, hand_over, known_teams, show_again

_MOST = 8


def _page() -> None:
    st.title("Arena")
    st.caption("Teams and strategies on the same bars at the same costs. Each is compared with the first.")
    with mistakes_explained():
        setup = choose_backtest("arena run")
        if setup is not None:
            _ask(setup)
    show_again("arena", "--like")


def _ask(setup: StoredSetup) -> None:
    offered = list(dict.fromkeys([*setup.teams, *known_teams()]))
    with st.form("arena"):
        teams = st.multiselect(
            "Who competes", offered, default=offered[:2], format_func=title_of, accept_new_options=True,
            max_selections=_MOST, help="The folder of a team, a cassette, a strategy, or your own as module:Class.",
        )  # fmt: skip
        submitted = st.form_submit_button("Run", type="primary", icon=":material/trophy:")
    if submitted:
        if len(teams) < 2:
            raise UserError("a comparison needs two: choose another team or strategy")
        hand_over(BacktestRequest(like=setup.run.run, teams=tuple(teams)))


_page()
