"""Commands that no serving process needs: load on an endpoint, simulated runs, paper figures."""
