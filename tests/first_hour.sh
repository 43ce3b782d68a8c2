#!/bin/bash
# The README as a stranger walks it, from a clean clone: install, demo, serve, one request, the proof
# that L2 answered, the sidecar's page, doctor, and eight ways to end a server. Every command is
# taken from the README, from the blocks behind `<!-- first hour: NAME -->`. Part of `make test-all`.
#
#   tests/first_hour.sh [VENV]     an environment to borrow the packages of, instead of 11 GB anew
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
borrowed=${1:+$(cd "$1" && pwd)}
work=$(mktemp -d)
background=()
finish() {
    code=$?
    for pid in "${background[@]}"; do kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null; done
    [ $code = 0 ] && rm -rf "$work" || echo "first_hour: failed, see $work" >&2
    exit $code
}
trap finish EXIT

say() { echo "first_hour: $*"; }
block() {  # NAME: the README's commands
    awk -v mark="<!-- first hour: $1 -->" \
        '$0 == mark { found = 1; next } found && /^```/ { if (inside) exit; inside = 1; next }
         inside { print; lines++ } END { exit !lines }' README.md
}
wait_for() {  # WORDS FILE PID: until the file holds the words, while the process lives
    until grep -q "$1" "$2"; do
        kill -0 "$3" 2>/dev/null || { tail -n 20 "$2" >&2; say "ended before '$1'" >&2; return 1; }
        sleep 0.5
    done
}

git clone --quiet "$here" "$work/hiqcache"
cd "$work/hiqcache"
unset PYTHONPATH VIRTUAL_ENV "${!HIQCACHE_@}" "${!SGLANG_@}"
if [ -n "$borrowed" ]; then
    "$borrowed/bin/python" -m venv .venv
    echo "$("$borrowed/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
        > "$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/borrowed.pth"
    .venv/bin/python -m pip install --quiet --no-deps --editable .
    touch .venv/installed
fi

say "demo"
bash -ec "$(block demo)"
begin=$SECONDS

block serve > "$work/serve.sh"
say "serve"
bash -e "$work/serve.sh" > "$work/serve.log" 2>&1 &
server=$!
background+=("$server")
wait_for "The server is fired up" "$work/serve.log" "$server"
grep -q "HiQCache: codec=int8" "$work/serve.log"

say "hello"
bash -ec "$(block hello)" | tee "$work/hello.json"
grep -q '"content":' "$work/hello.json"

say "proof"
bash -ec "$(block proof)" | tee "$work/proof"
line=$(tail -n 1 "$work/proof")
say "L2 answered $((SECONDS - begin)) s after the demo's end"
grep -qF "$line" README.md || { say "the README shows another line than $line" >&2; exit 1; }

say "sidecar"
(. .venv/bin/activate; eval "exec $(block sidecar)") > "$work/sidecar.log" 2>&1 &
background+=($!)
until curl --silent --fail localhost:9464/healthz > /dev/null; do kill -0 $!; sleep 0.5; done
curl --silent --fail localhost:9464/ | grep -qi "<title>"
curl --silent --fail localhost:9464/api/v1/summary > "$work/summary.json"
curl --silent --fail localhost:9464/metrics | grep -q "^hiqcache_up.* 1.0"
kill $!; wait $! || true

say "stop"
# The shell that runs the block waits for `hiqcache serve`, its child.
kill -TERM $(pgrep -P "$server")
wait "$server" && code=0 || code=$?
background=()
[ $code = 143 ] || { say "SIGTERM gave code $code" >&2; exit 1; }
tail -n 1 "$work/serve.log" | grep "^hiqcache: SIGTERM"

say "doctor"
# The arguments of `serve` are doctor's too.
sed 's/hiqcache serve/hiqcache doctor/' "$work/serve.sh" > "$work/doctor.sh"
bash -e "$work/doctor.sh"

for how in ctrl-c TERM HUP close; do
    for mark in "Load weight begin" "The server is fired up"; do
        say "$how at '$mark'"
        .venv/bin/python "$here/tests/terminal.py" "$work/serve.sh" "$mark" "$how"
    done
done
say "passed"
