"""Ways to move rows between device buffers and L2 records, and the registry that names them."""
