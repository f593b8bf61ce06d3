"""What native handlers collect: maps that the target writes and Python reads."""
