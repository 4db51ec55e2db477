series = '"0 ms" "100 ms" "1000 ms"'
n = words(series)
x(k) = beside(of(word(series, k), 'fail_pct'), k, n, 0.4)
eval picture(2, 380)
set xlabel 'hosts down (%)'
set xrange [-2:53]
eval panel(1, 2)
set title 'test pictures right (%), after 1000 updates'
plot for [k = 1:n] csv using (x(k)):'right_pct':'right_pct_ci95' with yerrorlines ls k \
    title word(series, k)
eval panel(2, 2)
set title 'useful samples per virtual second'
set logscale y
plot for [k = 1:n] csv using (x(k)):'useful_per_s':'useful_per_s_ci95' with yerrorlines ls k
