"""The tests, and what they share with benchmarks: graphs, the engine of the oracle, pages, a server."""
