"""What holds for all tests."""

from hypothesis import settings

# How long an example takes is the machine's affair: no test fails by the clock.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
