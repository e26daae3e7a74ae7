"""The table of remedies, by cost: free, slower, lower precision, adapters."""
