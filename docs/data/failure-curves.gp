series = '"dense" "4 experts" "16 experts" "64 experts" "16 experts 10 % lost" "16 experts 0 ms"'
n = words(series)
eval picture(2, 400)
set yrange [54:88]
eval panel(1, 2)
set title 'test pictures right (%)'
set xlabel 'samples'
set xrange [3500:41500]
plot for [k = 1:n] csv \
    using (beside(of(word(series, k), 'samples'), k, n, 260)):'right_pct':'right_pct_ci95' \
    with yerrorlines ls k title word(series, k)
eval panel(2, 2)
set xlabel 'virtual seconds'
set logscale x
set xrange [8:4000]
plot for [k = 1:n] csv \
    using (times(of(word(series, k), 'time_s'), k, n, 1.02)):'right_pct':'right_pct_ci95' \
    with yerrorlines ls k
