"""The command line: one file a verb; nothing here computes."""
