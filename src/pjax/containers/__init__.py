"""Computations that users build and look at by hand."""
