"""Edges, and the projections that act on them.

The edges that enter an operation belong to it alone, so a state of the whole graph is one object per
operation. There are three kinds:

- `Stored`: every edge is a number. This is the definition.
- `Split`: the edges of a contraction as the values of its sources plus a number per edge.
- `Factored`: the edges of a contraction as the values of its sources plus a short history.

All are displacements from the forward evaluation. `EdgeSpace` projects whole states of them.
"""
