"""A running Linux process as a target: stopping it, its memory, system calls inside it, areas of ours in
it."""
