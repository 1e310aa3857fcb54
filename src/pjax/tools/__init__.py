"""Drawing, summaries and profiles; files."""
