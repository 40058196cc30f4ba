"""One command per file; each imports what it needs when it runs, so that help stays fast."""
