"""Where a process of a run finds the files of the run."""
