"""An instance process, without its engine: the llumlet and what it serves."""
