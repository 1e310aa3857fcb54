"""Equal nodes that project together, as one."""
