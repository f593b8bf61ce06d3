"""The Python subset of native handlers: front end, intermediate representation, interpreter, machine code."""
