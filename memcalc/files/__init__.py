"""What is kept on disk: results, traces, the cache of answers, and locks."""
