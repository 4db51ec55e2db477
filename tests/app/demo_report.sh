#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# demo_report.sh: tests tools/demo.awk. Each case is an invented demo of two trainers and a control; the report
# must end with the expected code and name the reason.
set -eu
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# trainer FILE ACCURACY BITS LOST NOT_FINITE: writes 40 s of progress and an evaluation
trainer()
{
    t=100
    : >"$out/$1"
    while [ $t -le 140 ]; do
        printf '{"kind":"progress","t":%d,"samples":%d,"loss":1,"gap_ms":5,"calls":9,"calls_failed":0,' \
            $t $(((t - 100) * 100)) >>"$out/$1"
        printf '"calls_retried":0,"bytes":9,"rows_mixed":%d,"rows_lost":%d,"not_finite":%d,' \
            $(((t - 100) * 200)) "$4" "$5" >>"$out/$1"
        printf '"rounds":20,"rounds_failed":0,"distance":0.01}\n' >>"$out/$1"
        t=$((t + 1))
    done
    printf '{"kind":"eval","t":141,"samples":1000,"loss":1,"accuracy":%s,"bits_per_byte":%s}\n' "$2" "$3" \
        >>"$out/$1"
}

# control SAMPLES ACCURACY BITS: writes the control's metrics
control()
{
    printf '{"kind":"progress","t":110,"samples":%d,"rows_mixed":0,"rows_lost":0}\n' "$1" >"$out/control"
    printf '{"kind":"eval","t":111,"samples":1000,"loss":1,"accuracy":%s,"bits_per_byte":%s}\n' "$2" "$3" \
        >>"$out/control"
}

# expect CODE DATA WORDS: runs the report and compares its exit code and its text
expect()
{
    code=0
    awk -v data="$2" -v killed=120 -v restarted=130 -v out="$out" -v control="$out/control" \
        -f tools/demo.awk "$out/one" "$out/two" "$out/control" >"$out/report" || code=$?
    if [ "$code" != "$1" ] || ! grep -qF "$3" "$out/report"; then
        echo "exit code $code, expected $1 with '$3' in:" >&2
        cat "$out/report" >&2
        exit 1
    fi
}

trainer one 0.80 2.2 0 0
trainer two 0.79 2.3 0 0
control 8000 0.72 2.9
expect 0 fashion "errs 0.750 times as often as the control (must be at most 0.75)"
expect 0 text "save 0.600 bits per byte"
control 8000 0.7201 2.369
expect 1 fashion "FAILED             the swarm is hardly better than shared layers without experts"
expect 1 text "FAILED             the swarm is hardly better than shared layers without experts"
control 7999 0.5 2.9
expect 1 fashion "FAILED             the control saw 7999 samples"
: >"$out/control"
expect 1 fashion "FAILED             the control saw 0 samples"

control 8000 0.1 2.9
trainer two 0.74 2.61 0 0
expect 1 fashion "FAILED             the swarm learned too little: at least 75 %"
expect 1 text "FAILED             the swarm learned too little: at most 2.6 bits"

control 8000 0.6 2.9
trainer two 0.79 2.3 159 0
expect 0 fashion "159 of 16000 (0.99 %) had no expert left"
trainer two 0.79 2.3 160 0
expect 1 fashion "FAILED             too many rows had no expert"
trainer two 0.79 2.3 0 1
expect 1 fashion "FAILED             rows became NaN"
