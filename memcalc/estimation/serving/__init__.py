"""Memory that serving engines reserve: by the engine itself, or by its rules."""
