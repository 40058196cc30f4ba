"""Orders of operators: one row each (`order`), all of them in one table (`table`)."""
