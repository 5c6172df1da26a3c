"""The page, which `cryptosentinel ui` serves (`ui/server.py`). Each entry of the menu is a file in `ui/views`."""

import os

import streamlit as st

from backend.errors import FOLDER_GONE
from ui.access import mistakes_explained

st.set_page_config(page_title="CryptoSentinel", page_icon="🛰️", layout="wide")
page = st.navigation(
    [
        st.Page("views/runs.py", title="Runs", icon=":material/history:", default=True),
        st.Page("views/new_backtest.py", title="New backtest", icon=":material/play_arrow:"),
        st.Page("views/training.py", title="Training", icon=":material/model_training:"),
        st.Page("views/data.py", title="Data", icon=":material/database:"),
        st.Page("views/experiments.py", title="Experiments", icon=":material/biotech:"),
        st.Page("views/paper.py", title="Paper", icon=":material/monitoring:"),
        st.Page("views/jobs.py", title="Jobs", icon=":material/list_alt:"),
    ]
)
try:
    os.getcwd()
except FileNotFoundError:
    st.error(f"Of the page: {FOLDER_GONE}")
    st.stop()
with mistakes_explained():  # such as a page whose extra is not installed
    page.run()
