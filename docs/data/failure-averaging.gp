failures = 'absent crash slow partition'
of(m, f, col) = strcol('model') eq m && strcol('failure') eq f ? column(col) : NaN
# 95 % intervals of 20 seeds, of the mean's logarithm: the axis is logarithmic
side(sign) = column('mse') * exp(sign * 2.09 * column('mse_se') / column('mse'))
eval picture(2, 420)
set logscale y
set format y '1e%T'
set yrange [1e-12:1]
set ytics 100
eval panel(1, 2)
set title 'squared distance to the true mean, by rounds'
set xlabel 'rounds'
set xrange [1:12]
set xtics 1
plot for [k = 1:4] csv using (of('protocol', word(failures, k), 'round')):(side(-1)):(side(1)) \
        with filledcurves fs transparent solid 0.2 noborder lc rgb word(colours, k) notitle, \
    for [k = 1:4] csv using (of('protocol', word(failures, k), 'round')):'mse' \
        with linespoints ls k title 'averager: '.word(failures, k), \
    for [k = 1:4] csv using (of('pure', word(failures, k), 'round')):'mse' \
        with lines ls k dt 2 title 'model: '.word(failures, k)
eval panel(2, 2)
set title 'by virtual seconds in rounds (averager)'
set xlabel 'seconds'
set xrange [0:36]
set xtics 6
spent(f) = strcol('model') eq 'protocol' && strcol('failure') eq f ? (s = s + column('seconds')) : NaN
plot for [k = 1:4] s = 0 csv using (spent(word(failures, k))):'mse' with linespoints ls k
