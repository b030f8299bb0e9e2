"""What runs recorded, as columns of numbers: parsed, merged, kept in a cache, asked with SQL."""
