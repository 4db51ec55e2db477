# tools/tidy.awk: the rules of tools/tidy for one line at a time; -f comments.awk stands before it.
# Files that are not C have comments behind "#" or "//", and only their words are checked.

# say(RULE, LINE, MESSAGE): unless a row of tools/tidy.allow lets this file have it. The first row
# that does is the one that is of use.
function say(rule, line, message,    i)
{
    for (i = 1; i <= rows; i++)
        if (row_rule[i] == rule && FILE ~ row_files[i]) { of_use[i] = 1; return }
    printf "tidy: %s:%d: %s [%s]\n", FILE, line, message, rule > "/dev/stderr"
    bad = 1
}

# A pattern of the shell as a regular expression; "*" stands for "/" too.
function from_glob(glob)
{
    gsub(/[.+]/, "[&]", glob)
    gsub(/[*]/, ".*", glob)
    return "^" glob "$"
}

function read_allowed(    line, w)
{
    while ((getline line < allow_file) > 0) {
        if (line ~ /^(#|[ \t]*$)/) continue
        if (split(line, w, " ") < 3) {
            printf "tidy: %s: a row is FILES RULE REASON: %s\n", allow_file, line > "/dev/stderr"
            bad = 1
        }
        row_text[++rows] = w[1] " " w[2]
        row_files[rows] = from_glob(w[1])
        row_rule[rows] = w[2]
    }
}

# A sentence that begins with a free relative has its end in one of the next lines; if that is a
# question mark, it is a question and all is well.
function words(text,    t)
{
    t = text
    if (asked != 0 && match(t, /[.?!:;]($|[ )"])/)) {
        if (substr(t, RSTART, 1) != "?") say("relative", asked, RELATIVE)
        asked = 0
    }
    sub(/^[-( \t*#\/]*/, "", t)
    sentence(t)
    while (match(t, later)) {
        t = substr(t, RSTART + 2)
        sentence(t)
    }
}
# sentence(T): T begins with a sentence of a comment, and may have more of them.
function sentence(t)
{
    if (t !~ relative || (t ~ /:$/ && split(t, w, " ") <= 4)) return
    if (match(t, /[.?!:;]($|[ )"])/)) {
        if (substr(t, RSTART, 1) != "?") say("relative", FNR, RELATIVE)
    } else {
        if (asked != 0) say("relative", asked, RELATIVE)
        asked = FNR
    }
}
function sentence_ends()
{
    if (asked != 0) say("relative", asked, RELATIVE)
    asked = 0
}

# A block comment has one form: at the head of a file "/*" and " */" are alone on their lines, and
# elsewhere text stands on the first and on the last line of several.
function form(was,    lone)
{
    if (!was && in_comment) {
        begins = FNR
        opens_alone = $0 ~ /\/\*[ \t]*$/
        at_head = head
    } else if (was && !in_comment) {
        lone = $0 ~ /^[ \t]*\*\/[ \t\\]*$/
        if (at_head && !(opens_alone && lone))
            say("comment", begins, "the head of a file opens and closes its comment on lines of their own")
        if (!at_head && (opens_alone || lone))
            say("comment", begins, "a comment of several lines has text on its first and on its last line")
    }
}

function file_ends()
{
    if (FILE == "") return
    sentence_ends()
    if (plain) return
    if (lines > 1000) say("lines", lines, lines " lines, the limit is 1000")
    if (FILE ~ /[.]h$/ && FILE !~ /^tests\/|_(int|template)[.]h$/ && lines > 250)
        say("header", lines, lines " lines, a public header has at most 250")
}

BEGIN {
    relative = "^(Who|Whom|Whose|Whoever|Whomever|What|Whatever|Whichever|" \
        "(Of|To|For|From|With|By|In|On|At|Against) (what|whom|whose)|(Those|All) (who|whom|whose))[ ,']"
    later = "[.] " substr(relative, 2)
    any_case = tolower(relative)
    RELATIVE = "begins with a free relative: name the subject"
    read_allowed()
}

FNR == 1 {
    file_ends()
    FILE = FILENAME; start = 0; asked = 0; head = 1
    file_begins()
    plain = FILE !~ /[.](c|h|cu|cuh)$/
    if (!plain) {
        if ($0 !~ /SPDX-License-Identifier: Apache-2.0/) say("licence", 1, "the first line names the licence (SPDX)")
        n = split(FILE, part, "/")
        if (part[n] ~ /[^a-z0-9_.]/) say("name", 1, "a file's name joins small words by underscores")
        if (part[n] ~ /^internal[.]|_internal[.]|^int[.]h$/) say("name", 1, "an internal header is called FOLDER_int.h or FILE_int.h")
    }
}

plain {
    if ($0 ~ /^[ \t]*(#|\/\/)/) words($0)
    else sentence_ends()
    next
}

{
    lines = FNR
    if (length($0) > 100) say("width", FNR, "longer than 100 columns")
    if ($0 ~ /\t/) say("tab", FNR, "a tab")
    if ($0 ~ /[ \t]$/) say("blanks", FNR, "blanks at the end")
    if ($0 ~ /(TODO|FIXME|HACK|(^|[^X])XXX([^X]|$))/) say("unfinished", FNR, "an unfinished mark")
    if ($0 ~ /(^|[^_a-zA-Z0-9])(atoi|atol|strcpy|strcat|sprintf|gets|strtok|alloca|setjmp)\(/ && FILE !~ /^tests\//)
        say("banned", FNR, "a banned function")
    if ($0 ~ /HTH_(MIN|MAX)\([^;]*(\+\+|--)[a-z*(]/ || $0 ~ /HTH_(MIN|MAX)\([^)]*[a-z_](\+\+|--)/)
        say("twice", FNR, "a count inside HTH_MIN or HTH_MAX, which take it twice")
    if ($0 ~ /^typedef struct/) say("typedef", FNR, "a typedef of a struct")
    # A function body is between "{" and "}" in the first column.
    if ($0 == "{") start = FNR
    if ($0 == "}" && start > 0) {
        if (FNR - start - 1 > 70) say("function", FNR, "a function of " (FNR - start - 1) " lines, the limit is 70")
        start = 0
    }

    was = in_comment
    read_line($0)
    form(was)
    if (comment != "") words(comment)
    if (!in_comment) sentence_ends()
    if (code ~ /[^ \t]/ || (comment != "" && !in_comment && comment !~ /SPDX|clang-format/)) head = 0

    if ($0 ~ /^static void [a-z0-9_]+\(void \*\*/ || $0 ~ /^[A-Z_]*TEST(_WITH)?\([a-z0-9_]+/) {
        name = $0
        sub(/^(static void |[A-Z_]*TEST(_WITH)?\()/, "", name)
        sub(/[^a-z0-9_].*/, "", name)
        if (name ~ /^(who|whom|whose|whoever|whomever|what|whatever|whichever|to_whom|those_who)_/)
            say("relative", FNR, "test " name " " RELATIVE)
    }
    # A message is a literal that does not go on from the line before and has more than one word.
    if (code ~ /""/ && !(text_goes_on && code ~ /^[ \t]*""/)) messages($0)
    text_goes_on = code ~ /""[ \t\\]*$/
}

function messages(line,    s)
{
    gsub(/\\"/, "'", line)
    while (match(line, /"[^"]*"/)) {
        s = substr(line, RSTART + 1, RLENGTH - 2)
        line = substr(line, RSTART + RLENGTH)
        if (tolower(s) ~ any_case && s !~ /[?]/) say("relative", FNR, "message \"" s "\" " RELATIVE)
    }
}

END {
    file_ends()
    for (i = 1; i <= rows; i++)
        if (!of_use[i]) {
            printf "tidy: %s: \"%s\" allows nothing any more: remove that row\n", allow_file, row_text[i] > "/dev/stderr"
            bad = 1
        }
    exit bad
}
