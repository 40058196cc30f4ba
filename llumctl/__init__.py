"""The command line. It imports `controller.api`, and `controller.main` only inside commands."""
