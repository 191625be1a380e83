"""Value types and index arithmetic: the ground floor, which imports nothing above it."""
