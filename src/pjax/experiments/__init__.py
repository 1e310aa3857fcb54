"""Experiments: data sets, the paper's networks and baselines, training, comparisons, reports."""
