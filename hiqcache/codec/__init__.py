"""How a KV row becomes a record and back: layouts, codecs, their bound and their vectors.

`record` is torch-free and this file imports nothing, so that code which only needs record
sizes stays light; import a codec with `from hiqcache.codec.registry import get_codec`.
"""
