# tools/demo.gnuplot: draws loss and accuracy over time beside the control's result, with the kill marked.
# Variables: out, data.
set terminal pngcairo size 1100,800 font "DejaVu Sans,11"
set output out."/curve.png"
load out."/marks.gp"
fashion = (data eq "fashion")
set multiplot
set xrange [0:*]
set lmargin 10
set rmargin 10
set origin 0, 0.3
set size 1, 0.7
set title (fashion ? "Fashion-MNIST on a swarm of 4 hosts and 2 trainers" \
                   : "King James Bible on a swarm of 4 hosts and 2 trainers")
set ylabel (fashion ? "training loss (cross-entropy)" : "training loss (nats per byte)")
set y2label (fashion ? "test accuracy (%)" : "test bits per byte")
set ytics nomirror
set y2tics
set grid xtics ytics lc rgb "#dddddd"
set key outside top center horizontal
set bmargin 2
# Words stand half-way up, where the loss is below them and the test above; over lines all the same.
set style textbox opaque noborder
if (kill >= 0) {
    set arrow from first kill, graph 0 to first kill, graph 1 nohead lc rgb "#c0392b" lw 2 dt 2
    set label "host 2 killed" at first kill, graph 0.56 offset 0.7,0 front boxed tc rgb "#c0392b"
}
if (back >= 0) {
    set arrow from first back, graph 0 to first back, graph 1 nohead lc rgb "#27ae60" lw 2 dt 2
    set label "host 2 back" at first back, graph 0.5 offset 0.7,0 front boxed tc rgb "#27ae60"
}
plot out."/curve-1.dat" using 1:2 with lines lw 1.5 lc rgb "#2980b9" title "loss, trainer 1", \
     out."/curve-2.dat" using 1:2 with lines lw 1.5 lc rgb "#85c1e9" title "loss, trainer 2", \
     out."/eval-1.dat" using 1:2 axes x1y2 with linespoints pt 7 lc rgb "#d35400" title "test, trainer 1", \
     out."/eval-2.dat" using 1:2 axes x1y2 with linespoints pt 7 lc rgb "#f0b27a" title "test, trainer 2", \
     control axes x1y2 with lines lw 2 dt 3 lc rgb "#555555" title "control: no experts, same steps, at its end"

# Below: the distance of the two trainers' shared layers at the same times.
set xrange [0:GPVAL_X_MAX]
set origin 0, 0
set size 1, 0.3
set bmargin 4
set tmargin 1
unset title
unset label
unset y2label
unset y2tics
set xlabel "seconds since the trainers started"
set ylabel "trainers apart (%)"
set yrange [0:*]
plot out."/apart.dat" using 1:2 with lines lw 1.5 lc rgb "#8e44ad" notitle
unset multiplot
