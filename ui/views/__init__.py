"""The pages of the menu, a file each, and the view of a run that they share."""
