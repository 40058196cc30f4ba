"""The composition root: the only package of the controller that imports all others."""
