"""HiQCache inside SGLang: the only room that imports `sglang`."""
