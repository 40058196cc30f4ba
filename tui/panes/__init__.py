"""One file per pane: it makes rows of text from what is known."""
