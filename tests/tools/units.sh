#!/bin/sh
# units.sh ROOT: the systemd units restart on the exit codes that mean "later", end by draining, and
# are valid where systemd-analyze is installed.
set -eu
cd "$1"
bad=0
say() { echo "units: $1" >&2; bad=1; }

code() { sed -n "s/^ *HTH_EXIT_$1 = \([0-9]*\),$/\1/p" cli/cli.h; }
later="RestartForceExitStatus=$(code NETWORK) $(code AGAIN)"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for unit in contrib/systemd/*.service; do
    for line in "$later" Restart=on-abnormal KillSignal=SIGTERM; do
        grep -qx "$line" "$unit" || say "$unit lacks $line"
    done
    # The program need not be installed where the tests run, nor is there an instance's file.
    sed 's,/usr/local/bin/hearth,/bin/true,' "$unit" >"$dir/hearth-test@.service"
    case $unit in *user*) manager=--user ;; *) manager=--system ;; esac
    if command -v systemd-analyze >/dev/null; then
        XDG_RUNTIME_DIR=$dir systemd-analyze "$manager" verify "$dir/hearth-test@.service" >"$dir/said" 2>&1 ||
            say "$unit: $(cat "$dir/said")"
        ! grep -q "hearth-test@.*Unknown\|hearth-test@.*Failed to parse\|hearth-test@.*ignoring" "$dir/said" ||
            say "$unit: $(cat "$dir/said")"
    fi
done
exit $bad
