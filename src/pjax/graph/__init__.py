"""The graph of a function: nodes, wires, and how they are read, coloured and stacked."""
