"""The entry point that SGLang calls in every process before it builds anything.

SGLang swallows whatever a plugin raises and goes on without it, which would leave a plain
BF16 server where an encoded L2 was asked for. So this module imports nothing at its top that
could fail, and `register` turns every failure into `SystemExit`, which is not an `Exception`
and gets through.
"""


def register() -> None:
    """Read the configuration and, unless HiQCache is off, hook the host pool into SGLang.

    Raises
    ------
    SystemExit
        An encoded L2 was asked for and cannot be given; the reason is on stderr.
    """
    from multiprocessing import parent_process

    from hiqcache.engine.stop import end_if_orphaned, fail_closed, warn

    end_if_orphaned()
    with fail_closed(every_exception=True):
        from hiqcache.config import Config, passed_over

        config = Config.from_env()
        # SGLang loads plugins in every process that it starts; the first one says it for all.
        if parent_process() is None and (sentence := passed_over()):
            warn(sentence)
        if not config.enabled:
            return
        from hiqcache.engine.hooks import install

        install(config)
