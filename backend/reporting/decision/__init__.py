"""One decision as pictures: the delegation as a graph, all decisions on a line of time."""
