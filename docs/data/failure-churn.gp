series = '"told" "half silent" "silent"'
names = '"deaths announced" "half of them" "silent deaths"'
n = words(series)
x(k) = times(of(word(series, k), 'replaced_pct'), k, n, 1.03)
eval picture(2, 380)
set xlabel 'peers replaced in a minute (%)'
set logscale x
set xrange [0.85:118]
set xtics (1, 3, 10, 30, 100)
eval panel(1, 2)
set title 'calls answered (%)'
set yrange [50:100]
plot for [k = 1:n] csv using (x(k)):'goodput_pct':'goodput_pct_ci95' with yerrorlines ls k \
    title word(names, k)
eval panel(2, 2)
set title 'until a dead host is forgotten (s)'
set yrange [0:40]
plot for [k = 1:n] csv using (x(k)):'forget_s':'forget_s_ci95' with yerrorlines ls k
