"""The settings of a cluster: tables, bounds, what may be changed live, and how a wrong value is
described."""
