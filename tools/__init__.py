"""What looks at the repository itself: `python -m tools.walk`. Not part of the package."""
