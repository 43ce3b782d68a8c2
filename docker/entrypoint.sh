#!/bin/sh
# The server's first process: what is cheap to check, then SGLang in the same process.
set -eu

if [ "${SGLANG_PLATFORM:-}" = hiqcache_cpu ]; then
    # shellcheck disable=SC2046  # one word an argument, none holds a blank
    set -- $(python3 -c 'from hiqcache.cpu_server import CPU_ARGUMENTS; print(*CPU_ARGUMENTS)') "$@"
fi

# SGLang 0.5.23 logs all its arguments, the key among them. This leaves out the logger that does.
case " $* " in
*" --api-key"* | *" --admin-api-key"*)
    : "${SGLANG_LOGGING_CONFIG_PATH:=/opt/hiqcache/logging.json}"
    export SGLANG_LOGGING_CONFIG_PATH
    ;;
esac

hiqcache doctor --quick -- "$@"
exec hiqcache serve -- "$@"
