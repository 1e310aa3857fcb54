"""Kernels written for NVIDIA GPUs, each a faster form of what plain JAX does elsewhere."""
