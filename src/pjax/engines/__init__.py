"""What moves a state: consensus, edges, soft sweeps."""
