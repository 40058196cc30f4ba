"""An instance process without its engine: the llumlet, its requests and its moves."""
