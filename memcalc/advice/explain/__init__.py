"""What is alive at the peak, why, and what each remedy buys: every figure from a full estimate."""
