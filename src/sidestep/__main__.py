"""`python -m sidestep` is the command `sidestep`."""

from sidestep.cli.entry import main

if __name__ == "__main__":
    main()
