"""Start a real SGLang server, wait for it, ask it, read its counters, stop it."""
