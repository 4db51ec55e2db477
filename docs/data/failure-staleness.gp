series = '"dense" "4 experts" "16 experts" "64 experts"'
n = words(series)
eval picture(1, 400)
eval panel(1, 1)
set title 'test pictures right (%), 1000 ms, after 2500 updates'
set xlabel 'micro-batches in flight'
set logscale x 2
set xrange [3.4:76]
plot for [k = 1:n] csv \
    using (times(of(word(series, k), 'flights'), k, n, 1.025)):'right_pct':'right_pct_ci95' \
    with yerrorlines ls k title word(series, k)
