"""`python -m cryptosentinel`: the command line. It is two layers above, so it is imported by its name."""

from importlib import import_module


def program() -> None:
    """Run the command line, as `cryptosentinel` does."""
    import_module("backend.cli.main").program()


if __name__ == "__main__":
    program()
