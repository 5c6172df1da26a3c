"""K decisions of the team on each state, scored."""
