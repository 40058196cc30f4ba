"""The control API: operators' HTTP listener of the controller."""
