eval picture(1, 380)
eval panel(1, 1)
set title 'test loss off the calm run at equal samples (%)'
set xlabel 'samples'
set xrange [0:135000]
set xtics 25600
set yrange [-2.5:2.5]
plot csv using (beside(of('churn', 'samples'), 1, 2, 900)):'off_pct':'off_pct_ci95' \
        with yerrorlines ls 1 title '2 die, 3 join', \
    csv using (beside(of('again', 'samples'), 2, 2, 900)):'off_pct':'off_pct_ci95' \
        with yerrorlines ls 2 title 'calm, in another order', \
    2 with lines lw 1.2 dt 2 lc rgb '#555555' title 'aim', \
    -2 with lines lw 1.2 dt 2 lc rgb '#555555' notitle
