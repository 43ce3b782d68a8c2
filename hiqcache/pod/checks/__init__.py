"""What `hiqcache doctor` looks at, one module a subject; `docs/doctor.md` lists every check."""
