"""Models, inputs and training loops: the same code for the simulated and the real device."""
