# tools/comments.awk: cuts lines of C into code and comments, for tidy.awk and names.awk.
#
# read_line(line) sets `code` and `comment`, the two parts of the line with strings emptied, and
# `in_comment`: whether a comment goes on in the next line. Call file_begins() at a file's first line.
function file_begins() { in_comment = 0 }
function read_line(line,    i)
{
    code = comment = ""
    if (!in_comment && index(line, "\"")) {
        gsub(/\\./, "", line)
        gsub(/'"'/, "' '", line)
        gsub(/"[^"]*"/, "\"\"", line)
    }
    for (;;) {
        i = index(line, in_comment ? "*/" : "/*")
        if (i == 0) {
            if (in_comment) comment = comment line
            else if ((i = index(line, "//")) > 0) { code = code substr(line, 1, i - 1); comment = substr(line, i + 2) }
            else code = code line
            return
        }
        if (in_comment) comment = comment substr(line, 1, i - 1) " "
        else code = code substr(line, 1, i - 1)
        line = substr(line, i + 2)
        in_comment = !in_comment
    }
}
