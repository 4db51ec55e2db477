/* SPDX-License-Identifier: Apache-2.0 */
/* test_admit.c: a member's program says how others join: by a public invite, or whom to ask. */
#include "app/admit.h"

#include "admission/party.h"
#include "core/mem.h"

/* The word of a program with the invite that was signed last. */
static char *join(struct party *p, char ask[HTH_CERT_NAME_MAX + 16])
{
    static int any;
    struct hth_cli_net net = {.invited = true, .invite = p->invite};
    struct hth_admit admit = {.gate = (void *)&any}; /* the run is closed */
    assert_ok(party_judge(p, NOW_US, &admit.grant));
    return hth_admit_join(&admit, &net, ask);
}

static void others_hear_how_to_join(void **state)
{
    (void)state;
    struct party p;
    struct hth_admit open = {.gate = NULL};
    struct hth_cli_net net = {.invited = false};
    char ask[HTH_CERT_NAME_MAX + 16], text[HTH_INVITE_TEXT_MAX];
    party_init(&p);
    assert_null(hth_admit_join(&open, &net, ask));
    assert_string_equal(ask, "");
    party_sign(&p, false);
    char *word = join(&p, ask);
    assert_string_equal(ask, "the run's owner");
    assert_string_equal(word, "--invite INVITE"); /* not the member's own */
    hth_free(word);
    party_sign(&p, true);
    word = join(&p, ask);
    assert_string_equal(ask, "dora");
    assert_string_equal(word, "--invite INVITE");
    hth_free(word);
    p.cert.class = HTH_PROBATION;
    p.cert.flags = HTH_CERT_PUBLIC;
    party_sign(&p, true);
    assert_ok(hth_invite_write(&p.invite, text));
    word = join(&p, ask);
    assert_string_equal(ask, "");
    assert_memory_equal(word, "--invite ", 9);
    assert_string_equal(word + 9, text);
    hth_free(word);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(others_hear_how_to_join)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
