"""One file per subject, which makes rows of text from the dashboard's state."""
