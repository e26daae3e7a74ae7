"""What a run on symbols is made of."""
