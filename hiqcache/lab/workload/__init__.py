"""What servers are asked: documents, prompts and traces."""
