"""Ways to train a model on a GPU: each made to fit, really estimated, and ranked by its cost."""
