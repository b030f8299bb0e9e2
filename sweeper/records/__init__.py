"""What runs have recorded, as plain values and tables."""
