"""How sure a number is: intervals, tests, and corrections for what was tried. Pure functions of arrays."""
