"""Records to text: blocks of words and figures, and the formats they are written in."""
