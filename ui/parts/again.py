"""A stored backtest again with something changed: variants of a team, or other teams on the same window."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from backend.builders.strategies import named_strategies
from backend.builders.variants import ABLATIONS, LEAKAGE, VARIANTS, Variant
from backend.config.schema import SCRIPTED
from backend.jobs.commands import request_command
from backend.models.manifest import MANIFEST, SAMPLE_TEAM
from backend.reporting.labels import title_of
from backend.runs.requests import RUNS, BacktestRequest
from backend.runs.stored_setup import stored_setup
from backend.store.records import RunRecord
from simulator.errors import UserError
from ui.access import escape_markdown, job_queue, open_store, store_name

_MEANINGS = {
    "without": "It is not there; the manager has its tools itself. Worse without it: it was worth something.",
    "scripted": "Rules answer in its place. As good with rules: the model has learned no more than they say.",
    "no_veto": "RiskAnalyst is asked, and its verdict caps nothing. Better so: the verdicts cost money here.",
    "unmasked": "The team reads the real names and dates. Better so: it may remember what happened.",
    "shuffled_news": "Each headline's words at another headline's time. As good so: it did not read the news.",
    "shuffled_days": "The window's days in another order, with their news. As good on the real days only: it may "
    "remember them, or trade trends of several days.",
    "altered_future": "At each decision everything later is other data; orders fill at the real prices. Other than "
    "before: it reads the future. Rules do the same to the bit; a sampled model of a provider does not.",
}


def known_teams() -> Sequence[str]:
    """What can be named as a team: the scripted one, the shipped one, folders under `runs/` that hold one, the newest
    first, and strategies."""
    found = sorted(RUNS.glob(f"**/{MANIFEST}"), key=lambda path: path.stat().st_mtime, reverse=True)
    return [SCRIPTED, SAMPLE_TEAM, *(str(path.parent) for path in found), *named_strategies()]


def offer_again(run: RunRecord) -> None:
    """Play the run again beside variants of its teams, or with other teams; the result is a run of its own, with the
    differences and their intervals."""
    with st.expander("Play it again, with something changed", icon=":material/science:"):
        st.caption(
            "On the same bars, at the same costs. The first team is compared with all others: with and without a part "
            "of it, on altered data, or with other teams and models (model=NAME, module:Class)."
        )
        try:
            with open_store() as store:
                setup = stored_setup(store, run.run)
        except UserError as error:  # such as a record that does not have all that it takes
            st.caption(escape_markdown(f"This run cannot be played again: {error}"))
            return
        with st.form(f"again {run.run}"):
            teams = st.multiselect(
                "Teams and strategies", list(dict.fromkeys([*setup.teams, *known_teams()])),
                default=list(setup.teams[:1]), format_func=title_of, accept_new_options=True, key=f"teams {run.run}",
            )  # fmt: skip
            left, right = st.columns(2)
            left.markdown("**What is a part worth?**")
            right.markdown("**Does it know more than it is shown?**")
            ticked = {
                text: (left if text in ABLATIONS else right).checkbox(
                    _label(text), key=f"{text} {run.run}", help=_MEANINGS[Variant.parse(text).kind]
                )
                for text in (*ABLATIONS, *LEAKAGE)
            }
            submitted = st.form_submit_button("Play again", type="primary", icon=":material/play_arrow:")
        if submitted:
            variants = tuple(text for text in VARIANTS if ticked[text])
            if len(teams) + len(variants) < 2:
                raise UserError("there is nothing to compare: choose another team, or tick a variant")
            request = BacktestRequest(like=run.run, teams=tuple(teams), variants=variants)
            request.check()
            command = request_command(("backtest",), request, store=store_name(), runs=str(RUNS))
            job = job_queue().submit(command)
            st.switch_page("views/new_backtest.py", query_params={"job": job.name})


def _label(text: str) -> str:
    """A variant in words."""
    words = Variant.parse(text).suffix.removeprefix(", ")
    return words[:1].upper() + words[1:]
