"""The Streamlit pages. They read records and call the backend; they hold no logic of their own."""
