"""Records a user's training loop."""
