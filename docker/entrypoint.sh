#!/bin/sh
# The server's first process: it keeps keys out of the log, then `hiqcache serve` takes over.
set -eu

# SGLang 0.5.23 logs all its arguments, the key among them. This leaves out the logger that does.
case " $* " in
*" --api-key"* | *" --admin-api-key"*)
    : "${SGLANG_LOGGING_CONFIG_PATH:=/opt/hiqcache/logging.json}"
    export SGLANG_LOGGING_CONFIG_PATH
    ;;
esac

exec hiqcache serve -- "$@"
