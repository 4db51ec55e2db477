# SPDX-License-Identifier: Apache-2.0
# tables.awk: makes the tables of docs/benchmarks.md, "hearth bench kernels", from one run's rows:
#
#     hearth bench kernels --json --budget 2s > rows.json
#     awk -f benchmarks/kernels/tables.awk rows.json > tables.md
#     sed -i -e '/kernels: tables/,/kernels: end/{//!d}' -e '/kernels: tables/r tables.md' \
#         docs/benchmarks.md
#
# A figure that was not measured is "-". A demand is met if its worst figure meets it; else the worst are
# named.

function text(name)
{
    if (!match($0, "\"" name "\":\"[^\"]*\""))
        return ""
    return substr($0, RSTART + length(name) + 4, RLENGTH - length(name) - 5)
}

function number(name)
{
    if (!match($0, "\"" name "\":[-+.eE0-9]+"))
        return 0
    return substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3) + 0
}

BEGIN {
    ops = split("linear_forward linear_backward_data linear_backward_weight ffn_forward " \
        "ffn_forward_backward ffn_train_step", op, " ")
    sets = split("bf16/avx512bf16 fp32/avx512 fp32/avx2 fp32/blas", set, " ")
}

/^\{/ {
    key = text("op") " " text("type") "/" text("isa") " " number("rows")
    if (number("threads") > 1) {
        many_ms[key] = number("ms")
        next
    }
    ms[key] = number("ms")
    gflops[key] = number("gflops")
    share[key] = 100 * number("peak_fraction")
    torch[key] = number("torch_ms")
    if (number("gb_per_s") > 0) {
        gb[text("op")] = number("gb_per_s")
        gb_key[text("op")] = key
        gb_isa[text("op")] = text("isa")
        elements[text("op")] = number("elements")
    }
    peak = number("peak_gflops")
    name = text("type") "/" text("isa")
    if (peak > 0 && (!(name in peak_least) || peak < peak_least[name]))
        peak_least[name] = peak
    if (peak > peak_most[name])
        peak_most[name] = peak
    if (number("gflops") > 0 && !(number("rows") in known_rows)) {
        known_rows[number("rows")] = 1
        row[++row_count] = number("rows")
    }
}

# -- demands ----------------------------------------------------------------------------------

function demand_begin()
{
    found = 0
}

# Keeps the figures in rising order.
function figure(value, what,    i)
{
    for (i = ++found; i > 1 && value_of[i - 1] > value; i--) {
        value_of[i] = value_of[i - 1]
        what_of[i] = what_of[i - 1]
    }
    value_of[i] = value
    what_of[i] = what
}

function shown(value, unit)
{
    return unit == "%" ? sprintf("%.3g %%", value) : \
        unit == "x" ? sprintf("%.3g x", value) : sprintf("%.1f %s", value, unit)
}

function demand_end(title, must, aim, unit,    i, misses, names, met)
{
    if (found == 0) {
        printf "| %s | %s | %s | - | - |\n", title, shown(must, unit), shown(aim, unit)
        return
    }
    misses = 0
    names = ""
    for (i = 1; i <= found; i++) {
        if (value_of[i] >= must)
            continue
        if (++misses <= 3)
            names = names (misses > 1 ? ", " : "") what_of[i] " " shown(value_of[i], unit)
    }
    met = value_of[1] >= aim ? "must and aim" : "must"
    if (misses > 0 && found == 1)
        met = "**no**"
    else if (misses > 0)
        met = sprintf("**no** in %d of %d: %s%s", misses, found, names, misses > 3 ? ", ..." : "")
    printf "| %s | %s | %s | %s%s | %s |\n", title, shown(must, unit), shown(aim, unit),
        shown(value_of[1], unit), (found > 1 ? " to " shown(value_of[found], unit) : ""), met
}

function rows_text(n)
{
    return n (n == 1 ? " row" : " rows")
}

# Shares of the peak of operations from .. to, from `least` rows to `most`.
function shares(title, from, to, kernels, least, most, must, aim,    o, r, k)
{
    demand_begin()
    for (o = from; o <= to; o++) {
        for (r = 1; r <= row_count; r++) {
            k = op[o] " " kernels " " row[r]
            if (row[r] >= least && row[r] <= most && k in ms)
                figure(share[k], (from < to ? "`" op[o] "` " : "") rows_text(row[r]))
        }
    }
    demand_end(title, must, aim, "%")
}

# PyTorch in fp32 against our bf16.
function against_torch(title, o, least, most, must, aim,    r, k, other)
{
    demand_begin()
    for (r = 1; r <= row_count; r++) {
        k = op[o] " bf16/avx512bf16 " row[r]
        other = op[o] " fp32/avx512 " row[r]
        if (row[r] >= least && row[r] <= most && torch[other] > 0 && ms[k] > 0)
            figure(torch[other] / ms[k], rows_text(row[r]))
    }
    demand_end(title, must, aim, "x")
}

function bytes(title, name, must, aim)
{
    demand_begin()
    if (gb[name] > 0)
        figure(gb[name], "")
    demand_end(title, must, aim, "GB/s")
}

function threads(    o, s, r, k)
{
    demand_begin()
    for (o = 1; o <= ops; o++) {
        for (s = 1; s <= 3; s++) {
            for (r = 1; r <= row_count; r++) {
                k = op[o] " " set[s] " " row[r]
                if (row[r] >= 32 && many_ms[k] > 0)
                    figure(ms[k] / many_ms[k], "`" op[o] "` " set[s] " " rows_text(row[r]))
            }
        }
    }
    demand_end("two threads, products, from 32 rows on", 1.85, 1.95, "x")
    demand_begin()
    for (k in gb_key) {
        if (k ~ /int8/ && many_ms[gb_key[k]] > 0)
            figure(ms[gb_key[k]] / many_ms[gb_key[k]], "`" k "`")
    }
    demand_end("two threads, int8", 1.85, 1.95, "x")
}

function demands(    big)
{
    big = 65536
    print "| what, one thread | must | aim | measured | met |"
    print "|---|---|---|---|---|"
    shares("bf16 packed linear (three products), from 8 rows on", 1, 3, set[1], 8, big, 85, 95)
    shares("fp32 packed linear, AVX-512, from 8 rows on", 1, 3, set[2], 8, big, 80, 93)
    shares("fp32 packed linear, AVX2, from 32 rows on", 1, 3, set[3], 32, big, 75, 88)
    shares("FFN expert forward, bf16, from 128 rows on", 4, 4, set[1], 128, big, 85, 92)
    shares("FFN expert forward and backward, bf16, 8 rows", 5, 5, set[1], 8, 8, 35, 60)
    shares("... 32 rows", 5, 5, set[1], 32, 32, 65, 82)
    shares("... from 128 rows on", 5, 5, set[1], 128, big, 80, 90)
    against_torch("forward (bf16) against PyTorch fp32, 1 row", 4, 1, 1, 10, 25)
    against_torch("... 8 rows", 4, 8, 8, 6, 12)
    against_torch("... 32 rows", 4, 32, 32, 3, 4.5)
    against_torch("... from 128 rows on", 4, 128, big, 2, 2.5)
    against_torch("forward and backward (bf16) against PyTorch fp32, 8 rows", 5, 8, 8, 3, 6)
    against_torch("... 32 rows", 5, 32, 32, 2.5, 4)
    against_torch("... from 512 rows on", 5, 512, big, 2, 2.4)
    bytes("AdamW on 100 M parameters", "adamw", 38, 48)
    against_torch("training step (bf16) at 8 rows against PyTorch fp32", 6, 8, 8, 2.5, 5)
    bytes("int8 quantise, blocks of 64", "quantize_int8", 15, 25)
    bytes("int8 dequantise", "dequantize_int8", 15, 25)
    threads()
}

# -- all figures ------------------------------------------------------------------------------

function head(first,    r)
{
    printf "\n| %s |", first
    for (r = 1; r <= row_count; r++)
        printf " %s |", rows_text(row[r])
    printf "\n|---|---|"
    for (r = 1; r <= row_count; r++)
        printf "---|"
    printf "\n"
}

# The text of one cell in the table of that name.
function cell(table, k)
{
    if (!(k in ms) || ms[k] == 0)
        return "-"
    if (table == "rate")
        return sprintf("%.0f, %.0f %%", gflops[k], share[k])
    if (table == "threads")
        return many_ms[k] > 0 ? sprintf("%.2f", ms[k] / many_ms[k]) : "-"
    return torch[k] > 0 ? sprintf("%.3g / %.3g = **%.1f**", torch[k], ms[k], torch[k] / ms[k]) : "-"
}

# Prints the rows of the table that have a figure.
function body(table, last, first_op,    o, s, r, line, one, any)
{
    for (o = first_op; o <= ops; o++) {
        for (s = 1; s <= last; s++) {
            line = "| `" op[o] "` | " set[s] " |"
            sub("/", " ", line)
            any = 0
            for (r = 1; r <= row_count; r++) {
                one = cell(table, op[o] " " set[s] " " row[r])
                any = any || one != "-"
                line = line " " one " |"
            }
            if (any)
                print line
        }
    }
}

END {
    demands()
    printf "\nPeaks, GFLOP/s:"
    for (s = 1; s <= sets; s++) {
        if (set[s] in peak_least) {
            printf "%s %s %.0f to %.0f", (listed++ ? "," : ""), set[s], peak_least[set[s]],
                peak_most[set[s]]
        }
    }
    printf "\n"
    head("operation | set")
    body("rate", 2, 4)
    head("operation, ms of PyTorch / of ours | set")
    body("torch", 1, 4)
    print "\n| operation, one thread | set | numbers | ms | GB/s | two threads | PyTorch |"
    print "|---|---|---|---|---|---|---|"
    flat = split("adamw quantize_int8 dequantize_int8", vector, " ")
    for (i = 1; i <= flat; i++) {
        k = gb_key[vector[i]]
        if (k == "")
            continue
        printf "| `%s` | %s | %.0f M | %.3g | %.1f | %s | %s |\n", vector[i], gb_isa[vector[i]],
            elements[vector[i]] / 1048576, ms[k], gb[vector[i]], cell("threads", k),
            (torch[k] > 0 ? sprintf("%.3g ms: %.1f times", torch[k], torch[k] / ms[k]) : "-")
    }
}
