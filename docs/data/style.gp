# The settings of all pictures. tools/figures sets `name` and loads this file, then NAME.gp, which plots
# NAME.csv. Columns are found by their names: those of a study's metrics.csv (docs/simulation.md).
csv = 'docs/data/'.name.'.csv'
set datafile separator ','
set datafile columnheaders
set datafile missing NaN
set grid lt 1 lw 1 lc rgb '#e0e0e0'
set tics nomirror scale 0.6,0
set border 3 lc rgb '#444444'
set key vertical maxrows 2 center Left reverse samplen 2 width 1
colours = '#c0392b #2980b9 #16a085 #8e44ad #d35400 #7f8c8d'
marks = '7 5 9 13 11 6'
do for [i = 1:6] {
    set style line i lw 1.6 ps 0.6 pt int(word(marks, i)) lc rgb word(colours, i)
}

# `eval picture(n, height)`: the size of a picture of n panels beside each other. `eval panel(i, n)`:
# the place of one of them; the key stands below all.
picture(n, height) = sprintf('set terminal svg size %d,%d noenhanced font "sans-serif,12" ' \
                             .'background "white"; set multiplot', n == 1 ? 640 : 960, height)
panel(i, n) = sprintf('set lmargin at screen %f; set rmargin at screen %f; ' \
                      .'set tmargin at screen 0.91; set bmargin at screen 0.27; %s', \
                      (i - 1.0) / n + (n == 1 ? 0.11 : 0.07), i * 1.0 / n - 0.02, \
                      i > 1 ? 'unset key' : 'set key at screen 0.5, 0.09')

# The value of a column in the rows of one series; elsewhere nothing.
of(series, col) = strcol('series') eq series ? column(col) : NaN
# Series k of n stands a little beside the others, so that their intervals can be told apart: `step`
# is a part of a linear axis, or a factor on a logarithmic one.
beside(x, k, n, step) = x + (k - (n + 1) / 2.0) * step
times(x, k, n, step) = x * step ** (k - (n + 1) / 2.0)
