"""The page: `streamlit run ui/app.py`. Each entry of the menu is a file in `ui/pages`."""

import streamlit as st

st.set_page_config(page_title="CryptoSentinel", page_icon="🛰️", layout="wide")
st.navigation(
    [
        st.Page("pages/runs.py", title="Runs", icon=":material/history:", default=True),
        st.Page("pages/new_backtest.py", title="New backtest", icon=":material/play_arrow:"),
    ]
).run()
