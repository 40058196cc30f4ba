"""Load on an endpoint, simulated runs, and the paper's figures: what no serving process needs."""
