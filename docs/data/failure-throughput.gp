series = '"asynchronous" "deep pipeline" "pipelined" "model-parallel"'
n = words(series)
x(k) = beside(of(word(series, k), 'down_pct'), k, n, 0.25)
eval picture(2, 380)
set xlabel 'hosts down (%)'
set xrange [-2:32]
eval panel(1, 2)
set title 'useful samples per virtual second, calls of 100 ms'
set logscale y
set yrange [10:2000]
plot for [k = 1:n] csv using (x(k)):'useful_per_s':'useful_per_s_ci95' with yerrorlines ls k \
    title word(series, k)
eval panel(2, 2)
set title 'answers lost (%)'
unset logscale y
set yrange [0:27]
plot for [k = 1:n] csv using (x(k)):'lost_pct':'lost_pct_ci95' with yerrorlines ls k
