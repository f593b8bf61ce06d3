"""What is specific to an instruction set: one folder (or table) for each."""
