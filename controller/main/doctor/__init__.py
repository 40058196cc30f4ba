"""`llumctl doctor` finds what would keep a cluster from starting on this machine."""
