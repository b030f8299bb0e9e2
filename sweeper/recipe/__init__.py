"""What a recipe is, and asking its interpreter."""
