# tools/names.awk: names that nothing bears, in comments and in pages; for tools/check-docs.
# -f comments.awk stands before it. The first file is the list of all files of the tree.
#
# A comment may name hth_x and HTH_X, folder/file.c, file.c and file.c:function. A name that ends in
# "_" or is followed by "*" or "..." stands for all that begin so. A page names `hth_x`, `folder/file`
# and `folder/file.c:function` between backquotes, and [files](and#headings) in links. Files that are
# neither C nor a page (CMake, protocols) only make names: libraries, definitions, messages.
function mention(kind, name)
{
    if (!((kind, name, here) in where)) where[kind, name, here] = FILENAME ":" FNR
}

# Every name of ours in a line of code: it exists.
function define(line,    name)
{
    while (match(line, /(hth|HTH)_[A-Za-z0-9_]+/)) {
        name = substr(line, RSTART, RLENGTH)
        line = substr(line, RSTART + RLENGTH)
        if (!(name in exists)) { exists[name] = 1; all = all " " name }
    }
}

function mentioned(text,    name, rest)
{
    rest = text
    while (match(rest, /(^|[^A-Za-z0-9_.\/-])(hth|HTH)_[A-Za-z0-9_]+/)) {
        name = substr(rest, RSTART, RLENGTH)
        rest = substr(rest, RSTART + RLENGTH)
        sub(/^[^hH]/, "", name)
        if (rest ~ /^([*]|[.][.][.])/ || name ~ /_$/) mention("prefix", name)
        else if (rest !~ /^[.](c|h)/) mention("name", name)
    }
    rest = text
    while (match(rest, /[A-Za-z0-9_.\/-]*[A-Za-z0-9_]\.(cuh|cu|c|h)(:[a-z_][a-z_0-9]*)?/)) {
        name = substr(rest, RSTART, RLENGTH)
        rest = substr(rest, RSTART + RLENGTH)
        if (rest !~ /^[A-Za-z0-9_]/) mention("file", name)
    }
}

NR == FNR {
    n = split($0, part, "/")
    file[$0] = base[part[n]] = 1
    path = ""
    for (i = 1; i < n; i++) {
        path = path part[i]
        file[path] = file[path "/"] = 1 # a folder
        path = path "/"
        if (i == 1) folder[part[1]] = 1
    }
    next
}
# `folder/path` or `folder/path:function`, and links; headings have anchors as code hosts make them.
function in_page(line,    name, first)
{
    if (line ~ /^[|]/ && length(line) > 400) complain(FILENAME ":" FNR, "a row of a table over 400 columns")
    if (line ~ /^#+ /) {
        name = tolower(line)
        sub(/^#+ /, "", name)
        gsub(/[^a-z0-9_ -]/, "", name)
        gsub(/ /, "-", name)
        anchor[FILENAME "#" name] = 1
    }
    name = line
    while (match(name, /\]\([^) ]+\)/)) {
        first = substr(name, RSTART + 2, RLENGTH - 3)
        name = substr(name, RSTART + RLENGTH)
        if (first !~ /^http/) mention("link", (first ~ /^#/ ? FILENAME : here) first)
    }
    name = line
    while (match(name, /`(hth|HTH)_[A-Za-z0-9_]+`/)) {
        first = substr(name, RSTART + 1, RLENGTH - 2)
        name = substr(name, RSTART + RLENGTH)
        mention(first ~ /_$/ ? "prefix" : "name", first)
    }
    while (match(line, /`[a-z]+\/[A-Za-z0-9_.\/-]*(:[a-z_0-9]+)?`/)) {
        name = substr(line, RSTART + 1, RLENGTH - 2)
        line = substr(line, RSTART + RLENGTH)
        first = name
        sub(/\/.*/, "", first)
        if (first in folder && name != "experts/UID.safetensors") # that one is in a state folder
            mention("page", name)
    }
}

FNR == 1 {
    file_begins()
    is_c = FILENAME ~ /[.](c|h|cu|cuh)$/
    is_page = FILENAME ~ /[.]md$/
    n = split(FILENAME, part, "/")
    here = FILENAME
    sub(/[^\/]*$/, "", here) # its folder
}
is_page { in_page($0); next }
!is_c { define($0); next }
{
    read_line($0)
    if (code != "") {
        define(comment == "" ? $0 : code) # with the names of environment variables, in strings
        if (match(code, /^#include *</)) base[substr(code, RLENGTH + 1, index(code, ">") - RLENGTH - 1)] = 1
        # a function begins in the first column; a macro too, and TEST(name) of a suite
        name = ""
        if (code ~ /^[a-z#].*\(/ && match(code, /[ *][A-Za-z_0-9]+\(/))
            name = substr(code, RSTART + 1, RLENGTH - 2)
        else if (match(code, /^[A-Z_]*TEST(_WITH)?\([a-z_0-9]+/)) {
            name = substr(code, 1, RLENGTH)
            sub(/.*\(/, "", name)
        }
        if (name != "") has[FILENAME ":" name] = has[part[n] ":" name] = 1
    }
    if (comment != "") mentioned(comment)
}

function complain(at, what) { printf "docs: %s: %s\n", at, what > "/dev/stderr"; bad = 1 }

function check_file(at, name, here,    path)
{
    path = name
    sub(/:.*/, "", path)
    if (!(path in file) && !(here path in file) && !(path in base)) {
        complain(at, "there is no " path)
        return
    }
    if (name !~ /:/) return
    if (!(name in has) && !((here name) in has)) complain(at, "no function " name)
}

function check_link(at, name,    path)
{
    while (sub(/[^\/.]+\/[.][.]\//, "", name)) { }
    path = name
    sub(/#.*/, "", path)
    if (!(path in file)) complain(at, "no file for the link to " path)
    else if (name ~ /#/ && !(name in anchor)) complain(at, "no heading for the link to " name)
}

END {
    for (key in where) {
        split(key, k, SUBSEP)
        at = where[key]
        if (k[1] == "name" && !(k[2] in exists)) complain(at, "nothing is called " k[2])
        if (k[1] == "prefix" && !index(all, " " k[2])) complain(at, "no name begins with " k[2])
        if (k[1] == "link") check_link(at, k[2])
        if (k[1] == "file" || k[1] == "page") check_file(at, k[2], k[3])
    }
    exit bad
}
