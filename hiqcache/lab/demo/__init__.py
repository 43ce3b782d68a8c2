"""The demo: BF16 beside INT8 on a real server, real documents, one command."""
