"""`python -m backend.cli`: the command line, also of the processes that a training starts."""

from backend.cli.main import program

if __name__ == "__main__":
    program()
