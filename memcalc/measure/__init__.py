"""Real runs: a child process trains, its parent keeps what it measured."""
