"""What the tests that run processes share: building programs, running them, and reading their state."""
