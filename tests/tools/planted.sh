#!/bin/sh
# tests/tools/planted.sh SOURCE: tools/check-layers, check-docs and tidy pass on a copy of the tree,
# and each fails, with a line that says so, when one fault of a kind is planted in the copy.
set -eu
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export GIT_AUTHOR_NAME=test GIT_AUTHOR_EMAIL=test GIT_COMMITTER_NAME=test GIT_COMMITTER_EMAIL=test
failed=0
count=0

# remember TITLE: all that is here is a commit.
remember() { git add -A -f && git commit -qm "$1"; }

# passes TOOL [ARGUMENT]
passes()
{
    count=$((count + 1))
    if ! "tools/$1" ${2+"$2"} >"$work/out" 2>&1; then
        echo "FAILED: tools/$* does not pass:" && head -n 20 "$work/out"
        failed=1
    fi
}

# fails LINES TOOL [ARGUMENT]: it fails and prints each of LINES, or more of it. Takes the faults
# away.
fails()
{
    lines=$1
    shift
    count=$((count + 1))
    if "tools/$1" ${2+"$2"} >"$work/out" 2>&1; then
        echo "FAILED: tools/$* passes with: $lines"
        failed=1
    fi
    missing=$(echo "$lines" | while read -r line; do
        grep -qF -- "$line" "$work/out" || echo "    $line"
    done)
    if [ -n "$missing" ]; then
        echo "FAILED: tools/$* does not print" && echo "$missing" && echo "but" && head -n 5 "$work/out"
        failed=1
    fi
    git reset -q --hard
    git clean -qfd
}

# ---- a copy of the whole tree ------------------------------------------------------------------

git -C "$source" rev-parse || exit 1 # a tarball has no list of its files
mkdir "$work/tree"
(cd "$source" && git ls-files -co --exclude-standard | while read -r file; do
    [ ! -e "$file" ] || echo "$file"
done | tar -cf - -T -) | tar -xf - -C "$work/tree"
cd "$work/tree"
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
git init -q
remember 'all: copy'
passes check-layers
passes check-docs
passes tidy

# ---- layers ------------------------------------------------------------------------------------

# allow FOLDER OTHER: the row of FOLDER lets it include OTHER, too.
allow() { sed -i "s/^\(| \`$1\/\` |.*[a-z]\) |\$/\1 $2 |/" docs/architecture.md; }

echo '#include "net/net.h"' >>rpc/tx.c
fails 'layers: rpc/tx.c includes net/, but rpc/ may include only: core' check-layers
echo '#  include <net/net.h>' >>rpc/tx.c
fails 'layers: rpc/tx.c includes net/, but rpc/ may include only: core' check-layers
echo '#include "../net/net.h"' >>rpc/tx.c
fails 'layers: rpc/tx.c includes ../, but rpc/ may include only: core' check-layers
echo 'extern enum hth_err hth_net_run(struct hth_env *env);' >>rpc/tx.c
fails 'layers: rpc/tx.c declares by itself, without a header: extern enum hth_err hth_net_run' check-layers
echo 'target_sources(hth_rpc PRIVATE ../net/net.c)' >>rpc/CMakeLists.txt
fails 'layers: a folder builds only its own files:' check-layers
echo 'target_link_libraries(hth_rpc PUBLIC hth_net)' >>rpc/CMakeLists.txt
fails 'layers: hth_rpc of rpc/ links hth_net of net/' check-layers
echo 'hth_library(hth_more SOURCES more.c LINK hth_nowhere)' >>rpc/CMakeLists.txt
fails 'layers: hth_more of rpc/ links hth_nowhere, which no folder makes' check-layers
echo 'long when(void) { return time(0); }' >>gating/gate.c
fails 'long when(void) { return time(0); }' check-layers
echo '#include <pthread.h>' >>trainer/flight.c
fails '#include <pthread.h>' check-layers
echo 'void f(void) { json_pack("{}"); }' >>app/main.c
fails 'numbers and objects for JSON are made by cli/json.h' check-layers
mkdir attic && cp core/err.c attic/
fails 'layers: attic/ is not in the table of docs/architecture.md' check-layers
allow rpc attic
fails 'layers: the table lets rpc/ include attic/, which it does not list' check-layers
allow dht gating
fails 'layers: the table has a circle among dht/ experts/ gating/' check-layers
allow kernels net
allow net sim
allow sim kernels
fails 'layers: the table has a circle among kernels/' check-layers

