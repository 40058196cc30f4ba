"""One file per subject: it makes rows of text from what is known."""
