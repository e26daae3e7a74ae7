"""Files: results, traces, the cache of answers, and locks."""
