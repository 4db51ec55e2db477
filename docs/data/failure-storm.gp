series = '"calm" "hosts replaced" "calls lost" "hosts slow" "all three" "all three and experts gone"'
n = words(series)
eval picture(2, 420)
eval panel(1, 2)
set title 'test pictures right (%)'
set xlabel 'updates'
set xrange [120:1570]
set yrange [52:80]
plot for [k = 1:n] csv \
    using (beside(of(word(series, k), 'updates'), k, n, 11)):'right_pct':'right_pct_ci95' \
    with yerrorlines ls k title word(series, k)
eval panel(2, 2)
set xlabel 'virtual seconds'
set xrange [200:2100]
plot for [k = 1:n] csv \
    using (beside(of(word(series, k), 'time_s'), k, n, 14)):'right_pct':'right_pct_ci95' \
    with yerrorlines ls k
