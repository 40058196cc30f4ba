"""One file per pane: from what is known to rows of text."""
