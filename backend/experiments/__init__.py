"""Experiments: arms × seeds × windows from one file, with the test chosen before the run."""
