#!/bin/bash
# Server and sidecar in one container. The server's end is the container's end, with the server's
# exit code; a sidecar that ends is started again.
set -uo pipefail

/opt/hiqcache/entrypoint.sh "$@" &
server=$!

sidecar() {
    trap 'kill "$child" 2>/dev/null; exit' TERM
    while true; do
        hiqcache sidecar --host 0.0.0.0 --engine http://127.0.0.1:30000 &
        child=$!
        wait "$child"
        echo "The sidecar ended with code $?; it starts again in 5 s" >&2
        sleep 5
    done
}
sidecar &
sidecar=$!

stopped=
trap 'stopped=1; kill -TERM "$server" 2>/dev/null' TERM INT

wait "$server"
code=$?
# A signal ends `wait` before the server has ended.
while [ -n "$stopped" ] && kill -0 "$server" 2>/dev/null; do
    wait "$server"
    code=$?
done
kill "$sidecar" 2>/dev/null
# A server that nobody stopped and that ends, has failed, whatever code it gives.
if [ -z "$stopped" ] && [ "$code" -eq 0 ]; then
    code=1
fi
exit "$code"
