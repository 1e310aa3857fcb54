"""Drawing, summaries and profiles."""
