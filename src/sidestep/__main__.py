"""`python -m sidestep` is the command `sidestep`."""

from sidestep.cli.main import app

if __name__ == "__main__":
    app()
