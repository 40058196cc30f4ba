"""The control API: the controller's HTTP listener for operators."""
