"""HiQCache: an INT8 host tier for SGLang's hierarchical KV cache."""

__version__ = "0.1.0"
