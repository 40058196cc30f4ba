"""What a cluster over several machines needs: the nodes of a Ray are asked, and judged."""