# ---- docs --------------------------------------------------------------------------------------

# say TEXT FILE: a comment at the end of a file of C.
say() { echo "/* $1 */" >>"$2"; }

echo '# Stray' >docs/stray.md
fails 'docs: docs/README.md does not list stray.md' check-docs
for page in averaging benchmarks gpu; do
    awk 'BEGIN { for (; n < 1200; n++) print "More." }' >>docs/$page.md
done
echo '<svg></svg>' >docs/stray.svg
fails "docs: docs/averaging.md: $(wc -l <docs/averaging.md) lines, the limit is 350
docs: docs/benchmarks.md: $(wc -l <docs/benchmarks.md) lines, the limit is 260
$(cat docs/*.md | wc -l) lines, the limit is 4200
docs/stray.svg: no page shows it" check-docs
sed -i 's/^int main(/int  main(/' tests/scenarios/example_scenario.c
fails 'its program is not tests/scenarios/example_scenario.c' check-docs
# Names are checked in one pass over the tree, so all kinds are planted at once.
echo 'See `core/err.h:hth_nonsense`, `hth_gibberish` and `core/nonsense.c`.' >>README.md
echo 'See [there](docs/nonsense.md).' >>CONTRIBUTING.md
echo '[There](#nonsense), too.' >>docs/numbers.md
awk 'BEGIN { printf "| %0400d |\n", 1 }' >>docs/kernels.md
say 'Called by hth_nonsense.' rpc/tx.c
say 'One of HTH_NONSENSE_*.' core/err.h
say 'As in core/nonsense.h.' sim/node.c
say 'As in nonsense.cu.' kernels/cuda/rows.cu
say 'As tx.c:nonsense does.' rpc/rpc.c
at() { echo "docs: $1:$(wc -l <"$1"): $2"; }
fails "$(at README.md 'no function core/err.h:hth_nonsense')
$(at README.md 'nothing is called hth_gibberish')
$(at README.md 'there is no core/nonsense.c')
$(at CONTRIBUTING.md 'no file for the link to docs/nonsense.md')
$(at docs/numbers.md 'no heading for the link to docs/numbers.md#nonsense')
$(at docs/kernels.md 'a row of a table over 400 columns')
$(at rpc/tx.c 'nothing is called hth_nonsense')
$(at core/err.h 'no name begins with HTH_NONSENSE_')
$(at sim/node.c 'there is no core/nonsense.h')
$(at kernels/cuda/rows.cu 'there is no nonsense.cu')
$(at rpc/rpc.c 'no function tx.c:nonsense')" check-docs

# ---- tidy, in a small tree ---------------------------------------------------------------------

mkdir -p "$work/small/tools"
cp tools/tidy tools/tidy.awk tools/comments.awk "$work/small/tools/"
cd "$work/small"
git init -q
: >tools/tidy.allow

# c FILE: a file of C from standard input, below its licence.
c() { mkdir -p "${1%/*}" && { echo '/* SPDX-License-Identifier: Apache-2.0 */' && cat; } >"$1"; }
# calls N: lines with a call each
calls() { awk -v n="$1" 'BEGIN { for (; n > 0; n--) print "    f();" }'; }

c core/clean.c <<'C'
/*
 * clean.c: all that may be.
 *
 * What it holds:
 *   what is there   a table
 */
/* One line. */
/* Several lines have text on the first
 * and on the last. */
int f(void)
{
    return 0; /* who knows */
}
/* What is a row? */
/* What is a row that is as long as this one,
 * and goes on? */
const char *text = "name what is wanted: "
                   "what is wanted";
const char *word = "what";
C
remember 'core: begin'
since=$(git rev-parse HEAD)
passes tidy "$since"

planted=core/planted.c
echo 'int x;' >$planted
fails "tidy: $planted:1: the first line names the licence (SPDX) [licence]" tidy
printf 'int %0100d;\n' 1 | c $planted
fails "tidy: $planted:2: longer than 100 columns [width]" tidy
printf '\tint x;\n' | c $planted
fails "$planted:2: a tab [tab]" tidy
echo 'int x; ' | c $planted
fails "$planted:2: blanks at the end [blanks]" tidy
echo '/* TO''DO */' | c $planted
fails "$planted:2: an unfinished mark [unfinished]" tidy
echo 'int x = atoi(y);' | c $planted
fails "$planted:2: a banned function [banned]" tidy
echo 'int x = HTH_MIN(i++, 2);' | c $planted
fails "$planted:2: a count inside HTH_MIN or HTH_MAX, which take it twice [twice]" tidy
echo 'typedef struct { int x; } y;' | c $planted
fails "$planted:2: a typedef of a struct [typedef]" tidy
{ echo 'void g(void)' && echo '{' && calls 71 && echo '}'; } | c $planted
fails "$planted:75: a function of 71 lines, the limit is 70 [function]" tidy
calls 1000 | c $planted
fails "$planted:1001: 1001 lines, the limit is 1000 [lines]" tidy
calls 250 | c core/planted.h
fails 'core/planted.h:251: 251 lines, a public header has at most 250 [header]' tidy
calls 250 | c core/planted_int.h
passes tidy
echo 'int x;' | c core/planted-it.c
fails "core/planted-it.c:1: a file's name joins small words by underscores [name]" tidy
for name in internal planted_internal; do
    echo 'int x;' | c core/$name.h
    fails "core/$name.h:1: an internal header is called FOLDER_int.h or FILE_int.h [name]" tidy
done

head='the head of a file opens and closes its comment on lines of their own [comment]'
printf '/* planted.c: one\n * two. */\n' | c $planted
fails "$planted:2: $head" tidy
printf '/*\n * planted.c: one\n * two. */\n' | c $planted
fails "$planted:2: $head" tidy
body='a comment of several lines has text on its first and on its last line [comment]'
printf 'int x;\n/* One\n * two.\n */\n' | c $planted
fails "$planted:3: $body" tidy
printf 'int x;\n/*\n * One\n * two. */\n' | c $planted
fails "$planted:3: $body" tidy

relative='begins with a free relative: name the subject [relative]'
for words in 'Who waits is late.' 'Whoever waits is late.' 'Whom it calls is late.' \
    'Whose turn it is goes.' 'What comes is taken.' 'Whatever comes is taken.' \
    'To whom it comes, that one takes it.' 'Those who wait are late.' 'Of what comes, the last.'; do
    echo "/* $words */" | c $planted
    fails "$planted:2: $relative" tidy
done
printf '/*\n * planted.c: one.\n *\n * What comes is\n * taken.\n */\n' | c $planted
fails "$planted:5: $relative" tidy
echo '/* One is early. Who waits is late. */' | c $planted
fails "$planted:2: $relative" tidy
echo 'TEST(what_comes_is_known)' | c tests/core/test_planted.c
fails "tests/core/test_planted.c:2: test what_comes_is_known $relative" tidy
echo 'say("what came of %s is of no use", name);' | c $planted
fails "$planted:2: message \"what came of %s is of no use\" $relative" tidy
echo '# What is built.' >core/CMakeLists.txt
fails "core/CMakeLists.txt:1: $relative" tidy
echo '// What is sent.' >core/planted.proto
fails "core/planted.proto:1: $relative" tidy

echo 'core/* relative' >tools/tidy.allow
fails 'a row is FILES RULE REASON: core/* relative' tidy
echo 'core/* relative pending' >tools/tidy.allow
fails '"core/* relative" allows nothing any more: remove that row' tidy
echo 'core/*.c relative pending' >tools/tidy.allow
echo '/* What comes is taken. */' | c $planted
passes tidy
: >tools/tidy.allow
fails "$planted:2: $relative" tidy

# title TITLE WHY
title()
{
    git commit -q --allow-empty -m "$1"
    fails "$2: $1 [title]" tidy "$since"
    git reset -q --hard "$since"
}
title 'core: give the table of all the names in it a bigger room now' 'has 61 columns, the limit is 60'
title 'core: who waits is late' 'begins with a free relative: name the mechanism'
title 'core: Those that wait are late' 'begins with a free relative: name the mechanism'
git commit -q --allow-empty -m 'core: give the table a room'
passes tidy "$since"

if command -v shellcheck >/dev/null; then
    printf '#!/bin/sh\nx=$(ls)\n' >tools/planted
    fails 'x appears unused' tidy
fi

echo "$count runs"
exit $failed
