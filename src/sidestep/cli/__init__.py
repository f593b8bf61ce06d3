"""The command line: `main.py` has the application, every other module is one command or what they share.

Nothing heavy is imported before it is needed: a run of `sidestep count` shall count its first hit at once.
"""
