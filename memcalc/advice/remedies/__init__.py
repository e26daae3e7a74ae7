"""What can be changed about a plan to need less memory, what it costs, and what it buys."""
