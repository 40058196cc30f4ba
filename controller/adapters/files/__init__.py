"""What the controller keeps on disk."""
