"""Tool calls as models write them, and the cleaning of untrusted text."""
