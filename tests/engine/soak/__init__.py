"""A long run of mixed traffic under eviction pressure: `make soak`, and two minutes of it in CI."""
