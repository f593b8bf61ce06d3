"""Names and addresses: ELF files, their functions, the modules of a process, what a probepoint's name means.

Everything read here was written by somebody else: offsets are checked, counts are capped, a damaged table
is skipped.
"""
