"""What the commands share beside options and the console: the list of commands, progress, signals."""
