"""May a probe be placed here, and how: verdicts that name their rule."""
