# Vertical lines: a host is killed half-way and starts again later. Horizontal: the same model without
# experts after as many steps of as many samples.
at(event) = strcol('series') eq event ? column('seconds') : NaN
stats csv using (at('killed')) name 'killed' nooutput
stats csv using (at('back')) name 'back' nooutput
stats csv using (of('control', 'right_pct')) name 'control' nooutput
mark(x, colour) = sprintf('set arrow from first %f, graph 0 to first %f, graph 1 nohead lw 1.6 dt 2 lc rgb "%s"', x, x, colour)
eval mark(killed_max, word(colours, 1))
eval mark(back_max, word(colours, 3))
eval picture(2, 380)
set xlabel 'seconds since the trainers started'
set xrange [0:*]
eval panel(1, 2)
set title 'training loss'
set yrange [0:*]
plot for [k = 1:2] csv using (of('trainer '.k, 'seconds')):'loss' with lines lw 1.3 \
        lc rgb word('#2980b9 #7fb3d5', k) notitle, \
    for [k = 1:2] NaN with linespoints ls k lc rgb word('#2980b9 #7fb3d5', k) title 'trainer '.k, \
    NaN with lines lw 1.6 dt 2 lc rgb word(colours, 1) title 'host 2 of 4 is killed', \
    NaN with lines lw 1.6 dt 2 lc rgb word(colours, 3) title 'host 2 is back', \
    NaN with lines lw 1.6 dt 4 lc rgb word(colours, 6) title 'without experts, at the end'
eval panel(2, 2)
set title 'test pictures right (%)'
set yrange [*:*]
plot for [k = 1:2] csv using (of('trainer '.k, 'seconds')):'right_pct' with linespoints ls k \
    lc rgb word('#2980b9 #7fb3d5', k), \
    control_max with lines lw 1.6 dt 4 lc rgb word(colours, 6)
