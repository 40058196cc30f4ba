"""Programs for the work on llumctl; nothing that runs in a cluster imports them."""
