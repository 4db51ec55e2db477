methods = 'allreduce gossip pushsum random moshpit'
names = '"all-reduce with restarts" "gossip on a ring" "push-sum, exponential graph" ' \
    .'"random groups" "Moshpit"'
of(m, col) = strcol('method') eq m ? column(col) : NaN
side(sign) = column('mse') * exp(sign * 1.97 * column('mse_se') / column('mse'))
eval picture(1, 440)
set key maxrows 3
set logscale y
set format y '1e%T'
set yrange [1e-16:1]
set ytics 100
eval panel(1, 1)
set title 'squared distance to the true mean: 1024 peers, 0.5 % absent from a round'
set xlabel 'rounds'
set xrange [1:12]
set xtics 1
plot for [k = 1:5] csv using (of(word(methods, k), 'round')):(side(-1)):(side(1)) \
        with filledcurves fs transparent solid 0.2 noborder lc rgb word(colours, k) notitle, \
    for [k = 1:5] csv using (of(word(methods, k), 'round')):'mse' with linespoints ls k \
        title word(names, k)
