/* SPDX-License-Identifier: Apache-2.0 */
/* invite.c: hearth invite show: prints what an invite is for, and whether it holds now. */
#include "app/admit.h"
#include "core/guess.h"
#include "net/crypto.h"

#include <string.h>
#include <time.h>

static error_t parse(int key, char *arg, struct argp_state *state)
{
    static const char *const words[] = {"show"};
    const char **text = state->input;
    char hint[80];
    switch (key) {
    case ARGP_KEY_ARG:
        if (state->arg_num == 0 && strcmp(arg, words[0]) != 0)
            argp_error(state, "no word '%s'%s", arg,
                       hth_guess_text(arg, words, sizeof(words[0]), HTH_ARRAY_LEN(words), hint,
                                      sizeof(hint)));
        if (state->arg_num == 1)
            *text = arg;
        return state->arg_num > 1 ? ARGP_ERR_UNKNOWN : 0;
    case ARGP_KEY_END:
        if (*text == NULL)
            argp_error(state, "which invite? For example: hearth invite show @ana.invite");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int hth_verb_invite(int argc, char **argv)
{
    static const struct argp argp = {
        .parser = parse,
        .args_doc = "show TEXT|@FILE|-",
        .doc = "Show what an invite is for, without its secret, and whether it holds now.",
    };
    const char *text = NULL, *why;
    struct hth_invite invite;
    if (argp_parse(&argp, argc, argv, 0, NULL, &text) != 0)
        return HTH_EXIT_USAGE;
    enum hth_err err = hth_cli_invite(text, &invite, &why);
    if (err != HTH_OK) {
        hth_cli_say_error("%s%s%s", text[0] == '@' ? text + 1 : "", text[0] == '@' ? ": " : "",
                          why);
        return HTH_EXIT_USAGE;
    }
    hth_admit_print(&invite);
    err = hth_invite_check(hth_crypto_openssl(), &invite, (int64_t)time(NULL) * HTH_US_PER_S);
    hth_say("%s", err == HTH_OK ? "It holds." : hth_err_text(err));
    return hth_exit_of(err);
}
