"""The dashboard in a browser: who may see it, the page, and a process for each session."""
